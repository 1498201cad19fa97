"""Recorded runs with one planted fault each, which passed once: the row that speaks of the fault is red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements

RECORDINGS = Path(__file__).with_name("recordings")
PLANTED = {
    "cache-leak-beside-texts": "cached-tokens-keep-to-their-key",
    "cache-leak-without-texts": "cached-tokens-keep-to-their-key",
    "scores-shifted": "results-depend-on-their-input-alone",
}
"""The row that each fault violates. The other rows are those of a run that conforms."""


def verdict(capture: str, requirement: str) -> set[Verdict]:
    """Return the verdicts on a requirement, of all scenarios of a recording."""
    subject = replay((RECORDINGS / f"{capture}.jsonl.gz",))
    return {judgement.verdict for judgement in judge(subject.runs, [load_requirements()[requirement]])}


@pytest.mark.parametrize(("capture", "requirement"), PLANTED.items())
def test_a_planted_fault_is_seen_by_the_row_that_speaks_of_it(capture: str, requirement: str) -> None:
    assert Verdict.FAIL in verdict(capture, requirement)
