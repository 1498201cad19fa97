"""What a baseline tolerates in a run, and what of the baseline itself does not hold.

The same for a run that was just judged and for its JSON report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any

from tokenwire.ask import Budget
from tokenwire.asking.scenario import load_scenarios
from tokenwire.baselines.baseline import Baseline, Entry, Rate
from tokenwire.judging.failure_kind import FailureKind, failure_kinds
from tokenwire.judging.judge import NO_SCENARIO, Judgement
from tokenwire.judging.verdict import Verdict
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.requirement import Level, load_requirements
from tokenwire.typed_table import suggestion

_SURELY_SEEN_IN = 5
"""What was seen in so many scenarios of one run is missed in less than one run of a hundred, even if each of
them showed it by chance (e⁻⁵).
"""
_STALE_AFTER = 3
"""A flaky failure that did not occur in so many times the runs that its rate speaks of is stale."""


class FaultKind(StrEnum):
    """What can be wrong with an entry."""

    STALE = "stale"
    UNMATCHED = "unmatched"
    DIFFERS = "differently failing"
    EXPIRED = "expired"
    UNEXPLAINED = "unexplained"
    TOO_BROAD = "over-broad"
    TOO_OFTEN = "too often"


@dataclass(frozen=True)
class Fault:
    """An entry of a baseline that is wrong, or several of one table, wrong alike. It fails the run."""

    kind: FaultKind
    requirement: str
    scenario: str
    """The first."""
    message: str
    """The file, the entry, what is wrong, and the way out."""

    @property
    def name(self) -> str:
        where = f"{self.requirement}[{self.scenario}]" if self.scenario else self.requirement
        return f"baseline-{self.kind.replace(' ', '-')}[{where}]"


@dataclass(frozen=True)
class _Wrong:
    """What is wrong with an entry, and the way out."""

    kind: FaultKind
    words: str


@dataclass(frozen=True)
class Outcome:
    """What a run says of one requirement in one scenario, live or in its report."""

    requirement: str
    scenario: str
    verdict: Verdict
    kinds: tuple[FailureKind, ...]
    """The ways in which it fails; empty where it does not."""

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]"


@dataclass(frozen=True)
class Held:
    """What became of a run's verdicts once they were held against a baseline."""

    baseline: Baseline
    tolerated: Mapping[str, str]
    """Names of verdicts all of whose failures are known, with the reasons in words."""
    faults: tuple[Fault, ...] = ()
    flaky: tuple[str, ...] = ()
    """What every flaky entry did, and which others may have gone, in words: told whatever came of it."""

    def told(self, faults: Iterable[Fault]) -> dict[str, Any]:
        """The part of the JSON report that speaks of the baseline, with those of its faults that count."""
        return {
            "file": str(self.baseline.path),
            "faults": [{**asdict(fault), "kind": fault.kind.value} for fault in faults],
            "flaky": list(self.flaky),
        }


def speaks_for_all(baseline: Baseline, subject: Subject, budget: Budget | None) -> bool:
    """Whether a run without filters asked at least as much as the run that the entries were written from.

    `budget` is what it could ask; None for a recording, which does not tell.
    """
    enough = baseline.budget is None or (budget is not None and budget.covers(baseline.budget))
    return enough and not subject.broken_off


def outcomes_of(judgements: Iterable[Judgement]) -> list[Outcome]:
    """What a run that was just judged says."""
    return [
        Outcome(
            each.requirement.id,
            each.scenario,
            each.verdict,
            failure_kinds(each) if each.verdict is Verdict.FAIL else (),
        )
        for each in judgements
    ]


def outcomes_in(report: Mapping[str, Any]) -> list[Outcome]:
    """What a JSON report says."""
    return [
        Outcome(
            row["requirement"],
            row["scenario"],
            Verdict(row["verdict"]),
            tuple(FailureKind(kind["dialect"], kind["says"]) for kind in row.get("kinds", ())),
        )
        for row in report["verdicts"]
    ]


def hold_against(baseline: Baseline, run: Sequence[Outcome], *, whole: bool, today: date) -> Held:
    """Hold the verdicts of a run against what is known.

    `whole`: the run asked and judged at least what the entries were written down from, so that a failure
    which is absent has gone. Entries on requirements that were not judged are not held against anything.
    """
    seen = {told.scenario for told in run}
    wrong = {entry: _unsound(entry, baseline, seen, today) for entry in baseline.entries}
    sound = [entry for entry in baseline.entries if wrong[entry] is None]
    occurred = {(told.name, kind) for told in run for kind in told.kinds}
    occurred |= {(told.requirement, kind) for told in run for kind in told.kinds}  # in any scenario
    words: list[str] = []
    for entry in sound:
        happened = (entry.name, entry.kind) in occurred
        wrong[entry] = outlived = _outlived(entry, run, happened=happened, whole=whole)
        if entry.at_most is not None:
            words.append(_flaky_words(entry, happened, whole=whole))
        elif outlived is not None and baseline.budget is not None and _may_be_missed(entry):
            wrong[entry] = None
            words.append(f"not seen: {entry.name} ({entry.dialect}), {_SEEN_RARELY}")
    tolerating = {(entry.name, entry.kind): entry for entry in sound if wrong[entry] is None}
    found = [(entry, what) for entry, what in wrong.items() if what is not None]
    faults = _faults(baseline, [*found, *_twice(baseline)])
    return Held(baseline, _tolerated(run, tolerating), tuple(faults), tuple(dict.fromkeys(words)))


_SEEN_RARELY = "which showed in few scenarios before; remove the entry where you know that it is mended"


def _may_be_missed(entry: Entry) -> bool:
    """Whether one run without a failure does not tell that it has gone: it showed seldom before. A recording
    shows it always.
    """
    return not entry.scenario and 0 < entry.seen_in < _SURELY_SEEN_IN


def _faults(baseline: Baseline, found: Iterable[tuple[Entry, _Wrong]]) -> Iterator[Fault]:
    """One Fault for each table and kind of error; it names the first such entry of the table."""
    alike: dict[tuple[str, int, _Wrong], list[Entry]] = {}
    for entry, what in found:
        alike.setdefault((entry.section, entry.table, what), []).append(entry)
    for (section, table, what), (first, *others) in alike.items():
        name = f"{first.name} and in {len(others)} more" if others else first.name
        message = f"{baseline.path}, {section} {table}, {name}: {what.words}"
        yield Fault(what.kind, first.requirement, first.scenario, message)


def _unsound(entry: Entry, baseline: Baseline, scenarios: Collection[str], today: date) -> _Wrong | None:
    """What is wrong with an entry whatever the run shows."""
    known = load_requirements()
    every = {*load_scenarios(), EXPLORATION, NO_SCENARIO, *scenarios}
    if any(sign in f"{entry.requirement}{entry.scenario}{entry.dialect}" for sign in "*?"):
        words = "it holds a wildcard; write one entry for each failure (`tokenwire baseline update`)"
        return _Wrong(FaultKind.TOO_BROAD, words)
    if entry.requirement not in known:
        words = f"there is no such requirement; {suggestion(entry.requirement, known, 'remove the entry')}"
        return _Wrong(FaultKind.UNMATCHED, words)
    if known[entry.requirement].level is not Level.MUST:
        level = known[entry.requirement].level
        words = f"the requirement is a {level}, which fails no run; remove the entry"
        return _Wrong(FaultKind.UNMATCHED, words)
    nameable = baseline.budget is not None or bool(scenarios)
    if nameable and entry.scenario and entry.scenario not in every:  # a recording names its scenarios itself
        words = f"there is no such scenario; {suggestion(entry.scenario, every, 'remove the entry')}"
        return _Wrong(FaultKind.UNMATCHED, words)
    if entry.kind.fingerprint != entry.fingerprint:
        words = (
            "its fingerprint is not that of its dialect and its words, so that it would tolerate more than "
            "it says; take it from a report again (`tokenwire baseline update`)"
        )
        return _Wrong(FaultKind.TOO_BROAD, words)
    if not entry.reason.strip():
        return _Wrong(FaultKind.UNEXPLAINED, "it has no reason; say why this is tolerated")
    if not entry.link.startswith(("https://", "http://")):
        words = f"its link is {entry.link!r}; give the address of the issue where this is being worked on"
        return _Wrong(FaultKind.UNEXPLAINED, words)
    if entry.expires is not None and today > entry.expires:
        words = f"it expired on {entry.expires}; mend the failure, or say again until when it is tolerated"
        return _Wrong(FaultKind.EXPIRED, words)
    return None


def _twice(baseline: Baseline) -> Iterator[tuple[Entry, _Wrong]]:
    """An entry that says again what another one says."""
    said: set[tuple[str, FailureKind]] = set()
    for entry in baseline.entries:
        if (entry.name, entry.kind) in said:
            yield entry, _Wrong(FaultKind.TOO_BROAD, "another entry says the same; keep one of them")
        said.add((entry.name, entry.kind))


def _outlived(entry: Entry, run: Sequence[Outcome], *, happened: bool, whole: bool) -> _Wrong | None:
    """What is wrong with an entry by what the run shows."""
    if entry.at_most is not None:
        return _outlived_rate(entry, entry.at_most, happened=happened, whole=whole)
    of_requirement = [told for told in run if told.requirement == entry.requirement]
    if happened or not whole or not of_requirement:
        return None
    here = [each for each in of_requirement if entry.scenario in ("", each.scenario)]
    verdicts = {each.verdict for each in here or of_requirement}
    if Verdict.HARNESS_ERROR in verdicts:
        return None
    if Verdict.FAIL in verdicts and here:
        words = f"it fails, but no longer so: {entry.dialect}: {entry.says}; write down how it fails now"
        return _Wrong(FaultKind.DIFFERS, words)
    now = ", ".join(sorted(verdicts))
    words = f"the verdict is {now} now" if here else f"nothing of the kind was seen there ({now})"
    return _Wrong(FaultKind.STALE, f"{words}; remove the entry")


def _counted(entry: Entry, *, happened: bool) -> tuple[int, int]:
    """The failures and runs of a flaky entry, this run among them."""
    return entry.failures + happened, entry.runs + 1


def _outlived_rate(entry: Entry, rate: Rate, *, happened: bool, whole: bool) -> _Wrong | None:
    failures, runs = _counted(entry, happened=happened)
    if happened and not rate.allows(failures, runs):
        words = (
            f"it failed in {failures} of {runs} runs, and may in {rate}; mend it, or make it a [[failure]]"
        )
        return _Wrong(FaultKind.TOO_OFTEN, words)
    if whole and not failures and runs >= _STALE_AFTER * rate.runs:
        words = f"it did not fail in {runs} runs; remove the entry"
        return _Wrong(FaultKind.STALE, words)
    return None


def _flaky_words(entry: Entry, happened: bool, *, whole: bool) -> str:
    failures, runs = _counted(entry, happened=happened)
    now = "failed" if happened else "did not fail" if whole else "was not seen to fail"
    return (
        f"flaky: {entry.name} ({entry.dialect}) {now}; {failures} of {runs} runs with this one, at most "
        f"{entry.at_most}: {entry.reason} ({entry.link})"
    )


def _tolerated(run: Sequence[Outcome], tolerating: Mapping[tuple[str, FailureKind], Entry]) -> dict[str, str]:
    """The names of those that fail in known ways only, in every server of the run, with the reasons.

    `tolerating`: by the name of a verdict, or of a requirement for any scenario.
    """
    found: dict[str, list[Entry | None]] = {}
    for told in run:
        if told.verdict is Verdict.FAIL:
            ways = [
                tolerating.get((told.name, kind)) or tolerating.get((told.requirement, kind))
                for kind in told.kinds
            ]
            found.setdefault(told.name, []).extend(ways or [None])
    return {
        name: "; ".join(dict.fromkeys(f"{one.reason} ({one.link})" for one in entries if one is not None))
        for name, entries in found.items()
        if None not in entries
    }


def with_reasons(judgements: Iterable[Judgement], held: Held) -> list[Judgement]:
    """The judgements, and those that are tolerated say why."""
    return [
        replace(each, known=held.tolerated[each.name])
        if each.verdict is Verdict.FAIL and each.name in held.tolerated
        else each
        for each in judgements
    ]
