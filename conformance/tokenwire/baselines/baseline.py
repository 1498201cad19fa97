"""Baselines: files of known failures, each with the reason why it is tolerated.

An entry tolerates one kind of failure of one requirement, in any scenario or, if it is strict, in one. A
table of the file may have strict entries for several scenarios. A wrong entry fails the run, as a new failure
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from tokenwire.ask import Budget
from tokenwire.foreign_files import parse_foreign_toml
from tokenwire.judging.failure_kind import FailureKind, either_way
from tokenwire.typed_table import suggestion, typed
from tokenwire.usage_error import UsageError

FAILURE, FLAKY = "failure", "flaky"


@dataclass(frozen=True)
class Rate:
    """A limit of failures in a number of runs."""

    failures: int
    runs: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `1 of 5`. Raises ValueError."""
        match text.split():
            case [failures, "of", runs] if failures.isdecimal() and runs.isdecimal():
                if 0 < int(failures) < int(runs):
                    return cls(int(failures), int(runs))
        raise ValueError(
            f'at-most is {text!r}, which is not a rate below 1; write at-most = "1 of 5", or make it a '
            "[[failure]] where it always fails"
        )

    def allows(self, failures: int, runs: int) -> bool:
        """True if the failures are within the rate. Fewer runs than `self.runs` count as `self.runs`."""
        return failures * self.runs <= self.failures * max(runs, self.runs)

    def __str__(self) -> str:
        return f"{self.failures} of {self.runs}"


@dataclass(frozen=True)
class Entry:
    """One known kind of failure."""

    requirement: str
    scenario: str
    """The scenario in which it is tolerated; empty for any."""
    dialect: str
    says: str
    """The words of the failure, without parts that vary between runs."""
    fingerprint: str
    """A fingerprint of dialect and words."""
    reason: str = ""
    """The reason why it is tolerated."""
    link: str = ""
    """A link to the work on it."""
    expires: date | None = None
    """The last day on which it is tolerated; None for no end."""
    at_most: Rate | None = None
    """The rate at which a flaky failure may occur; None for one that always occurs."""
    failures: int = 0
    """The counted runs in which a flaky failure occurred."""
    runs: int = 0
    """The counted runs of a flaky failure."""
    seen_in: int = 0
    """The fewest scenarios of a run that showed it when it was written; 0 for a strict entry."""
    table: int = field(default=1, compare=False)
    """The number of its table in its section, from 1."""

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]" if self.scenario else self.requirement

    @property
    def kind(self) -> FailureKind:
        return FailureKind(self.dialect, either_way(self.says))

    @property
    def as_written(self) -> FailureKind:
        """Return the kind with the file's own words, from which the fingerprint is computed."""
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
    """The budget of the run that the entries were written from; None for a recording."""
    filters: tuple[str, ...] = ()
    """The flags that limited that run."""
    broken_off: str = ""
    """The reason why that run ended early (`lasting_end`); empty if it did not."""

    def tables(self) -> list[tuple[Entry, ...]]:
        """Return the entries grouped by table."""
        return [
            tuple(entries)
            for _, entries in groupby(self.entries, key=lambda entry: (entry.section, entry.table))
        ]


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Fields of both kinds of tables."""

    requirement: str
    dialect: str
    says: str
    fingerprint: str
    scenario: str | tuple[str, ...] | None = None
    reason: str = ""
    link: str = ""
    expires: date | None = None

    def __post_init__(self) -> None:
        if self.scenario in ("", ()):
            raise ValueError("scenario is empty; name one, or leave it out to mean any")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{name.replace('_', '-')} is {value}, not a count; write 0 or more")

    def entries(self, number: int, **fields: Any) -> Iterator[Entry]:
        """Yield an entry for each scenario."""
        several = self.scenario if isinstance(self.scenario, tuple) else (self.scenario or "",)
        for scenario in several:
            yield Entry(**{**vars(self), "scenario": scenario, **fields}, table=number)


@dataclass(frozen=True, kw_only=True)
class _Failure(_Table):
    seen_in: int = 0


@dataclass(frozen=True, kw_only=True)
class _Flaky(_Table):
    at_most: str = ""
    failures: int = 0
    runs: int = 0

    def entries(self, number: int, **_: Any) -> Iterator[Entry]:
        if isinstance(self.scenario, tuple):
            raise ValueError("scenario is a list; a flaky failure has a table for each scenario")  # noqa: TRY004
        if self.failures > self.runs:
            raise ValueError(f"{self.failures} failures in {self.runs} runs are impossible; count again")
        return super().entries(number, at_most=Rate.parse(self.at_most))


_TABLES: dict[str, type[_Table]] = {FAILURE: _Failure, FLAKY: _Flaky}


def lasting_end(broken_off: str) -> str:
    """Return the reason why a run ended early, without the part that varies between runs."""
    return broken_off.partition(";")[0]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline. Raises UsageError."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(
            f"baseline {path} cannot be read: {error.strerror}; write one with "
            f"`tokenwire baseline update {path} --from report.json`"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"baseline {path} is not UTF-8: {error}") from error
    return parse_baseline(path, text)


def parse_baseline(path: Path, text: str) -> Baseline:
    """Parse a baseline; `path` is for messages. Raises UsageError."""
    try:
        document = parse_foreign_toml(text)
    except ValueError as error:
        raise UsageError(f"baseline {path} is not TOML: {error}") from error
    budget = document.pop("budget", None)
    filters, broken_off = document.pop("filters", []), document.pop("broken-off", "")
    if not isinstance(filters, list) or not all(isinstance(flag, str) for flag in filters):
        raise UsageError(f'baseline {path}: filters is {filters!r}; write flags, as in ["--gentle"]')
    if not isinstance(broken_off, str):
        raise UsageError(f"baseline {path}: broken-off is {broken_off!r}; write why the run ended early")
    if budget is not None and budget not in list(Budget):
        raise UsageError(f"baseline {path}: budget is {budget!r}; write one of {', '.join(Budget)}")
    for name, tables in document.items():
        if name not in _TABLES:
            known = ("budget", "filters", "broken-off", *_TABLES)
            hint = suggestion(name, known, f"known are {', '.join(known)}")
            raise UsageError(f"baseline {path}: {name!r} is unknown; {hint}")
        if not isinstance(tables, list):
            raise UsageError(f"baseline {path}: {name} is not a list of tables; write [[{name}]]")
    entries = [
        entry
        for section in _TABLES
        for number, table in enumerate(document.get(section, ()), start=1)
        for entry in _entries(f"baseline {path}, {section} {number}", section, number, table)
    ]
    asked = Budget(budget) if budget is not None else None
    return Baseline(path, tuple(entries), asked, tuple(filters), broken_off)


def _entries(where: str, section: str, number: int, table: Any) -> list[Entry]:
    """Return the entries of a table. Raises UsageError."""
    fields = table
    if isinstance(table, Mapping):
        fields = {name.replace("-", "_"): value for name, value in table.items()}
    try:
        return list(typed(_TABLES[section], fields, where).entries(number))
    except ValueError as error:
        words = str(error).removeprefix(f"{where}: ")
        raise UsageError(f"{where}: {words} (`tokenwire baseline update` writes whole entries)") from error
