"""Answers that break a sentence, or keep it, literally: their checks once said more or less than it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements

CASES = Path(__file__).parent / "recordings" / "spec-cases"
BROKEN = {
    "cached-tokens-absent": {"cached-tokens-are-told-alike": Verdict.WARN},
    "usage-counts-events": {"continuous-usage-follows": Verdict.FAIL},
    "experts-without-output": {"array-covers-what-was-run": Verdict.FAIL},
    "hidden-states-lack-prompt-rows": {
        "array-covers-what-was-run": Verdict.FAIL,
        "array-rows-are-not-filler": Verdict.FAIL,
    },
    "aborted-without-a-finish": {"abort-is-told": Verdict.FAIL},
    "usage-on-the-way": {"usage-comes-once": Verdict.INFO},
    "null-content-of-others": {"chat-content-never-null": Verdict.WARN},
    "null-content-of-sglang": {"chat-content-never-null": Verdict.FAIL},
    "tool-calls-without-a-call": {"finish-of-calls-has-a-call": Verdict.FAIL},
    "arrays-not-asked-for": {"arrays-only-on-request": Verdict.FAIL},
    "tiers-of-nothing": {"cached-details-where-cached": Verdict.FAIL},
}
"""Answers, and the verdict on the requirement whose sentence they break."""
KEPT = {
    "cached-tokens-zero": ["cached-tokens-are-told-alike"],
    "stopped-by-a-pattern": ["stop-has-a-cause", "stop-is-named"],
    "weights-of-another-trainer": ["weights-change-by-update"],
    "refused-during-an-abort-of-all": ["abort-all-gives-back"],
    "null-content-beside-reasoning": ["answer-fits-schema", "chat-content-never-null"],
    "null-content-beside-a-call": ["answer-fits-schema", "chat-content-never-null"],
    "usage-with-the-last-finish": ["incremental-ids-are-new", "samples-are-asked-alike"],
    "drafts-in-a-histogram": ["customized-info-whole", "draft-counts-add-up", "whole-accumulates"],
    "gateway-of-a-dead-worker": ["requests-do-not-break-the-server"],
    "storage-backend-without-storage": ["answer-fits-schema", "cached-details-where-cached"],
}
"""Answers, and the requirements that they keep or of which they say nothing."""


def verdict(case: str, requirement: str) -> Verdict:
    runs = replay([CASES / f"{case}.jsonl"]).runs
    return overall(judged.verdict for judged in judge(runs, [load_requirements()[requirement]]))


@pytest.mark.parametrize(
    ("case", "requirement", "expected"),
    [(case, name, expected) for case, named in BROKEN.items() for name, expected in named.items()],
)
def test_an_answer_that_breaks_the_sentence_violates_the_requirement(case, requirement, expected):
    assert verdict(case, requirement) is expected


@pytest.mark.parametrize(
    ("case", "requirement"), [(case, name) for case, names in KEPT.items() for name in names]
)
def test_an_answer_that_keeps_the_sentence_does_not_violate_the_requirement(case, requirement):
    assert verdict(case, requirement) in {Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED}


def test_every_recorded_answer_is_judged():
    assert {path.stem for path in CASES.iterdir()} == {*BROKEN, *KEPT}
