"""A published profile lists exactly its requirements, once each."""

from __future__ import annotations

import pytest
import yaml


@pytest.fixture(scope="module")
def published(spec):
    return yaml.safe_load((spec / "profiles" / "v1.yaml").read_text("utf-8"))


def test_the_file_says_which_version_it_is(published):
    assert published["version"] == "v1"


def test_profiles_list_exactly_the_rows(published, rows):
    expected: dict[str, set[str]] = {}
    for row in rows:
        expected.setdefault(row["profile"], set()).add(row["id"])
    assert {name: set(ids) for name, ids in published["profiles"].items()} == expected


def test_no_requirement_is_listed_twice(published):
    listed = [one for ids in published["profiles"].values() for one in ids]
    assert sorted(listed) == sorted(set(listed))


def test_the_specification_explains_every_profile(published, prose):
    for name in published["profiles"]:
        assert f"| `{name}` |" in prose["README.md"]
