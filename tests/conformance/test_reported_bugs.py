"""Captures of reported and planted bugs: the row that each breaks, and none on the good twin."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from planting import EDITS, planted

from tokenwire.judging.causes import causes
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements

RECORDINGS = Path(__file__).parent / "recordings"
TABLE: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    (RECORDINGS / "reported-bugs.yaml").read_text("utf-8")
)
MADE = TABLE["made"]
CASES = {**TABLE["reports"], **TABLE["planted"]}
RED = {Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR}


@cache
def bundle() -> dict[str, list[Any]]:
    with gzip.open(RECORDINGS / "reported-bugs.json.gz", "rt", encoding="utf-8") as file:
        captures: dict[str, list[Any]] = json.load(file)
    return captures


def judged(folder: Path, capture: str) -> Iterable[Judgement]:
    """Return what is judged of a capture."""
    return judged_lines(folder, bundle()[capture])


def judged_lines(folder: Path, lines: Iterable[Any]) -> list[Judgement]:
    file = folder / "capture.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return judge(replay([file]).runs)


def red_rows(folder: Path, capture: str) -> dict[str, str]:
    """Return the rows that a capture breaks, each with its verdict."""
    return red_of(judged(folder, capture))


def red_of(judgements: Iterable[Judgement]) -> dict[str, str]:
    found = sorted(judgements, key=lambda one: one.verdict is Verdict.FAIL)
    return {one.requirement.id: one.verdict.name for one in found if one.verdict in RED}


@pytest.mark.parametrize("case", [name for name, row in CASES.items() if "red" in row])
def test_a_bug_breaks_its_row(case: str, tmp_path: Path) -> None:
    found, due = red_rows(tmp_path, f"{case}/bad"), CASES[case]["red"]
    assert {name: found.get(name) for name in due} == due


@pytest.mark.parametrize("case", [name for name, row in TABLE["reports"].items() if "red" in row])
def test_the_good_twin_breaks_none(case: str, tmp_path: Path) -> None:
    found = red_rows(tmp_path, f"{case}/good")
    assert set(found) == (set(CASES[case]["red"]) if "good" in CASES[case] else set())


@pytest.mark.parametrize("case", [name for name, row in CASES.items() if "legal" in row])
def test_what_is_legal_breaks_none(case: str, tmp_path: Path) -> None:
    assert red_rows(tmp_path, f"{case}/bad") == {}


def test_each_capture_is_decided_or_has_a_reason() -> None:
    kinds = ("red", "legal", "run", "unknown")
    assert {name: [kind for kind in kinds if kind in row] for name, row in CASES.items()} == {
        name: [kind] for name, row in CASES.items() for kind in kinds if kind in row
    }
    twins = {
        f"{name}/{twin}"
        for name, row in TABLE["reports"].items()
        if row.keys() & {"red", "legal"}
        for twin in ("good", "bad")
    }
    assert set(bundle()) == twins | {f"{name}/bad" for name in TABLE["planted"]}


@pytest.mark.parametrize("case", MADE)
def test_a_fault_that_is_planted_here_breaks_its_rows(case: str, tmp_path: Path) -> None:
    row = MADE[case]
    lines = planted(
        bundle()[row["in"]], EDITS[row["edit"]], row.get("asks", {}), streams=row.get("streams", False)
    )
    judgements = judged_lines(tmp_path, lines)
    found, due = red_of(judgements), row.get("red", {})
    assert {name: found.get(name) for name in due or found} == due
    assert len(found) - len(causes(judgements).folded) == row.get("causes", 0)


def test_planting_nothing_changes_nothing(tmp_path: Path) -> None:
    """The capture is written anew, with one read for each stream, and is judged alike."""
    for capture in sorted({row["in"] for row in MADE.values()}):
        before, after = (
            {one.requirement.id: one.verdict for one in judged_lines(tmp_path, lines)}
            for lines in (bundle()[capture], planted(bundle()[capture], EDITS["unchanged"], {}))
        )
        assert before == after


SEEN_IN_RUNS = {name: row["run"] for name, row in TABLE["reports"].items() if "run" in row} | TABLE[
    "described"
]


@pytest.mark.parametrize("case", SEEN_IN_RUNS)
def test_a_bug_that_no_capture_shows_has_a_fault_that_breaks_its_row(case: str) -> None:
    """The kill matrix runs the fault, with the scenarios that show it."""
    row, fault = SEEN_IN_RUNS[case]["row"], SEEN_IN_RUNS[case]["fault"]
    assert fault in load_requirements()[row].kills


def test_each_row_of_a_report_is_provoked() -> None:
    """A fault of the reference violates each row that a report breaks, and a scenario shows the fault."""
    due = {row for case in CASES.values() for row in case.get("red", ())}
    assert {row for row in due if not load_requirements()[row].kills} == set()


@pytest.mark.parametrize(
    ("case", "row", "words"),
    [
        (
            "03-tool-use-opens-without-input",
            "events-fit-schema",
            '/content_block: "input" is a required property',
        ),
        ("32-all-calls-have-index-0", "calls-are-numbered", "has the index 0, like the call"),
        ("66-empty-id-and-name-in-later-pieces", "call-is-named-once", "has the id '' and the name ''"),
        (
            "43-aborted-in-the-queue-stream-is-cut",
            "stream-ends-cleanly",
            "the connection ended inside the body",
        ),
    ],
)
def test_the_words_name_the_field_and_its_value(case: str, row: str, words: str, tmp_path: Path) -> None:
    [found] = (one for one in judged(tmp_path, f"{case}/bad") if one.requirement.id == row and one.violations)
    assert words in found.violations[0].message
