"""The sentences of the two changes to SGLang's output side, in reports of SGLang over the engine."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from proofs import seed_sentences
from proofs.seed_sentences import OPTIONAL, rows, undecided

from tokenwire.requirement import load_requirements

RECORDINGS = Path(__file__).parent / "recordings"
REPORTS = sorted(RECORDINGS.glob("seeds-*.json.gz"))
"""Of reports of `tokenwire check --engine … --budget quick`: the verdicts of these rows, without evidence."""


def verdicts(report: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(report.read_bytes()))
    return found


def test_the_rows_are_requirements_and_those_that_may_be_unsupported_are_among_them() -> None:
    assert set(rows()) <= load_requirements().keys()
    assert OPTIONAL.keys() <= set(rows())
    assert len(rows()) > 30


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name.removesuffix(".json.gz"))
def test_every_sentence_is_decided_on_sglang(report: Path) -> None:
    assert dict(undecided(verdicts(report))) == {}


def test_both_modes_of_delivery_are_judged_in_one_of_the_reports() -> None:
    decided = {
        row["requirement"]
        for report in REPORTS
        for row in verdicts(report)
        if row["verdict"] in seed_sentences.DECIDED
    }
    assert {
        "customized-info-incremental",
        "customized-info-cumulative",
        "cumulative-series-extend",
    } <= decided


@pytest.mark.parametrize(
    ("requirement", "verdict", "message"),
    [
        ("coalescing-keeps-all", "INCONCLUSIVE", "none is relevant"),
        ("coalescing-keeps-all", "UNSUPPORTED", "load-report: none"),
        ("left-stream-is-ended", "INCONCLUSIVE", "the server died"),
        ("customized-info-cumulative", "UNSUPPORTED", "customized-info: no answer carries it"),
    ],
)
def test_a_sentence_that_is_left_open_is_named(requirement: str, verdict: str, message: str) -> None:
    others = [row for row in verdicts(REPORTS[0]) if row["requirement"] != requirement]
    row = {"requirement": requirement, "verdict": verdict, "message": message}
    assert dict(undecided([*others, row])) == {requirement: f"{verdict}: {message}"}
    assert dict(undecided(others)) == {requirement: "not in the report"}
