"""Baselines: files of known failures, each with the reason why the failure is tolerated.

An entry tolerates one kind of failure of one requirement in all scenarios. A strict entry tolerates the
failure only in the scenario that the entry names. A table in the file may list several scenarios, and then
declares a strict entry for each. An entry that is wrong, for example expired, fails the run like a new
failure.
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
    """A limit on how often a flaky failure may occur, such as 1 of 5 runs."""

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
            "[[failure]] if it always fails"
        )

    def allows(self, failures: int, runs: int) -> bool:
        """True if `failures` of `runs` is within the limit.

        Fewer runs than `self.runs` count as `self.runs`.
        """
        return failures * self.runs <= self.failures * max(runs, self.runs)

    def __str__(self) -> str:
        return f"{self.failures} of {self.runs}"


@dataclass(frozen=True)
class Entry:
    """A known failure of one requirement that a run tolerates."""

    requirement: str
    scenario: str
    """The scenario in which the failure is tolerated. Empty if the failure is tolerated in all scenarios."""
    dialect: str
    says: str
    """The message of the failure, without parts that vary between runs, such as ids."""
    fingerprint: str
    """A fingerprint of `dialect` and `says`.

    If somebody edits these fields, the fingerprint does not fit any more.
    """
    reason: str = ""
    """The reason why the failure is tolerated."""
    link: str = ""
    """The address of the issue about the failure."""
    expires: date | None = None
    """The last day on which the failure is tolerated; None for no end."""
    at_most: Rate | None = None
    """The limit of a flaky failure; None for a failure that occurs in every run."""
    failures: int = 0
    """The number of runs in which a flaky failure occurred. `baseline update` counts these runs."""
    runs: int = 0
    """The number of runs that `baseline update` has counted for a flaky failure."""
    seen_in: int = 0
    """The number of scenarios that showed the failure.

    If there were several runs, the smallest number counts. 0 for a strict entry.
    """
    table: int = field(default=1, compare=False)
    """The position of the entry's table among the tables of the same section, from 1."""

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]" if self.scenario else self.requirement

    @property
    def kind(self) -> FailureKind:
        return FailureKind(self.dialect, either_way(self.says))

    @property
    def as_written(self) -> FailureKind:
        """Return the failure with the message that the file contains, to compare its fingerprint."""
        return FailureKind(self.dialect, self.says)

    @property
    def section(self) -> str:
        return FAILURE if self.at_most is None else FLAKY


@dataclass(frozen=True)
class Baseline:
    """The contents of a baseline file."""

    path: Path
    entries: tuple[Entry, ...] = ()
    budget: Budget | None = None
    """The budget of the run from which the entries were written; None for a recording."""
    filters: tuple[str, ...] = ()
    """The command-line flags that limited that run, such as `--gentle`."""
    broken_off: str = ""
    """The reason why that run ended early, as `lasting_end` shortens the reason.

    Empty if the run did not end early.
    """

    def tables(self) -> list[tuple[Entry, ...]]:
        """Return the entries, grouped by the table of the file that declares them."""
        return [
            tuple(entries)
            for _, entries in groupby(self.entries, key=lambda entry: (entry.section, entry.table))
        ]


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The fields that both kinds of tables have: `[[failure]]` and `[[flaky]]`."""

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
            raise ValueError(
                "scenario is empty; name a scenario, or remove the key to tolerate the violation in every "
                "scenario"
            )
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{name.replace('_', '-')} is {value}, not a count; write 0 or more")

    def entries(self, number: int, **fields: Any) -> Iterator[Entry]:
        """Yield an entry for each scenario that the table lists.

        Without a list, yield one entry for all scenarios.
        """
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
            raise ValueError(
                f"{self.failures} failures in {self.runs} runs are impossible; correct the counts"
            )
        return super().entries(number, at_most=Rate.parse(self.at_most))


_TABLES: dict[str, type[_Table]] = {FAILURE: _Failure, FLAKY: _Flaky}


def lasting_end(broken_off: str) -> str:
    """Return the reason why a run ended early, without the part of the reason that differs in each run."""
    return broken_off.partition(";")[0]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file. Raises UsageError."""
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
    """Parse the text of a baseline file. `path` is used in messages. Raises UsageError."""
    try:
        document = parse_foreign_toml(text)
    except ValueError as error:
        raise UsageError(f"baseline {path} is not TOML: {error}") from error
    budget = document.pop("budget", None)
    filters, broken_off = document.pop("filters", []), document.pop("broken-off", "")
    if not isinstance(filters, list) or not all(isinstance(flag, str) for flag in filters):
        raise UsageError(f'baseline {path}: filters is {filters!r}; write flags, as in ["--gentle"]')
    if not isinstance(broken_off, str):
        raise UsageError(
            f"baseline {path}: broken-off is {broken_off!r}, not a text; write why the run ended early"
        )
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
    """Return the entries that a table declares. Raises UsageError."""
    fields = table
    if isinstance(table, Mapping):
        fields = {name.replace("-", "_"): value for name, value in table.items()}
    try:
        return list(typed(_TABLES[section], fields, where).entries(number))
    except ValueError as error:
        words = str(error).removeprefix(f"{where}: ")
        raise UsageError(f"{where}: {words} (`tokenwire baseline update` writes correct entries)") from error
