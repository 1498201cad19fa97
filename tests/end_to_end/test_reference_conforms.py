"""The suite against the reference engine, as a user runs them: every way to start it, and again from disk."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

import pytest
from reference_configurations import CONFIGURATIONS, Report, check, tokenwire, verdicts
from traceability import PAGE, depends_on_timing, page, places_not_asked, scenarios

from tokenwire.judging.reasons import scenarios_for
from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import load_requirements

STANDARD = [name for name, item in CONFIGURATIONS.items() if "standard" in item.words]
BAD = {Verdict.WARN, Verdict.FAIL, Verdict.HARNESS_ERROR}
INCREMENTAL = ["incremental", "every fourth token"]
"""Configurations without any cumulative stream. Chat streams are incremental everywhere."""


@pytest.fixture(scope="module")
def checked(
    start_reference: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Report, Path]]:
    """Check a configuration, once for all workers: its report, and the folder of what was recorded."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def checked_once(name: str) -> tuple[Report, Path]:
        folder = shared / "checked" / name
        folder.mkdir(parents=True, exist_ok=True)
        recorded = folder / "recorded"
        with (folder / "lock").open("w") as lock:
            flock(lock, LOCK_EX)
            if not (folder / "report.json").exists():
                check(name, start_reference, folder, "--record", str(recorded))
        return json.loads((folder / "report.json").read_text("utf-8")), recorded

    return checked_once


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_reference_violates_nothing(checked: Callable[[str], tuple[Report, Path]], name: str) -> None:
    report, _ = checked(name)
    assert report["target"]["broken_off"] == ""
    assert {row: seen for row, seen in verdicts(report).items() if seen & BAD} == {}


@pytest.mark.parametrize("name", STANDARD)
def test_the_doors_of_a_family_violate_nothing_at_the_quick_budget(
    start_reference: Callable[..., str], name: str, tmp_path: Path
) -> None:
    """All but `/generate`, which other configurations are asked through."""
    configuration = CONFIGURATIONS[name]
    doors = [dialect for dialect in configuration.dialects if dialect != "sglang-generate"]
    words = (word for dialect in doors for word in ("--dialect", dialect))
    url = start_reference(*configuration.flags)
    seen = verdicts(tokenwire(tmp_path, "check", "--target", url, "--budget", "quick", *words))
    assert not {row for row, found in seen.items() if found & BAD}
    assert len({row for row, found in seen.items() if Verdict.PASS in found}) > 100


def test_nothing_that_applies_stays_undecided(checked: Callable[[str], tuple[Report, Path]]) -> None:
    """What the doors of one family never ask for, those of the other show."""
    known = load_requirements()
    seen = [verdicts(checked(name)[0]) for name in STANDARD]
    undecided = {
        row
        for item in seen
        for row in item
        if Verdict.INCONCLUSIVE in item[row] and known[row].contract == "blackbox"
    }
    decided = {row for item in seen for row in item if item[row] & {Verdict.PASS, Verdict.INFO}}
    assert undecided - decided == set()


@pytest.mark.parametrize("name", ["n-gram speculation", "scripts"])
def test_what_a_script_decides_is_decided(checked: Callable[[str], tuple[Report, Path]], name: str) -> None:
    """Cumulative and incremental, and at several intervals; drafted, in chunks and preempted."""
    seen = verdicts(checked(name)[0])
    rows = {name for name, row in load_requirements().items() if row.oracle == "script"}
    rows.remove("script-channels-are-right")  # of servers with parsers
    if name != "scripts":
        rows.remove("script-text-offsets-are-right")  # of completions alone, and of vLLM's
    assert {row: seen[row] for row in rows if seen[row] != {Verdict.PASS}} == {}


@pytest.mark.parametrize("name", ["n-gram speculation"])
def test_scripts_were_drafted_cached_and_preempted(
    checked: Callable[[str], tuple[Report, Path]], name: str
) -> None:
    _, recorded = checked(name)
    counts = Counter[str]()
    for capture in (*recorded.rglob("script-*.jsonl"), *recorded.rglob("script-*/*.jsonl")):
        for field in ("num_retractions", "cached_tokens", "spec_num_correct_drafts"):
            counts[field] += len(re.findall(rf'"{field}\\?":\s*[1-9]', capture.read_text("utf-8")))
    assert len(+counts) == 3, counts


@pytest.mark.parametrize("name", INCREMENTAL)
def test_rows_of_cumulative_streams_are_absent_where_there_are_none(
    checked: Callable[[str], tuple[Report, Path]], name: str
) -> None:
    seen = verdicts(checked(name)[0])
    rows = {row for row in seen if row.startswith("cumulative-") or row.endswith("-cumulative")}
    assert len(rows) > 3
    assert {row for row in rows if seen[row] != {Verdict.UNSUPPORTED}} == set()


@pytest.mark.parametrize("name", ["incremental"])
def test_outputs_were_joined_for_readers_that_do_not_keep_up(
    checked: Callable[[str], tuple[Report, Path]], name: str
) -> None:
    joined = [row for row in checked(name)[0]["verdicts"] if row["requirement"] == "coalescing-keeps-all"]
    assert "slow-reader" in {row["scenario"] for row in joined}


@pytest.mark.parametrize("name", ["retractions"])
def test_the_recording_says_the_same(
    checked: Callable[[str], tuple[Report, Path]], name: str, tmp_path: Path
) -> None:
    live, recorded = checked(name)
    assert verdicts(tokenwire(tmp_path, "replay", str(recorded))) == verdicts(live)


def test_every_requirement_was_seen_to_hold_somewhere(checked: Callable[[str], tuple[Report, Path]]) -> None:
    seen = {
        row["requirement"]
        for name in CONFIGURATIONS
        for row in checked(name)[0]["verdicts"]
        if row["witnesses"] and row["verdict"] in {Verdict.PASS, Verdict.INFO}
    }
    due = [row for row in load_requirements().values() if not (row.excluded or depends_on_timing(row))]
    assert {row.id for row in due} - seen == set()


def test_the_table_of_traceability_is_up_to_date(checked: Callable[[str], tuple[Report, Path]]) -> None:
    reports = {name: checked(name)[0] for name in CONFIGURATIONS}
    written = PAGE.read_text("utf-8")
    assert places_not_asked(written, reports) == []
    assert written == page(reports, like=written), (
        "spec/TRACEABILITY.md is stale: run python tests/end_to_end/traceability.py"
    )


def test_each_requirement_is_shown_by_a_scenario_that_reports_name_for_it(
    checked: Callable[[str], tuple[Report, Path]],
) -> None:
    """Not by each of them: in which of several scenarios a request is preempted depends on timing."""
    shown = scenarios({name: checked(name)[0] for name in CONFIGURATIONS})
    named = {row: set(names) for row, names in scenarios_for().items() if row in shown}
    assert {row: names for row, names in named.items() if not names & {*shown[row]}} == {}
    assert {row for row in shown if row not in named and len(shown[row]) < 3} == set()
