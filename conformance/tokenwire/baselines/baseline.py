"""Baselines: the failures that are known, each with its reason, and nothing beyond them.

An entry tolerates one kind of failure of one requirement, in any scenario or, if it is strict, in one; a
table of the file may hold a strict entry for each of several scenarios. An entry that has become wrong in any
way fails the run, as a new failure does: what is known must stay what is written down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenwire.ask import Budget
from tokenwire.judging.failure_kind import FailureKind
from tokenwire.typed_table import suggestion

FAILURE, FLAKY = "failure", "flaky"


class BaselineError(ValueError):
    """A file is no baseline; the message names the file, the entry and the way out."""


@dataclass(frozen=True)
class Rate:
    """At most so many failures in so many runs."""

    failures: int
    runs: int

    def allows(self, failures: int, runs: int) -> bool:
        """Whether so many failures in so many runs are within the rate; few runs count as `self.runs`."""
        return failures * self.runs <= self.failures * max(runs, self.runs)

    def __str__(self) -> str:
        return f"{self.failures} of {self.runs}"


@dataclass(frozen=True)
class Entry:
    """One known kind of failure."""

    requirement: str
    scenario: str
    """Where it is tolerated; empty for anywhere."""
    dialect: str
    says: str
    """What the failure says, without what differs from run to run."""
    fingerprint: str
    """Of dialect and words."""
    reason: str = ""
    """Why it is tolerated."""
    link: str = ""
    """Where it is being worked on."""
    expires: date | None = None
    """The last day on which it is tolerated."""
    at_most: Rate | None = None
    """The rate at which a flaky failure may occur; None for one that always occurs."""
    failures: int = 0
    """How often it was counted to occur, for a flaky one."""
    runs: int = 0
    """In how many runs it was counted."""
    seen_in: int = 0
    """In how many scenarios of a run it was seen at least, when it was written down for any scenario."""
    table: int = field(default=1, compare=False)
    """Which of the tables of its section holds it, from 1."""

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]" if self.scenario else self.requirement

    @property
    def kind(self) -> FailureKind:
        return FailureKind(self.dialect, self.says)

    @property
    def section(self) -> str:
        return FAILURE if self.at_most is None else FLAKY


@dataclass(frozen=True)
class Baseline:
    """A file of known failures."""

    path: Path
    entries: tuple[Entry, ...] = ()
    budget: Budget | None = None
    """What the run could ask that the entries were written down from; None for one that asked nothing."""

    def tables(self) -> list[tuple[Entry, ...]]:
        """The entries, together as they stand in the file."""
        return [
            tuple(entries)
            for _, entries in groupby(self.entries, key=lambda entry: (entry.section, entry.table))
        ]


def read_baseline(path: Path) -> Baseline:
    """Raises BaselineError for a file that is none."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise BaselineError(
            f"baseline {path} cannot be read: {error.strerror}; write one with "
            f"`tokenwire baseline update {path} --from report.json`"
        ) from error
    except UnicodeDecodeError as error:
        raise BaselineError(f"baseline {path} is not UTF-8: {error}") from error
    return parse_baseline(path, text)


def parse_baseline(path: Path, text: str) -> Baseline:
    """The baseline that a text holds; `path` is for messages. Raises BaselineError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BaselineError(f"baseline {path} is no TOML: {error}") from error
    for name in document:
        if name not in {"budget", FAILURE, FLAKY}:
            hint = suggestion(name, ("budget", FAILURE, FLAKY), "known are budget, failure and flaky")
            raise BaselineError(f"baseline {path}: {name!r} is unknown; {hint}")
    budget = document.get("budget")
    if budget is not None and budget not in list(Budget):
        raise BaselineError(f"baseline {path}: budget is {budget!r}; write one of {', '.join(Budget)}")
    entries = [
        entry
        for section in (FAILURE, FLAKY)
        for table, row in enumerate(_rows(path, document, section), start=1)
        for entry in _entries(f"baseline {path}, {section} {table}", row, table, flaky=section == FLAKY)
    ]
    return Baseline(path, tuple(entries), Budget(budget) if budget is not None else None)


def _rows(path: Path, document: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    rows = document.get(section, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BaselineError(f"baseline {path}: {section} is no list of tables; write [[{section}]]")
    return rows


_TEXTS = ("requirement", "dialect", "says", "fingerprint")
_COUNTS = ("failures", "runs", "seen-in")
_ALL = tuple(each.name.replace("_", "-") for each in fields(Entry) if each.name != "table")


def _scenarios(where: str, row: Mapping[str, Any], *, flaky: bool) -> list[Any]:
    """What stands for the scenario: one, those of a list, or nothing for any."""
    several = row.get("scenario", "")
    if several == "" and "scenario" in row:
        raise BaselineError(f"{where}: scenario is empty; name one, or leave it out to mean any")
    if not isinstance(several, list):
        return [several]
    if flaky:
        raise BaselineError(f"{where}: scenario is a list; a flaky failure is counted by itself, in one each")
    if not several:
        raise BaselineError(f"{where}: scenario is an empty list; name one, or remove the table")
    return several


def _entries(where: str, row: Mapping[str, Any], table: int, *, flaky: bool) -> list[Entry]:
    """What one table holds: an entry for each of its scenarios."""
    return [
        _entry(where, {**row, "scenario": scenario}, table, flaky=flaky)
        for scenario in _scenarios(where, row, flaky=flaky)
    ]


def _entry(where: str, row: Mapping[str, Any], table: int, *, flaky: bool) -> Entry:
    others = {"seen-in"} if flaky else {"at-most", "failures", "runs"}
    allowed = tuple(name for name in _ALL if name not in others)
    for name in row:
        if name not in allowed:
            hint = suggestion(name, allowed, f"known are {', '.join(allowed)}")
            raise BaselineError(f"{where}: {name!r} is unknown; {hint}")
    texts = {name: row.get(name, "") for name in (*_TEXTS, "scenario", "reason", "link")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise BaselineError(f"{where}: {name} is {value!r}, not a text; put it in quotes")
        if name in _TEXTS and not value:
            raise BaselineError(
                f"{where}: {name} is missing; take entries from a report, with `tokenwire baseline update`"
            )
    expires = row.get("expires")
    if expires is not None and type(expires) is not date:
        raise BaselineError(f"{where}: expires is {expires!r}, not a date; write expires = 2030-01-31")
    counts = {name: row.get(name, 0) for name in _COUNTS}
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise BaselineError(f"{where}: {name} is {value!r}, not a count; write {name} = 0")
    if counts["failures"] > counts["runs"]:
        raise BaselineError(
            f"{where}: {counts['failures']} failures in {counts['runs']} runs cannot be; count again"
        )
    rate = _rate(where, row.get("at-most")) if flaky else None
    counted = {name.replace("-", "_"): value for name, value in counts.items()}
    return Entry(**texts, expires=expires, at_most=rate, **counted, table=table)


def _rate(where: str, value: Any) -> Rate:
    match value.split() if isinstance(value, str) else None:
        case [failures, "of", runs] if (
            failures.isdecimal() and runs.isdecimal() and 0 < int(failures) < int(runs)
        ):
            return Rate(int(failures), int(runs))
    raise BaselineError(
        f'{where}: at-most is {value!r}, which is no rate below 1; write at-most = "1 of 5", or make it a '
        "[[failure]] where it always fails"
    )
