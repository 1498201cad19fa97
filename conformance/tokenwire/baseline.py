"""Baselines: the failures that are known, each with its reason, and nothing beyond them.

An entry tolerates one kind of failure of one requirement in one scenario. An entry that has become wrong in
any way fails the run, as a new failure does: what is known must stay what is written down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenwire.failure_kind import FailureKind, failure_kinds
from tokenwire.judge import NO_SCENARIO, Judgement
from tokenwire.report.subject import EXPLORATION
from tokenwire.requirement import Level, load_requirements
from tokenwire.scenario import Budget, load_scenarios
from tokenwire.suggestion import suggestion
from tokenwire.verdict import Verdict

FAILURE, FLAKY = "failure", "flaky"
_STALE_AFTER = 3
"""A flaky failure that did not occur in so many times the runs that its rate speaks of is stale."""


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

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]"

    @property
    def kind(self) -> FailureKind:
        return FailureKind(self.dialect, self.says)


@dataclass(frozen=True)
class Baseline:
    """A file of known failures."""

    path: Path
    entries: tuple[Entry, ...] = ()
    budget: Budget | None = None
    """What the run could ask that the entries were written down from; None for one that asked nothing."""


class FaultKind(StrEnum):
    """What can be wrong with an entry."""

    STALE = "stale"
    UNMATCHED = "unmatched"
    DIFFERS = "differently failing"
    EXPIRED = "expired"
    TOO_BROAD = "over-broad"
    TOO_OFTEN = "too often"


@dataclass(frozen=True)
class Fault:
    """An entry of a baseline that is wrong: it fails the run."""

    kind: FaultKind
    requirement: str
    scenario: str
    message: str
    """The file, the entry, what is wrong, and the way out."""

    @property
    def name(self) -> str:
        return f"baseline-{self.kind.replace(' ', '-')}[{self.requirement}[{self.scenario}]]"


@dataclass(frozen=True)
class Held:
    """What became of a run's verdicts once they were held against a baseline."""

    baseline: Baseline
    judgements: tuple[Judgement, ...]
    """The same, and those that are known say why."""
    faults: tuple[Fault, ...]
    flaky: tuple[str, ...]
    """What every flaky entry did, in words: told whatever came of it."""

    def told(self, faults: Iterable[Fault]) -> dict[str, Any]:
        """The part of the JSON report that speaks of the baseline, with those of its faults that count."""
        return {
            "file": str(self.baseline.path),
            "faults": [{**asdict(fault), "kind": fault.kind.value} for fault in faults],
            "flaky": list(self.flaky),
        }


# Reading


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
        _entry(f"baseline {path}, {section} {position}", row, flaky=section == FLAKY)
        for section in (FAILURE, FLAKY)
        for position, row in enumerate(_rows(path, document, section), start=1)
    ]
    return Baseline(path, tuple(entries), Budget(budget) if budget is not None else None)


def _rows(path: Path, document: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    rows = document.get(section, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BaselineError(f"baseline {path}: {section} is no list of tables; write [[{section}]]")
    return rows


_TEXTS = ("requirement", "scenario", "dialect", "says", "fingerprint")
_COUNTS = ("failures", "runs")
_ALL = tuple(field.name.replace("_", "-") for field in fields(Entry))


def _entry(where: str, row: Mapping[str, Any], *, flaky: bool) -> Entry:
    allowed = _ALL if flaky else tuple(name for name in _ALL if name not in {"at-most", *_COUNTS})
    for name in row:
        if name not in allowed:
            raise BaselineError(
                f"{where}: {name!r} is unknown; {suggestion(name, allowed, f'known are {", ".join(allowed)}')}"
            )
    texts = {name: row.get(name, "") for name in (*_TEXTS, "reason", "link")}
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
    return Entry(**texts, expires=expires, at_most=rate, **counts)


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


# Judging


def hold_against(baseline: Baseline, judgements: Sequence[Judgement], *, whole: bool, today: date) -> Held:
    """Hold the verdicts of a run against what is known.

    `whole`: the run asked and judged at least what the entries were written down from, so that a failure
    which is absent has gone. Entries on requirements that were not judged are not held against anything.
    """
    seen = {judgement.scenario for judgement in judgements}
    faults = {entry: _unsound(entry, baseline, seen, today) for entry in baseline.entries}
    sound = [entry for entry in baseline.entries if faults[entry] is None]
    occurred = {
        (judgement.name, kind)
        for judgement in judgements
        if judgement.verdict is Verdict.FAIL
        for kind in failure_kinds(judgement)
    }
    flaky: list[str] = []
    for entry in sound:
        faults[entry] = _outlived(entry, baseline, judgements, occurred, whole=whole)
        if entry.at_most is not None:
            happened = (entry.name, entry.kind) in occurred
            flaky.append(_flaky_words(entry, happened, whole=whole))
    tolerating = {(entry.name, entry.kind): entry for entry in sound if faults[entry] is None}
    found = [fault for fault in faults.values() if fault is not None]
    found += _twice(baseline)
    return Held(
        baseline, tuple(_known(judgement, tolerating) for judgement in judgements), tuple(found), tuple(flaky)
    )


def _fault(kind: FaultKind, entry: Entry, baseline: Baseline, words: str) -> Fault:
    position = [each for each in baseline.entries if (each.at_most is None) == (entry.at_most is None)].index(
        entry
    )
    section = FAILURE if entry.at_most is None else FLAKY
    message = f"{baseline.path}, {section} {position + 1}, {entry.name}: {words}"
    return Fault(kind, entry.requirement, entry.scenario, message)


def _unsound(entry: Entry, baseline: Baseline, scenarios: Collection[str], today: date) -> Fault | None:
    """What is wrong with an entry whatever the run shows."""
    known = load_requirements()
    every = {*load_scenarios(), EXPLORATION, NO_SCENARIO, *scenarios}
    if any(sign in f"{entry.requirement}{entry.scenario}{entry.dialect}" for sign in "*?"):
        words = "it holds a wildcard; write one entry for each failure (`tokenwire baseline update`)"
        return _fault(FaultKind.TOO_BROAD, entry, baseline, words)
    if entry.requirement not in known:
        words = f"there is no such requirement; {suggestion(entry.requirement, known, 'remove the entry')}"
        return _fault(FaultKind.UNMATCHED, entry, baseline, words)
    if known[entry.requirement].level is not Level.MUST:
        level = known[entry.requirement].level
        words = f"the requirement is a {level}, which fails no run; remove the entry"
        return _fault(FaultKind.UNMATCHED, entry, baseline, words)
    if entry.scenario not in every:
        words = f"there is no such scenario; {suggestion(entry.scenario, every, 'remove the entry')}"
        return _fault(FaultKind.UNMATCHED, entry, baseline, words)
    if entry.kind.fingerprint != entry.fingerprint:
        words = (
            "its fingerprint is not that of its dialect and its words, so that it would tolerate more than it "
            "says; take it from a report again (`tokenwire baseline update`)"
        )
        return _fault(FaultKind.TOO_BROAD, entry, baseline, words)
    if not entry.reason.strip():
        return _fault(FaultKind.TOO_BROAD, entry, baseline, "it has no reason; say why this is tolerated")
    if not entry.link.startswith(("https://", "http://")):
        words = f"its link is {entry.link!r}; give the address of the issue where this is being worked on"
        return _fault(FaultKind.TOO_BROAD, entry, baseline, words)
    if entry.expires is not None and today > entry.expires:
        words = f"it expired on {entry.expires}; mend the failure, or say again until when it is tolerated"
        return _fault(FaultKind.EXPIRED, entry, baseline, words)
    return None


def _twice(baseline: Baseline) -> Iterator[Fault]:
    """An entry that says again what another one says."""
    said: set[tuple[str, FailureKind]] = set()
    for entry in baseline.entries:
        if (entry.name, entry.kind) in said:
            words = "another entry says the same; keep one of them"
            yield _fault(FaultKind.TOO_BROAD, entry, baseline, words)
        said.add((entry.name, entry.kind))


def _outlived(
    entry: Entry,
    baseline: Baseline,
    judgements: Sequence[Judgement],
    occurred: Collection[tuple[str, FailureKind]],
    *,
    whole: bool,
) -> Fault | None:
    """What is wrong with an entry by what the run shows."""
    happened = (entry.name, entry.kind) in occurred
    if entry.at_most is not None:
        return _outlived_rate(entry, entry.at_most, baseline, happened=happened, whole=whole)
    of_requirement = [each for each in judgements if each.requirement.id == entry.requirement]
    if happened or not whole or not of_requirement:
        return None
    here = [each for each in of_requirement if each.scenario == entry.scenario]
    verdicts = {each.verdict for each in here or of_requirement}
    if Verdict.HARNESS_ERROR in verdicts:
        return None
    if any(each.verdict is Verdict.FAIL for each in here):
        words = f"it fails, but no longer so: {entry.dialect}: {entry.says}; write down how it fails now"
        return _fault(FaultKind.DIFFERS, entry, baseline, words)
    if here:
        words = f"the verdict is {', '.join(sorted(verdicts))} now; remove the entry"
    else:
        words = f"nothing of the kind was seen there ({', '.join(sorted(verdicts))}); remove the entry"
    return _fault(FaultKind.STALE, entry, baseline, words)


def _counted(entry: Entry, *, happened: bool) -> tuple[int, int]:
    """The failures and runs of a flaky entry, this run among them."""
    return entry.failures + happened, entry.runs + 1


def _outlived_rate(
    entry: Entry, rate: Rate, baseline: Baseline, *, happened: bool, whole: bool
) -> Fault | None:
    failures, runs = _counted(entry, happened=happened)
    if happened and not rate.allows(failures, runs):
        words = (
            f"it failed in {failures} of {runs} runs, and may in {rate}; mend it, or make it a [[failure]]"
        )
        return _fault(FaultKind.TOO_OFTEN, entry, baseline, words)
    if whole and not failures and runs >= _STALE_AFTER * rate.runs:
        words = f"it did not fail in {runs} runs; remove the entry"
        return _fault(FaultKind.STALE, entry, baseline, words)
    return None


def _flaky_words(entry: Entry, happened: bool, *, whole: bool) -> str:
    failures, runs = _counted(entry, happened=happened)
    now = "failed" if happened else "did not fail" if whole else "was not seen to fail"
    return (
        f"flaky: {entry.name} ({entry.dialect}) {now}; {failures} of {runs} runs with this one, at most "
        f"{entry.at_most}: {entry.reason} ({entry.link})"
    )


def _known(judgement: Judgement, tolerating: Mapping[tuple[str, FailureKind], Entry]) -> Judgement:
    """The judgement, with the reason where each kind of its failures is tolerated."""
    if judgement.verdict is not Verdict.FAIL:
        return judgement
    entries = [tolerating.get((judgement.name, kind)) for kind in failure_kinds(judgement)]
    reasons = dict.fromkeys(f"{entry.reason} ({entry.link})" for entry in entries if entry is not None)
    return replace(judgement, known="; ".join(reasons)) if entries and None not in entries else judgement
