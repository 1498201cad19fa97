"""Captures of live servers, byte for byte, for tests of the verdicts on them."""

from __future__ import annotations

from pathlib import Path

from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.replay import captures, read_run
from tokenwire.requirement import load_requirements

RECORDINGS = Path(__file__).parent / "recordings" / "live"


def live_run(name: str) -> Run:
    """Return the run of one capture."""
    [(_, exchanges)] = captures(RECORDINGS / f"{name}.jsonl.gz")
    run, _ = read_run(exchanges, DialectResolver(exchanges), "")
    return run


def judged(run: Run, requirement: str) -> list[Judgement]:
    """Return the judgements of one requirement."""
    return judge([run], [load_requirements()[requirement]])


def verdict(run: Run, requirement: str) -> Verdict:
    """Return the verdict on one requirement over all scenarios."""
    return overall(judgement.verdict for judgement in judged(run, requirement))
