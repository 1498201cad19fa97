"""Applies a baseline to a run: finds the tolerated failures, and the wrong entries of the baseline.

The input is either a list of judgements or a JSON report. The result is the same for both inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any

from tokenwire.ask import Budget
from tokenwire.asking.scenario import load_scenarios
from tokenwire.baselines.baseline import Baseline, Entry, lasting_end
from tokenwire.judging.causes import causes
from tokenwire.judging.failure_kind import FailureKind, either_way, failure_kinds
from tokenwire.judging.judge import Judgement
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.verdict import Verdict
from tokenwire.judging.workers_own import workers_own
from tokenwire.report.subject import EXPLORATION
from tokenwire.requirement import Level, load_requirements
from tokenwire.typed_table import suggestion

_SURELY_SEEN_IN = 5
"""A failure that this many scenarios showed is expected in the next run.

Even if each scenario shows it only by chance, the probability that none does is below 1 % (e⁻⁵).
"""
_STALE_AFTER = 3
"""A flaky entry `at-most = "1 of 5"` is stale after 3 * 5 runs without a failure."""


class _FaultKind(StrEnum):
    """Kinds of wrong entries."""

    STALE = "stale"
    UNMATCHED = "unmatched"
    DIFFERS = "differently failing"
    EXPIRED = "expired"
    UNEXPLAINED = "unexplained"
    TOO_BROAD = "over-broad"
    TOO_OFTEN = "too often"


@dataclass(frozen=True)
class Fault:
    """A wrong entry, or several entries of one table with the same error. The fault fails the run."""

    kind: _FaultKind
    requirement: str
    scenario: str
    """The scenario of the first wrong entry."""
    message: str
    """The file, the entry, the error, and a way to correct it."""

    @property
    def name(self) -> str:
        where = f"{self.requirement}[{self.scenario}]" if self.scenario else self.requirement
        return f"baseline-{self.kind.replace(' ', '-')}[{where}]"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a requirement in a scenario. An outcome is made from judgements or from a report."""

    requirement: str
    scenario: str
    verdict: Verdict
    kinds: tuple[FailureKind, ...]
    """The kinds of failures that occurred; empty if the verdict is not FAIL."""
    follows_from: str = ""
    """The requirement whose violation explains these failures; empty if there is none."""

    @property
    def name(self) -> str:
        return f"{self.requirement}[{self.scenario}]"


@dataclass(frozen=True)
class BaselineResult:
    """The result of applying a baseline to a run."""

    baseline: Baseline
    tolerated: Mapping[str, str]
    """The reason for each tolerated outcome, by the name of the outcome.

    An outcome is tolerated if all its failures are known.
    """
    faults: tuple[Fault, ...] = ()
    flaky: tuple[str, ...] = ()
    """Remarks: the results of flaky entries, and known failures that did not occur."""
    unseen: int = 0
    """The number of entries whose failure did not occur in a run that does not cover the baseline."""
    uncovered: str = ""
    """The reason why the run does not cover the baseline; empty if it does."""

    def as_json(self, faults: Iterable[Fault]) -> dict[str, Any]:
        """Return the member `baseline` of the JSON report. `faults`: the wrong entries to include."""
        return {
            "file": str(self.baseline.path),
            "faults": [{**asdict(fault), "kind": fault.kind.value} for fault in faults],
            "flaky": list(self.flaky),
            **(
                {
                    "unseen": {
                        "entries": self.unseen,
                        "of": len(self.baseline.entries),
                        "because": self.uncovered,
                    }
                }
                if self.unseen
                else {}
            ),
        }


def why_uncovered(
    baseline: Baseline, broken_off: str, budget: Budget | None, filters: Iterable[str] = ()
) -> str:
    """Explain why a run does not cover the run from which the baseline was written.

    Empty if it covers that run, so that a missing failure was fixed.

    `broken_off`: the reason why the run ended early; empty if it did not. `budget`: the budget of the run;
    None for a recording, which has no budget. `filters`: the command-line flags that limited the run.
    """
    reasons = []
    if baseline.budget is not None and (budget is None or not budget.covers(baseline.budget)):
        asked = f"asked with --budget {budget}" if budget is not None else "is a recording"
        reasons.append(f"{asked}, and the run of the baseline asked with --budget {baseline.budget}")
    if broken_off and not ended_as_known(baseline, broken_off):
        reasons.append("ended early")
    if fewer := [flag for flag in filters if flag not in baseline.filters]:
        reasons.append(f"was made with {' '.join(fewer)}, unlike the run of the baseline")
    return f"this run {'; it '.join(reasons)}" if reasons else ""


def ended_as_known(baseline: Baseline, broken_off: str) -> bool:
    """True if a run ended early for the same reason as the run from which the baseline was written."""
    return bool(broken_off) and lasting_end(broken_off) == baseline.broken_off


def outcomes_of(judgements: Iterable[Judgement]) -> list[Outcome]:
    """Return the outcomes of a run from its judgements."""
    every = list(judgements)
    folded = causes(every, workers_own(every)).folded
    return [
        Outcome(
            judgement.requirement.id,
            judgement.scenario,
            judgement.verdict,
            failure_kinds(judgement) if judgement.verdict is Verdict.FAIL else (),
            every[folded[position]].requirement.id if position in folded else "",
        )
        for position, judgement in enumerate(every)
    ]


def outcomes_in(report: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcomes of a run from its JSON report."""
    return [
        Outcome(
            row["requirement"],
            row["scenario"],
            Verdict(row["verdict"]),
            tuple(FailureKind(kind["dialect"], either_way(kind["says"])) for kind in row.get("kinds", ())),
            row.get("follows_from", ""),
        )
        for row in report["verdicts"]
    ]


_Wrong = tuple[_FaultKind, str]
"""The kind of the error in an entry, and a message with a way to correct it."""
_Known = tuple[str, FailureKind]
"""A known failure: the name of the entry (with or without a scenario), and the kind of failure."""
_MOVED = "known elsewhere and seldom seen; `tokenwire baseline update` adds an entry for this endpoint"
_RARE = "which few scenarios showed before; remove the entry if it is fixed"


def apply_baseline(
    baseline: Baseline, run: Sequence[Outcome], *, uncovered: str = "", today: date
) -> BaselineResult:
    """Return the tolerated failures of a run, and the wrong entries of the baseline.

    `uncovered`: the reason why the run does not cover the baseline. If it covers the baseline, a missing
    failure counts as fixed. An entry whose requirement was not judged is never wrong.
    """
    complete = not uncovered
    scenarios = {outcome.scenario for outcome in run}
    wrong = {entry: next(_unsound(entry, baseline, scenarios, today), None) for entry in baseline.entries}
    occurred = {
        (name, kind)
        for outcome in run
        for kind in outcome.kinds
        for name in (outcome.name, outcome.requirement)
    }
    words: list[str] = []
    known: dict[_Known, Entry] = {}
    for entry in [entry for entry in baseline.entries if wrong[entry] is None]:
        happened = (entry.name, entry.kind) in occurred
        if entry.at_most is not None:
            wrong[entry] = _exceeded_rate(entry, happened=happened, complete=complete)
            words.append(_flaky_words(entry, happened=happened, complete=complete))
        elif complete and not happened and (gone := _gone(entry, run)) is not None:
            # A recording always gives the same result. In a live run, the failure may be missing by chance.
            if baseline.budget is not None and _may_be_missed(entry):
                words.append(f"not seen: {entry.name} ({entry.dialect}), {_RARE}")
            else:
                wrong[entry] = gone
        if wrong[entry] is None:
            known[entry.name, entry.kind] = entry
    moved = _moved(run, known, baseline)
    words += (f"at another endpoint: {name} ({kind.dialect}), {_MOVED}" for name, kind in moved)
    found = [(entry, what) for entry, what in wrong.items() if what is not None]
    faults = _faults(baseline, [*found, *_repeated(baseline)])
    tolerated = _tolerated(run, {**moved, **known})
    unseen = 0 if complete else sum((entry.name, entry.kind) not in occurred for entry in known.values())
    return BaselineResult(baseline, tolerated, tuple(faults), tuple(dict.fromkeys(words)), unseen, uncovered)


def _moved(run: Sequence[Outcome], known: Mapping[_Known, Entry], baseline: Baseline) -> dict[_Known, Entry]:
    """Return new failures that are known at another endpoint, each with the entry for that endpoint.

    A race that few scenarios show may appear at another endpoint in the next run. If many scenarios show it,
    or if the run is a recording, the failure counts as new.
    """
    live = baseline.budget is not None
    racy = {
        (entry.requirement, entry.kind.words): entry
        for entry in known.values()
        if not entry.scenario and (entry.at_most is not None or (live and _may_be_missed(entry)))
    }
    shown: dict[tuple[str, FailureKind], set[str]] = {}
    for outcome in run:
        for kind in outcome.kinds:
            shown.setdefault((outcome.requirement, kind), set()).add(outcome.scenario)
    return {
        (requirement, kind): entry
        for (requirement, kind), scenarios in shown.items()
        if (requirement, kind) not in known and len(scenarios) < _SURELY_SEEN_IN
        if (entry := racy.get((requirement, kind.words))) is not None and entry.dialect != kind.dialect
    }


def _may_be_missed(entry: Entry) -> bool:
    """True if the failure may be missing by chance, because it occurred in few scenarios when the entry was
    written.
    """
    return not entry.scenario and 0 < entry.seen_in < _SURELY_SEEN_IN


def _faults(baseline: Baseline, found: Iterable[tuple[Entry, _Wrong]]) -> Iterator[Fault]:
    """Yield a fault for each kind of error in each table.

    The fault names the first wrong entry of the table.
    """
    alike: dict[tuple[str, int, _Wrong], list[Entry]] = {}
    for entry, wrong in found:
        alike.setdefault((entry.section, entry.table, wrong), []).append(entry)
    for (section, table, (kind, words)), (first, *others) in alike.items():
        name = f"{first.name} and in {len(others)} more" if others else first.name
        message = f"{baseline.path}, {section} {table}, {name}: {words}"
        yield Fault(kind, first.requirement, first.scenario, message)


def _unsound(entry: Entry, baseline: Baseline, scenarios: Collection[str], today: date) -> Iterator[_Wrong]:
    """Yield the errors of an entry that do not depend on the run, the most serious first."""
    requirements = load_requirements()
    row = requirements.get(entry.requirement)
    if any(sign in f"{entry.requirement}{entry.scenario}{entry.dialect}" for sign in "*?"):
        yield (
            _FaultKind.TOO_BROAD,
            "it contains a wildcard; write one entry for each failure (`tokenwire baseline update`)",
        )
    if row is None:
        hint = suggestion(entry.requirement, requirements, "remove the entry")
        yield _FaultKind.UNMATCHED, f"there is no such requirement; {hint}"
    elif row.level is not Level.MUST:
        words = f"the requirement is a {row.level}, which fails no run; remove the entry"
        yield _FaultKind.UNMATCHED, words
    nameable = {*load_scenarios(), EXPLORATION, NO_SCENARIO, *scenarios}
    # A recording may have scenarios of its own. If it has none, the scenario of an entry is not checked.
    if entry.scenario and entry.scenario not in nameable and (baseline.budget is not None or scenarios):
        hint = suggestion(entry.scenario, nameable, "remove the entry")
        yield _FaultKind.UNMATCHED, f"there is no such scenario; {hint}"
    if entry.as_written.fingerprint != entry.fingerprint:
        yield (
            _FaultKind.TOO_BROAD,
            "its fingerprint does not fit its dialect and its message, so that it would tolerate more than "
            "its message says; write it from a report again (`tokenwire baseline update`)",
        )
    yield from unexplained(entry.reason, entry.link, entry.expires, today)


def unexplained(reason: str, link: str, expires: date | None, today: date) -> Iterator[_Wrong]:
    """Yield an error for each of the following that an entry lacks: a reason, a link, and a last day in the
    future.
    """
    if not reason.strip():
        yield _FaultKind.UNEXPLAINED, "it has no reason; write why the failure is tolerated"
    if not link.startswith(("https://", "http://")):
        words = f"its link is {link!r}; write the address (https://…) of the issue about the failure"
        yield _FaultKind.UNEXPLAINED, words
    if expires is not None and today > expires:
        words = f"it expired on {expires}; fix the failure, or set a later day"
        yield _FaultKind.EXPIRED, words


def _repeated(baseline: Baseline) -> Iterator[tuple[Entry, _Wrong]]:
    """Yield the entries that are equal to an earlier entry."""
    earlier: set[_Known] = set()
    for entry in baseline.entries:
        if (entry.name, entry.kind) in earlier:
            yield entry, (_FaultKind.TOO_BROAD, "another entry is equal; remove one of them")
        earlier.add((entry.name, entry.kind))


def _gone(entry: Entry, run: Sequence[Outcome]) -> _Wrong | None:
    """Return the error of an entry whose failure did not occur in a complete run.

    None if the failure may be missing.
    """
    judged = [outcome for outcome in run if outcome.requirement == entry.requirement]
    here = [outcome for outcome in judged if entry.scenario in ("", outcome.scenario)]
    verdicts = {outcome.verdict for outcome in here or judged}
    # If a check crashed, the failure may have gone unnoticed.
    if not judged or Verdict.HARNESS_ERROR in verdicts:
        return None
    # A failure that is a consequence of another failure may vary between runs.
    if any(outcome.follows_from for outcome in here if outcome.verdict is Verdict.FAIL):
        return None
    if Verdict.FAIL in verdicts and here:
        words = f"it still fails, but not with {entry.dialect}: {entry.says}; run `tokenwire baseline update`"
        return _FaultKind.DIFFERS, words
    now = ", ".join(sorted(verdicts))
    words = f"the verdict is {now} now" if here else f"the requirement does not fail in this scenario ({now})"
    return _FaultKind.STALE, f"{words}; remove the entry"


def _exceeded_rate(entry: Entry, *, happened: bool, complete: bool) -> _Wrong | None:
    """Return the error of a flaky entry whose failure occurs more or less often than its limit allows.

    None if the rate is within the limit.
    """
    failures, runs, rate = entry.failures + happened, entry.runs + 1, entry.at_most
    assert rate is not None
    if happened and not rate.allows(failures, runs):
        words = f"it failed in {failures} of {runs} runs (limit: {rate}); fix it, or make it a [[failure]]"
        return _FaultKind.TOO_OFTEN, words
    if complete and not failures and runs >= _STALE_AFTER * rate.runs:
        return _FaultKind.STALE, f"it did not fail in {runs} runs; remove the entry"
    return None


def _flaky_words(entry: Entry, *, happened: bool, complete: bool) -> str:
    now = "failed" if happened else "did not fail" if complete else "was not seen to fail"
    counted = f"{entry.failures + happened} of {entry.runs + 1} runs with this one"
    return (
        f"flaky: {entry.name} ({entry.dialect}) {now}; {counted}, at most {entry.at_most}: {entry.reason} "
        f"({entry.link})"
    )


def _tolerated(run: Sequence[Outcome], known: Mapping[_Known, Entry]) -> dict[str, str]:
    """Return the reason for each outcome whose failures are all known, by the name of the outcome.

    A failure that is a consequence of a tolerated failure is tolerated as well. If outcomes of several
    servers have the same name, the failures of all servers must be known.
    """
    found: dict[str, list[Entry | None]] = {}
    for outcome in run:
        if outcome.verdict is Verdict.FAIL:
            entries = [
                known.get((outcome.name, kind)) or known.get((outcome.requirement, kind))
                for kind in outcome.kinds
            ]
            # A FAIL without kinds of failures cannot be in a baseline.
            found.setdefault(outcome.name, []).extend(entries or [None])
    tolerated = {
        name: "; ".join(dict.fromkeys(f"{entry.reason} ({entry.link})" for entry in entries if entry))
        for name, entries in found.items()
        if None not in entries
    }
    failing: dict[str, set[str]] = {}
    for outcome in run:
        if outcome.verdict is Verdict.FAIL:
            failing.setdefault(outcome.requirement, set()).add(outcome.name)
    following: dict[str, list[str]] = {}
    for outcome in run:
        if outcome.verdict is Verdict.FAIL and outcome.name not in tolerated:
            of_cause = failing.get(outcome.follows_from, set())
            known_cause = bool(of_cause) and of_cause <= tolerated.keys()
            reason = f"it follows from {outcome.follows_from}, which is known" if known_cause else ""
            following.setdefault(outcome.name, []).append(reason)
    # Outcomes of several servers may have equal names. Each of these outcomes must be explained.
    explained = {name: reasons[0] for name, reasons in following.items() if all(reasons)}
    return {**tolerated, **explained}


def with_reasons(judgements: Iterable[Judgement], result: BaselineResult) -> list[Judgement]:
    """Return the judgements, and give each tolerated failure its reason."""
    return [
        replace(judgement, known=result.tolerated[judgement.name])
        if judgement.verdict is Verdict.FAIL and judgement.name in result.tolerated
        else judgement
        for judgement in judgements
    ]
