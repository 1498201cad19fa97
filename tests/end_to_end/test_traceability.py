"""No gap between sentences, checks and faults; and a gap would be found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from traceability import gaps, merged_scenarios, page, places_not_asked, read_page

from tokenwire.checks.check import CHECKS
from tokenwire.requirement import Requirement, load_requirements
from tokenwire_faults.catalogue import KnownFault, load_faults

KEPT = "ids-are-counted"


def test_there_is_no_gap() -> None:
    assert gaps(load_requirements(), CHECKS, load_faults()) == []


@pytest.fixture
def row() -> Requirement:
    return replace(load_requirements()[KEPT], kills=("a-fault",))


@pytest.fixture
def fault() -> KnownFault:
    return replace(next(iter(load_faults().values())), name="a-fault", unseen="")


def test_each_gap_is_named(row: Requirement, fault: KnownFault) -> None:
    faults = {"a-fault": fault}
    assert gaps({KEPT: row}, [KEPT], faults) == []
    assert gaps({KEPT: row}, [], faults) == [f"row {KEPT} has neither a check nor a reason to have none"]
    assert gaps({KEPT: row}, [KEPT, "loose"], faults) == ["check loose has no row"]
    assert gaps({KEPT: row}, [KEPT], {}) == [f"row {KEPT} names a-fault, and there is no such fault"]
    other = faults | {"other": replace(fault, name="other")}
    assert gaps({KEPT: row}, [KEPT], other) == [
        "fault other is named by no row, and does not say why it is unseen"
    ]
    assert gaps({KEPT: replace(row, kills=())}, [KEPT], {}) == [
        f"row {KEPT} names no fault that turns it red"
    ]


def test_reasons_close_gaps(row: Requirement, fault: KnownFault) -> None:
    excluded = {KEPT: replace(row, kills=(), excluded="nobody can look at it")}
    assert gaps(excluded, [], {"a-fault": replace(fault, unseen="it is a legal answer")}) == []


def report(**witnesses: int) -> dict[str, Any]:
    rows = [
        {"requirement": KEPT, "scenario": scenario, "verdict": "PASS", "witnesses": count}
        for scenario, count in witnesses.items()
    ]
    return {"verdicts": rows}


def test_the_page_names_check_faults_and_where_most_was_seen() -> None:
    written = page({"one": report(few=3, many=9), "two": report(some=8)})
    (line,) = [line for line in written.splitlines() if line.startswith(f"| **{KEPT}**")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "`record._ids_are_counted`"
    assert cells[2].split(", ") == [f"`{fault}`" for fault in load_requirements()[KEPT].kills]
    assert cells[4] == "one: `many`"
    assert read_page(written) == {KEPT: ("one", "many")}


def test_the_page_keeps_what_it_said_as_long_as_that_is_seen() -> None:
    written = page({"one": report(few=3)})
    more = {"one": report(few=3, many=9)}
    assert page(more, like=written) == written
    assert places_not_asked(written, more) == []
    assert places_not_asked(written, {"one": report(many=9)}) == [f"{KEPT} is not asked in few (one)"]


def test_a_narrow_run_adds_the_scenarios_of_a_new_requirement_and_keeps_the_others() -> None:
    written = {"asked-or-refused": ["a"]}
    assert merged_scenarios({KEPT: ["c"]}, written, ["asked-or-refused"]) == written | {KEPT: ["c"]}
    assert merged_scenarios({"asked-or-refused": ["b"]}, written, [KEPT]) == {"asked-or-refused": ["a", "b"]}
    assert merged_scenarios({KEPT: ["c"]}, written, [KEPT]) == written, "nearly all scenarios show it"


def test_the_page_does_not_promise_what_depends_on_timing() -> None:
    burst = "stream-comes-in-a-burst"
    seen = {"requirement": burst, "scenario": "long", "verdict": "PASS", "witnesses": 1}
    before = f"| **{burst}** A sentence. | a check | a fault | 1 | one: `long` |"
    written = page({"one": {"verdicts": [seen]}}, like=before)
    (line,) = [line for line in written.splitlines() if line.startswith(f"| **{burst}**")]
    assert line.endswith("| depends on timing |")
    assert read_page(written) == {}


def test_every_row_stands_on_the_page() -> None:
    written = page({})
    assert [name for name in load_requirements() if f"| **{name}** " not in written] == []
