"""The checked-in digests of evidence match this judge, and a lost witness changes one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from proofs import same_evidence

from tokenwire.checks.check import CHECKS

CAPTURES = ["sglang/0.5.23/A_base.jsonl.gz", "vllm/0.32.0-cpu/si3.jsonl.gz"]


@pytest.mark.parametrize("name", CAPTURES)
def test_evidence_is_what_was_written_down(name: str) -> None:
    written = same_evidence.read_digests()[name]
    assert len(written) > 40
    assert same_evidence.differing(written, same_evidence.digests(same_evidence.FIXTURES / name)) == []


def test_digests_of_every_fixture_are_written_down() -> None:
    names = {str(path.relative_to(same_evidence.FIXTURES)) for path in same_evidence.captures()}
    assert names == same_evidence.read_digests().keys()


def test_a_lost_witness_changes_the_digest_of_its_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    requirement = "counter-follows-ids"
    on_stream = CHECKS[requirement].observe
    assert on_stream is not None

    def without_the_first(stream, target):
        return (
            replaced
            for seen in on_stream(stream, target)
            for replaced in [seen._replace(witnesses=seen.witnesses - 1)]
            if replaced.witnesses
        )

    monkeypatch.setitem(CHECKS, requirement, replace(CHECKS[requirement], observe=without_the_first))
    name = CAPTURES[0]
    found = same_evidence.digests(same_evidence.FIXTURES / name)
    assert same_evidence.differing(same_evidence.read_digests()[name], found) == [requirement]


def test_damage_is_the_same_each_time_and_changes_one_event() -> None:
    body = b'data: {"a":[1,2]}\n\ndata: {"a":[3]}\n\ndata: {"b":"c"}\n\ndata: [DONE]\n\n'
    copies = [same_evidence.damaged(body, random.Random(seed)) for seed in range(20)]
    assert copies == [same_evidence.damaged(body, random.Random(seed)) for seed in range(20)]
    assert len(set(copies)) > 10
    assert body not in copies


def test_what_is_no_json_is_not_damaged() -> None:
    assert same_evidence.damaged(b"<html>", random.Random(0)) is None


def test_some_requirements_alone_have_the_digests_that_they_have_among_all() -> None:
    """So a new row is written down in seconds, and the digests of all others stay."""
    name, row = CAPTURES[0], "ids-are-counted"
    written = same_evidence.read_digests()
    found = {name: same_evidence.digests(same_evidence.FIXTURES / name, {row})}
    assert found == {name: {row: written[name][row]}}
    assert same_evidence.updated(written, found, {row}) == written
    without = same_evidence.updated(written, {name: {}}, {row})
    assert same_evidence.differing(without[name], written[name]) == [row]
    assert without.keys() == written.keys()
