"""Rewriting a baseline from reports: what still fails stays as it is written, to the last comment.

The file is edited block by block: a block is one table with the comments right above it. tomlkit, which edits
the tables, takes these comments for the end of the table before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
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
    BaselineError,
    Entry,
    parse_baseline,
    read_baseline,
)
from tokenwire.baselines.tolerance import outcomes_in
from tokenwire.judging.failure_kind import FailureKind
from tokenwire.judging.verdict import ExitStatus

_HEAD = re.compile(rf"^\s*\[\[\s*({FAILURE}|{FLAKY})\s*\]\]")
_MOST_NAMED = 3
_LONGEST_LIST = 100
_RATE_RUNS = 20
_SURPRISE = 0.05
_INTRODUCTION = """\
# Known failures. `tokenwire check --baseline FILE` tolerates exactly these: an entry that no longer fails,
# that fails differently, that names nothing or that has expired fails the run. Give each its reason and the
# address of an issue. `tokenwire baseline update` rewrites this file, and keeps comments, reasons and links.
"""

ANY = ""
"""Stands for whatever scenario."""

Key = tuple[str, str, FailureKind]
"""Requirement, scenario or nothing for any, and how it fails."""


class RefusedUpdate(ValueError):  # noqa: N818  # a fact about the reports
    """A baseline cannot be rewritten from these reports; the message says why."""


@dataclass(frozen=True)
class NewTable:
    """Failures that no entry spoke of, of one kind."""

    requirement: str
    kind: FailureKind
    scenarios: tuple[str, ...]
    """Where it is to be tolerated; empty for anywhere."""
    failures: int
    """In how many runs it occurred, in each of these scenarios."""
    seen_in: int = 0
    """In how many scenarios of a run at least, where it is to be tolerated anywhere."""

    @property
    def name(self) -> str:
        if not self.scenarios:
            return self.requirement
        more = len(self.scenarios) - _MOST_NAMED
        named = ", ".join(self.scenarios[:_MOST_NAMED])
        return f"{self.requirement}[{named}{f' and {more} more' if more > 0 else ''}]"


@dataclass(frozen=True)
class Update:
    """A baseline as it will be, and what changed."""

    text: str
    kept: int
    added: tuple[NewTable, ...]
    """Each wants a reason and a link."""
    removed: tuple[str, ...]


def why_not_whole(report: Mapping[str, Any], budget: Budget | None) -> str:
    """Why a report does not cover a whole baseline of this budget, in words; empty if it does."""
    selection = report.get("selection") or {"filters": [], "budget": None}
    if selection["filters"]:
        return f"was made with {' '.join(selection['filters'])}; update from a run without filters"
    if report["target"].get("broken_off"):
        return f"is of a run that was broken off ({report['target']['broken_off']}); run it again"
    if report["exit_status"] == ExitStatus.HARNESS_ERROR:
        return "is of a run in which the suite itself failed; report that, and update afterwards"
    if report["exit_status"] == ExitStatus.NOTHING_EVALUATED:
        return "holds no evaluated requirement; check that the target answers"
    asked = Budget(selection["budget"]) if selection["budget"] else None
    if budget is not None and (asked is None or not asked.covers(budget)):
        words = f"asked with --budget {asked}" if asked else "of a recording"
        return f"is {words}, and the baseline was written from {budget}; ask with --budget {budget}"
    return ""


def _failed(report: Mapping[str, Any]) -> set[Key]:
    """What a run shows, each in its scenario and in any."""
    return {
        (told.requirement, scenario, kind)
        for told in outcomes_in(report)
        for kind in told.kinds
        for scenario in (told.scenario, ANY)
    }


def _listed(scenarios: Sequence[str]) -> str | Array:
    """The value of `scenario` for one table."""
    if len(scenarios) == 1:
        return scenarios[0]
    names = tomlkit.array()
    names.extend(scenarios)
    return names.multiline(len(names.as_string()) > _LONGEST_LIST)


def _in_any(unsaid: Sequence[Key], runs: _Runs) -> list[NewTable]:
    """A table for each kind of failure, wherever it shows."""
    return [
        NewTable(
            requirement, kind, (), runs.often[requirement, ANY, kind], runs.least_scenarios(requirement, kind)
        )
        for requirement, scenario, kind in unsaid
        if scenario == ANY
    ]


def _in_each(unsaid: Sequence[Key], runs: _Runs) -> list[NewTable]:
    """What fails in one way in every run, in one table for all scenarios; what fails now and then, apart."""
    tables: dict[tuple[str, FailureKind, str], list[str]] = {}
    for requirement, scenario, kind in unsaid:
        if scenario != ANY:
            apart = "" if runs.often[requirement, scenario, kind] == len(runs.failed) else scenario
            tables.setdefault((requirement, kind, apart), []).append(scenario)
    return [
        NewTable(requirement, kind, tuple(scenarios), runs.often[requirement, scenarios[0], kind])
        for (requirement, kind, _), scenarios in tables.items()
    ]


def _proposed_rate(failures: int, runs: int) -> str:
    """The lowest rate under which so few failures in so many runs would be a surprise.

    What was counted is no bound: half of the runs to come would exceed it.
    """
    for most in range(1, _RATE_RUNS):
        rate = most / _RATE_RUNS
        chance = sum(comb(runs, n) * rate**n * (1 - rate) ** (runs - n) for n in range(failures + 1))
        if chance < _SURPRISE:
            return f"{most} of {_RATE_RUNS}"
    return f"{_RATE_RUNS - 1} of {_RATE_RUNS}"


def _block(new: NewTable, runs: int, reason: str, link: str) -> str:
    """A new table; a failure that did not occur in every run is flaky."""
    flaky, kind = new.failures < runs, new.kind
    rate = {"at-most": _proposed_rate(new.failures, runs), "failures": new.failures, "runs": runs}
    table = {
        "requirement": new.requirement,
        **({"scenario": _listed(new.scenarios)} if new.scenarios else {}),
        "dialect": kind.dialect,
        "says": kind.says,
        "fingerprint": kind.fingerprint,
        **({"seen-in": new.seen_in} if new.seen_in and not flaky else {}),
        **(rate if flaky else {}),
        "reason": reason,
        "link": link,
    }
    return tomlkit.dumps({FLAKY if flaky else FAILURE: [table]})


def _blocks(text: str) -> list[str]:
    """The head of a file, and then one block for each table, with the comments right above it."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _HEAD.match(line):
            own: list[str] = []
            while blocks[-1] and blocks[-1][-1].lstrip().startswith("#"):
                own.insert(0, blocks[-1].pop())
            blocks.append(own)
        blocks[-1].append(line)
    return ["".join(lines) for lines in blocks]


def _key(entry: Entry) -> Key:
    return entry.requirement, entry.scenario, entry.kind


def _edited(block: str, **values: Any) -> str:
    """The block with other values in its table; all else stays as it is written."""
    document = tomlkit.parse(block)
    for tables in document.values():
        assert isinstance(tables, AoT)
        tables[0].update(values)
    return tomlkit.dumps(document)


def _entry_blocks(path: Path, text: str, baseline: Baseline) -> list[tuple[str, tuple[Entry, ...]]]:
    """Each block with its entries. Raises BaselineError where the text cannot be taken apart so."""
    _, *blocks = _blocks(text)
    found = [(block, parse_baseline(path, block)) for block in blocks]
    entries = Counter(entry for _, one in found for entry in one.entries)
    if any(len(one.tables()) != 1 for _, one in found) or entries != Counter(baseline.entries):
        raise BaselineError(f"baseline {path} cannot be edited: write each entry as a table of its own")
    return [(block, one.entries) for block, one in found]


@dataclass(frozen=True)
class _Runs:
    """What failed in each of several runs."""

    failed: Sequence[Set[Key]]
    judged: Set[str]
    """The requirements that any of them judged."""

    @cached_property
    def often(self) -> Counter[Key]:
        """In how many runs each failure occurred."""
        return Counter(key for run in self.failed for key in run)

    def least_scenarios(self, requirement: str, kind: FailureKind) -> int:
        """In how many scenarios a failure showed in the run that showed it in the fewest."""
        return min(
            sum((one, how) == (requirement, kind) and scenario != ANY for one, scenario, how in run)
            for run in self.failed
        )

    def is_gone(self, entry: Entry) -> bool:
        """Whether no run shows any more what an entry, not a flaky one, speaks of."""
        return entry.at_most is None and entry.requirement in self.judged and not self.often[_key(entry)]


def _rewritten(block: str, entries: Sequence[Entry], staying: Sequence[Entry], runs: _Runs) -> str:
    """The block of a table of which at least one entry stays."""
    first = staying[0]
    if first.at_most is not None:
        failures = first.failures + runs.often[_key(first)]
        return _edited(block, failures=failures, runs=first.runs + len(runs.failed))
    if len(staying) < len(entries):
        return _edited(block, scenario=_listed([entry.scenario for entry in staying]))
    return block


def updated(
    path: Path,
    reports: Mapping[str, Mapping[str, Any]],
    *,
    reason: str = "",
    link: str = "",
    strict: bool = False,
) -> Update:
    """The baseline rewritten from reports, one for each run; a new one where there is no file.

    `reason` and `link` are those of all entries that are new; `strict` writes these down for the
    scenarios in which they fail, and for no other. So does a file of which all entries are strict already.
    Raises RefusedUpdate if a report does not cover the whole baseline, BaselineError.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    baseline = read_baseline(path) if text else Baseline(path)
    for name, report in reports.items():
        if why := why_not_whole(report, baseline.budget):
            raise RefusedUpdate(f"{name} {why}")
    judged = {row["requirement"] for report in reports.values() for row in report["verdicts"]}
    runs = _Runs([_failed(report) for report in reports.values()], judged)
    blocks: list[str] = []
    kept: list[Entry] = []
    removed: list[str] = []
    said: set[Key] = set()
    for block, entries in _entry_blocks(path, text, baseline):
        staying: list[Entry] = []
        for entry in entries:
            if _key(entry) in said or runs.is_gone(entry):
                removed.append(entry.name)
            else:
                staying.append(entry)
            said.add(_key(entry))
        if staying:
            blocks.append(_rewritten(block, entries, staying, runs))
        kept += staying
    anywhere = {(entry.requirement, entry.kind) for entry in kept if not entry.scenario}
    unsaid = [key for key in runs.often if key not in said and (key[0], key[2]) not in anywhere]
    unsaid.sort(key=lambda key: (key[0], key[2].dialect, key[2].says, key[1]))
    is_strict = strict or bool(kept and all(entry.scenario for entry in kept))
    new = _in_each(unsaid, runs) if is_strict else _in_any(unsaid, runs)
    head = _blocks(text)[0] if text else _beginning(reports)
    whole = _joined([head, *blocks, *(_block(each, len(runs.failed), reason, link) for each in new)])
    parse_baseline(path, whole)
    return Update(whole, len(kept), tuple(new), tuple(removed))


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(stripped for block in blocks if (stripped := block.strip("\n"))) + "\n"


def _beginning(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The head of a new baseline: the smallest budget that any of its reports was asked with."""
    asked = [(report.get("selection") or {}).get("budget") for report in reports.values()]
    budgets = [Budget(one) for one in asked if one is not None]
    if len(budgets) < len(asked):
        return _INTRODUCTION
    smallest = min(budgets, key=list(Budget).index)
    return f'{_INTRODUCTION}budget = "{smallest}"\n'
