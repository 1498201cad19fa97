"""A published profile keeps its members, and its members keep what they demand."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import sealed_profiles
import yaml
from sealed_profiles import PUBLISHED, broken_seals, is_as_published, sealed

from tokenwire.profile import load_profiles
from tokenwire.requirement import CONTRACT_PROFILES, PURPOSES, Level, load_requirements

ROWS = load_requirements()
MEMBER = "shown-text-stays"


@pytest.fixture(scope="module")
def files(spec):
    """The text of every version's file, the newest last."""
    paths = sorted((spec / "profiles").glob("v*.yaml"), key=lambda path: int(path.stem[1:]))
    return {path.stem: path.read_text("utf-8") for path in paths}


def test_what_is_published_is_there_as_it_was(files):
    """Where this fails: put the file back, and write what is new into the next version."""
    assert set(PUBLISHED) <= set(files)
    assert [version for version, file in files.items() if not is_as_published(version, file)] == []


def test_a_file_says_which_version_it_is(files):
    assert {version: yaml.safe_load(file)["version"] for version, file in files.items()} == {
        version: version for version in files
    }


def test_the_rows_demand_what_they_demanded_when_they_were_published(files):
    assert [words for file in files.values() for words in broken_seals(file, ROWS)] == []


def test_the_newest_version_lists_exactly_the_rows_that_stand(files):
    """Where this fails, a row is new or changed: python tests/spec/sealed_profiles.py VERSION."""
    newest = yaml.safe_load(files[max(files, key=lambda version: int(version[1:]))])["profiles"]
    expected = yaml.safe_load(sealed(ROWS.values(), "any"))["profiles"]
    listed = {
        profile: {name: digits for name, digits in members.items() if not ROWS[name].excluded}
        for profile, members in newest.items()
    }
    assert listed == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"sentence": ROWS[MEMBER].sentence.replace("ids", "token ids")},
        {"level": Level.SHOULD},
        {"applies_when": ()},
        {"contract": "instrumented"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_row_that_demands_something_else_breaks_its_seal(files, changed):
    assert replace(ROWS[MEMBER], **changed) != ROWS[MEMBER]
    [words] = broken_seals(files["v1"], {**ROWS, MEMBER: replace(ROWS[MEMBER], **changed)})
    assert words.startswith(f"{MEMBER} demands something else than in core v1; ")
    assert "a new id in a new version" in words


def test_a_row_that_is_taken_away_breaks_its_seal_and_one_that_is_withdrawn_does_not(files):
    [words] = broken_seals(files["v1"], {name: row for name, row in ROWS.items() if name != MEMBER})
    assert words.startswith(f"{MEMBER}, which core v1 lists, has no row any more; ")
    withdrawn = replace(ROWS[MEMBER], excluded="a correct server violates it", kills=(), witnesses=9)
    assert list(broken_seals(files["v1"], {**ROWS, MEMBER: withdrawn})) == []


@pytest.fixture
def published(files, monkeypatch):
    """As if v1 were published as it is."""
    monkeypatch.setitem(PUBLISHED, "v1", hashlib.sha256(files["v1"].encode()).hexdigest())


@pytest.mark.usefixtures("published")
def test_a_member_that_is_taken_out_of_a_published_file_is_seen(files):
    lines = files["v1"].splitlines(keepends=True)
    shorter = "".join(line for line in lines if MEMBER not in line)
    assert list(broken_seals(shorter, ROWS)) == []
    assert not is_as_published("v1", shorter)
    assert is_as_published("v99", shorter)


@pytest.mark.usefixtures("published")
def test_a_published_version_is_not_written_again(files, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="v1 is published"):
        sealed_profiles.main("v1")
    (tmp_path / "profiles").mkdir()
    monkeypatch.setattr(sealed_profiles, "spec_root", lambda: tmp_path)
    sealed_profiles.main("v99")
    draft = (tmp_path / "profiles" / "v99.yaml").read_text("utf-8")
    assert list(broken_seals(draft, ROWS)) == []
    assert {name for members in yaml.safe_load(draft)["profiles"].values() for name in members} == set(ROWS)


def test_profiles_are_read_from_what_is_published(files):
    profiles = yaml.safe_load(files["v1"])["profiles"]
    assert load_profiles() == {name: tuple(members) for name, members in profiles.items()}


def test_the_subjects_part_all_requirements_and_the_contracts_gather_them_again(files):
    for file in files.values():
        profiles = yaml.safe_load(file)["profiles"]
        contracts = {name: profiles.pop(name) for name in CONTRACT_PROFILES}
        purposes = {name: profiles.pop(name) for name in PURPOSES}
        listed = [one for members in profiles.values() for one in members]
        assert sorted(listed) == sorted(set(listed))
        for name, members in contracts.items():
            assert list(members) == [one for one in ROWS if one in listed and name in ROWS[one].basis]
        for name, members in purposes.items():
            needed = {one for one in ROWS if PURPOSES[name] & {ROWS[one].profile, ROWS[one].chapter}}
            assert list(members) == [one for one in ROWS if one in needed]


def test_the_specification_explains_every_profile(files, prose):
    for file in files.values():
        for name in yaml.safe_load(file)["profiles"]:
            assert f"| `{name}` |" in prose["README.md"]


def test_each_profile_names_what_shows_it(spec):
    shown_by = yaml.safe_load((spec / "profiles" / "shown_by.yaml").read_text("utf-8"))
    assert list(shown_by) == list(load_profiles())
    for name, needs in shown_by.items():
        of_rows = {need for one in load_profiles()[name] for need in ROWS[one].applies_when}
        assert set(needs) <= of_rows, name
