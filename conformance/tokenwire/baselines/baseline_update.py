"""Rewrites a baseline from reports.

Entries that still fail stay unchanged, with their comments. The file is split into blocks. Each block is a
table with the comments directly above the table. tomlkit edits each block separately. In a whole file,
tomlkit would treat such a comment as the end of the previous table, and delete the comment together with that
table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import AoT, Array

from tokenwire.ask import Budget
from tokenwire.baselines.baseline import (
    FAILURE,
    FLAKY,
    Baseline,
    Entry,
    lasting_end,
    parse_baseline,
    read_baseline,
)
from tokenwire.baselines.tolerance import ended_as_known, outcomes_in
from tokenwire.judging.failure_kind import FailureKind
from tokenwire.judging.verdict import ExitStatus
from tokenwire.usage_error import UsageError

_HEAD = re.compile(rf"^\s*\[\[\s*({FAILURE}|{FLAKY})\s*\]\]")
_MOST_NAMED = 3
_LONGEST_LIST = 100
_RATE_RUNS = 20
_SURPRISE = 0.05
_INTRODUCTION = """\
# Known failures. `tokenwire check --baseline FILE` tolerates exactly these: an entry that fails differently,
# that names nothing, that has expired, or that was seen in 5 scenarios or more and no longer fails, fails the
# run; of rarer ones that no longer fail, the run prints a note. Give each its reason and the address of an
# issue. `tokenwire baseline update` rewrites this file, and keeps comments, reasons and links.
"""

_ANY = ""
"""The value of a key's scenario that means all scenarios."""
_Key = tuple[str, str, FailureKind]
"""A requirement id, a scenario or `_ANY`, and the kind of failure."""


@dataclass(frozen=True)
class _NewTable:
    """A new failure, in one or several scenarios. It becomes a table of the file."""

    requirement: str
    kind: FailureKind
    scenarios: tuple[str, ...]
    """The scenarios in which the failure will be tolerated. Empty for all scenarios."""
    failures: int
    """The number of runs in which the failure occurred. It is equal for all these scenarios."""
    seen_in: int = 0
    """The number of scenarios that showed the failure.

    If there were several runs, the smallest number counts. 0 if `scenarios` lists the scenarios.
    """
    shown_by: tuple[str, ...] = ()
    """The scenarios that showed the failure; empty if `scenarios` lists them."""

    @property
    def in_words(self) -> str:
        """The requirement, endpoint and failure in words, and the scenarios that showed it."""
        names = self.scenarios or self.shown_by
        more = len(names) - _MOST_NAMED
        named = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{self.requirement}  at {self.kind.dialect}, in {named}: {self.kind.says}"

    def block(self, runs: int, reason: str, link: str) -> str:
        """Return the table as TOML.

        It is a `[[flaky]]` table if some of the runs did not show the failure.
        """
        flaky = self.failures < runs
        table: dict[str, Any] = {"requirement": self.requirement}
        if self.scenarios:
            table["scenario"] = _scenario_value(self.scenarios)
        table |= {
            "dialect": self.kind.dialect,
            "says": self.kind.says,
            "fingerprint": self.kind.fingerprint,
        }
        if flaky:
            table |= {"at-most": _rate(self.failures, runs), "failures": self.failures, "runs": runs}
        elif self.seen_in:
            table["seen-in"] = self.seen_in
        return tomlkit.dumps({FLAKY if flaky else FAILURE: [{**table, "reason": reason, "link": link}]})


@dataclass(frozen=True)
class _Update:
    """The new text of a baseline file, with the changes that it contains."""

    text: str
    kept: int
    added: tuple[_NewTable, ...]
    removed: tuple[str, ...]


def why_incomplete(report: Mapping[str, Any], baseline: Baseline) -> str:
    """Explain why a report is not sufficient to update this baseline; empty if it is sufficient."""
    selection = report.get("selection") or {"filters": [], "budget": None}
    if set(selection["filters"]) != set(baseline.filters):
        made, written = (
            " ".join(flags) or "no filters" for flags in (selection["filters"], baseline.filters)
        )
        return f"was made with {made}, and the baseline was written from a run with {written}; use the same"
    broken_off = report["target"].get("broken_off") or ""
    if broken_off and not ended_as_known(baseline, broken_off):
        return f"is of a run that was broken off ({broken_off}), unlike the run of the baseline; run it again"
    if report["exit_status"] == ExitStatus.HARNESS_ERROR:
        return "is of a run in which the suite itself failed; report that, and update afterwards"
    if report["exit_status"] == ExitStatus.NOTHING_EVALUATED:
        return "has no evaluated requirement; check that the target answers"
    asked = Budget(selection["budget"]) if selection["budget"] else None
    budget = baseline.budget
    if budget is not None and (asked is None or not asked.covers(budget)):
        words = f"asked with --budget {asked}" if asked else "of a recording"
        return f"is {words}, and the baseline was written from {budget}; ask with --budget {budget}"
    return ""


@dataclass(frozen=True)
class _Runs:
    """The failures of several runs, from their reports."""

    failed: Sequence[Set[_Key]]
    """The failures of each run. Each failure has two keys: one with its scenario, one with `_ANY`."""
    judged: Set[str]
    """The requirements that at least one run judged."""

    @classmethod
    def of(cls, reports: Sequence[Mapping[str, Any]]) -> _Runs:
        outcomes = [outcomes_in(report) for report in reports]
        failed = [
            {
                (outcome.requirement, scenario, kind)
                for outcome in run
                for kind in outcome.kinds
                for scenario in (outcome.scenario, _ANY)
            }
            for run in outcomes
        ]
        return cls(failed, {outcome.requirement for run in outcomes for outcome in run})

    @cached_property
    def often(self) -> Counter[_Key]:
        """Count for each failure the runs in which it occurred."""
        return Counter(key for run in self.failed for key in run)

    def is_gone(self, entry: Entry) -> bool:
        """True if an entry's failure occurred in none of the runs. Flaky entries always stay."""
        return entry.at_most is None and entry.requirement in self.judged and not self.often[_key(entry)]

    def new_in_any(self, keys: Sequence[_Key]) -> Iterator[_NewTable]:
        """Yield a table for each new failure. The table tolerates the failure in all scenarios."""
        for key in keys:
            requirement, scenario, kind = key
            if scenario == _ANY:
                seen_in = min(
                    sum((failed, how) == (requirement, kind) and where != _ANY for failed, where, how in run)
                    for run in self.failed
                )
                shown_by = dict.fromkeys(
                    where
                    for run in self.failed
                    for failed, where, how in sorted(run, key=lambda key: key[1])
                    if (failed, how) == (requirement, kind) and where != _ANY
                )
                yield _NewTable(requirement, kind, (), self.often[key], seen_in, tuple(shown_by))

    def new_in_scenarios(self, keys: Sequence[_Key]) -> Iterator[_NewTable]:
        """Yield strict tables for new failures.

        A failure that occurred in every run has one table for all its scenarios. A flaky failure has a table
        for each scenario.
        """
        tables: dict[tuple[str, FailureKind, str], list[_Key]] = {}
        for key in keys:
            requirement, scenario, kind = key
            if scenario != _ANY:
                flaky = "" if self.often[key] == len(self.failed) else scenario
                tables.setdefault((requirement, kind, flaky), []).append(key)
        for (requirement, kind, _), group in tables.items():
            scenarios = tuple(scenario for _, scenario, _ in group)
            yield _NewTable(requirement, kind, scenarios, self.often[group[0]])


def _key(entry: Entry) -> _Key:
    return entry.requirement, entry.scenario, entry.kind


def _scenario_value(scenarios: Sequence[str]) -> str | Array:
    """Return the TOML value of `scenario`: a string for one scenario, a list for several."""
    if len(scenarios) == 1:
        return scenarios[0]
    names = tomlkit.array()
    names.extend(scenarios)
    return names.multiline(len(names.as_string()) > _LONGEST_LIST)


def _rate(failures: int, runs: int) -> str:
    """Return the lowest rate at which this number of failures is not unlikely.

    The observed rate would be a bad limit, because half of the later runs would exceed it.
    """
    for most in range(1, _RATE_RUNS):
        rate = most / _RATE_RUNS
        chance = sum(comb(runs, n) * rate**n * (1 - rate) ** (runs - n) for n in range(failures + 1))
        if chance < _SURPRISE:
            return f"{most} of {_RATE_RUNS}"
    return f"{_RATE_RUNS - 1} of {_RATE_RUNS}"


def blocks_of(text: str, head: re.Pattern[str] = _HEAD) -> list[str]:
    """Split a file into its head and a block for each table.

    Comments directly above a table belong to its block.
    """
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if head.match(line):
            comments: list[str] = []
            while blocks[-1] and blocks[-1][-1].lstrip().startswith("#"):
                comments.insert(0, blocks[-1].pop())
            blocks.append(comments)
        blocks[-1].append(line)
    return ["".join(lines) for lines in blocks]


def _entry_blocks(path: Path, text: str, baseline: Baseline) -> list[tuple[str, tuple[Entry, ...]]]:
    """Return each block with its entries.

    Raises UsageError if a table is written in a TOML syntax that cannot be split into blocks.
    """
    _, *blocks = blocks_of(text)
    found = [(block, parse_baseline(path, block)) for block in blocks]
    # An inline array has no `[[table]]` line, so its entries are in no block.
    entries = Counter(entry for _, part in found for entry in part.entries)
    if any(len(part.tables()) != 1 for _, part in found) or entries != Counter(baseline.entries):
        raise UsageError(
            f"baseline {path} cannot be edited: write each entry as its own [[failure]] or [[flaky]] table"
        )
    return [(block, part.entries) for block, part in found]


def edited(block: str, **values: Any) -> str:
    """Return the block with new values in its table. The rest of the text is unchanged."""
    document = tomlkit.parse(block)
    for tables in document.values():
        assert isinstance(tables, AoT)
        tables[0].update(values)
    return tomlkit.dumps(document)


def _rewritten(block: str, entries: Sequence[Entry], staying: Sequence[Entry], runs: _Runs) -> str:
    """Return the new text of a block. `staying`: its entries that stay, at least one."""
    first = staying[0]
    if first.at_most is not None:
        failures = first.failures + runs.often[_key(first)]
        return edited(block, failures=failures, runs=first.runs + len(runs.failed))
    if len(staying) < len(entries):
        return edited(block, scenario=_scenario_value([entry.scenario for entry in staying]))
    return block


def updated(
    path: Path,
    reports: Mapping[str, Mapping[str, Any]],
    *,
    reason: str = "",
    link: str = "",
    strict: bool = False,
) -> _Update:
    """Return a baseline updated from reports, one for each run. If the file does not exist, the baseline is
    new.

    New entries get `reason` and `link`. With `strict`, or if all entries of the file are strict, a new entry
    applies only to the scenarios in which it failed. Raises UsageError if the file is invalid, or if a report
    is not sufficient.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    head = _beginning(reports)
    baseline = read_baseline(path) if text else parse_baseline(path, head)
    for name, report in reports.items():
        if why := why_incomplete(report, replace(baseline, budget=baseline.budget if text else None)):
            raise UsageError(f"{name} {why}")
    runs = _Runs.of(list(reports.values()))
    blocks: list[str] = []
    kept: list[Entry] = []
    removed: list[str] = []
    known: set[_Key] = set()
    for block, entries in _entry_blocks(path, text, baseline):
        staying: list[Entry] = []
        for entry in entries:
            if _key(entry) in known or runs.is_gone(entry):
                removed.append(f"{entry.name}  at {entry.dialect}: {entry.says}")
            else:
                staying.append(entry)
            known.add(_key(entry))
        if staying:
            blocks.append(_rewritten(block, entries, staying, runs))
        kept += staying
    anywhere = {(entry.requirement, entry.kind) for entry in kept if not entry.scenario}
    unknown = [key for key in runs.often if key not in known and (key[0], key[2]) not in anywhere]
    unknown.sort(key=lambda key: (key[0], key[2].dialect, key[2].says, key[1]))
    is_strict = strict or bool(kept and all(entry.scenario for entry in kept))
    added = tuple(runs.new_in_scenarios(unknown) if is_strict else runs.new_in_any(unknown))
    blocks = [
        blocks_of(text)[0] if text else head,
        *blocks,
        *(table.block(len(reports), reason, link) for table in added),
    ]
    text = "\n\n".join(stripped for block in blocks if (stripped := block.strip("\n"))) + "\n"
    parse_baseline(path, text)
    return _Update(text, len(kept), added, tuple(removed))


def _beginning(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text above the tables of a new baseline.

    Its budget is the smallest of the reports, if all have one. The filters are those of the first report. The
    first report of a run that ended early gives the reason.
    """
    selections = [report.get("selection") or {} for report in reports.values()]
    named = [selection.get("budget") for selection in selections]
    budgets = [Budget(name) for name in named if name is not None]
    head: dict[str, Any] = {}
    if len(budgets) == len(named):
        head["budget"] = str(min(budgets, key=list(Budget).index))
    if filters := selections[0].get("filters"):
        head["filters"] = list(filters)
    ends = [lasting_end(report["target"].get("broken_off") or "") for report in reports.values()]
    if end := next(filter(None, ends), ""):
        head["broken-off"] = end
    return _INTRODUCTION + tomlkit.dumps(head)
