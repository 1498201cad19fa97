"""The judge: computes verdicts from all answers of a run, with pure functions.

A verdict belongs to a requirement in a scenario. A PASS needs the requirement's number of witnesses in the
whole run. An observation that only shows a condition is not a witness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

from tokenwire.checks.check import CHECKS
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import family_of
from tokenwire.judging.chance import Chance, Doubt
from tokenwire.judging.clock import CLOCK, DEFAULT_LIMIT_S, LARGEST, TooSlowError
from tokenwire.judging.collector import few_collections
from tokenwire.judging.observing import (
    NO_SCENARIO,
    Observing,
    Part,
    Tallies,
    gathered,
    in_order,
    of_streams,
)
from tokenwire.judging.reasons import Reason, generates_nothing, too_little, unjudged
from tokenwire.judging.run import Run, has_record
from tokenwire.judging.stop import Stop, StoppedError
from tokenwire.judging.tally import Tally, TallyBuilder
from tokenwire.judging.verdict import SEVERITY, VIOLATED, Verdict
from tokenwire.record import Answer, Stream
from tokenwire.requirement import Level, Requirement, load_requirements

_GRAVEST_FIRST = list(VIOLATED)
_SEEN_IN_A_PART = frozenset({*VIOLATED.values(), Verdict.HARNESS_ERROR})
"""Verdicts that count even if only a part of the run was observed."""
_MOST_TOO_SLOW = 3
"""The maximum number of exchanges that are skipped because reading them takes too long."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one requirement in one scenario, with its evidence."""

    requirement: Requirement
    scenario: str
    verdict: Verdict
    witnesses: int = 0
    reason: Reason = field(default="", compare=False)
    """The reason as a clause, or a function that computes it. Empty for a PASS."""
    violations: tuple[Observation, ...] = ()
    """The violations in the order of events. Reports show the first one."""
    doubted: tuple[Observation, ...] = ()
    """Differences that may be chance, because the server did not repeat the answers."""
    witness: Observation | None = None
    """The strongest witness of a PASS, which is the one furthest into a stream. None for other verdicts."""
    run: Run = field(default_factory=lambda: Run(()), repr=False, compare=False)
    known: str = ""
    """The reason why a baseline tolerates the violations. Empty if it does not."""

    @cached_property
    def message(self) -> str:
        """The reason as a clause. It is computed when needed, because most reasons count the answers of the
        run.
        """
        return self.reason if isinstance(self.reason, str) else self.reason()

    @property
    def name(self) -> str:
        return f"{self.requirement.id}[{self.scenario}]"


def _level(requirement: Requirement, answer: Answer | None, violation: Observation) -> Level:
    """Return the level of a violation. It is the requirement's level for the server family, unless the
    observation lowers it.

    `answer` is the answer with the violation. None if the violation is not in a single answer.
    """
    level = requirement.level if answer is None else requirement.level_for(family_of(answer.dialect))
    return max((level, violation.level or level), key=_GRAVEST_FIRST.index)


def _gravest(
    requirement: Requirement, run: Run, violations: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return the violations with the most severe level among them."""
    answers = (run.by_exchange.get(violation.place.exchange) for violation in violations)
    levels = [_level(requirement, *pair) for pair in zip(answers, violations, strict=True)]
    most = min(levels, key=_GRAVEST_FIRST.index, default=None)
    return tuple(violation for violation, level in zip(violations, levels, strict=True) if level is most)


def _first_events_first(violations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the violations, sorted by events within each answer. Checks yield them choice by choice."""
    answers = {violation.place.exchange: n for n, violation in enumerate(reversed(violations))}

    def position(violation: Observation) -> tuple[int, float]:
        event = violation.place.event
        return -answers[violation.place.exchange], math.inf if event is None else event

    return tuple(sorted(violations, key=position))


def _weigh(
    requirement: Requirement, run: Run, tallies: Mapping[str, Tally], too_few: Callable[[], str]
) -> Iterator[Judgement]:
    """Yield one verdict for each scenario. `too_few` explains a lack of witnesses."""
    total = sum(seen.witnesses for seen in tallies.values())
    answered = any(map(has_record, run.streams))
    chance = Chance(run.doubt, lambda: run.seen, tallies.values())

    def not_enough() -> str:
        return f"{total} of the {requirement.witnesses} witnesses that a PASS needs; {too_few()}"

    for scenario, seen in tallies.items():
        violations, doubted, doubts = [], [], []
        for difference in (counted.observation for counted in seen.differing):
            weighed = chance.weigh(difference)
            if isinstance(weighed, Doubt):
                doubted.append(difference)
                doubts.append(weighed.reason)
            else:
                violations.append(weighed)
        gravest = _first_events_first(_gravest(requirement, run, violations))
        judged = partial(
            Judgement,
            requirement,
            scenario,
            witnesses=seen.witnesses,
            violations=gravest,
            doubted=tuple(doubted),
            run=run,
        )
        if seen.crash is not None:
            yield judged(Verdict.HARNESS_ERROR, reason=seen.crash[1])
        elif gravest:
            answer = run.by_exchange.get(gravest[0].place.exchange)
            verdict = VIOLATED[_level(requirement, answer, gravest[0])]
            yield judged(verdict, reason=gravest[0].message)
        elif doubted:
            yield judged(Verdict.INCONCLUSIVE, reason=doubts[0])
        elif not answered:
            # Otherwise a server that answers every request with 200 and no content would pass.
            yield judged(Verdict.INCONCLUSIVE, reason="no request of the run was answered by a record")
        elif total < requirement.witnesses:
            yield judged(Verdict.INCONCLUSIVE, reason=not_enough)
        else:
            yield judged(Verdict.PASS, witness=seen.furthest.observation if seen.furthest else None)


def _judged_at_once(requirement: Requirement, run: Run) -> Judgement | None:
    """Return the verdict on a requirement that needs no observation. None if observations are needed."""
    judged = partial(Judgement, requirement, NO_SCENARIO, run=run)
    try:
        known = CLOCK.timed(partial(unjudged, requirement, run))
    except TooSlowError as error:
        return judged(Verdict.HARNESS_ERROR, reason=str(error))
    if known is not None:
        verdict, why, violations = known
        return judged(verdict, reason=why, violations=violations)
    if requirement.id not in CHECKS:
        return judged(Verdict.HARNESS_ERROR, reason="no check is registered")
    return None


def _judged(
    requirement: Requirement, run: Run, seen: dict[str, TallyBuilder], stopped: str = ""
) -> list[Judgement]:
    """Return the verdicts on a requirement after its check has observed the run.

    `stopped`: the reason why only a part was observed, or empty if all was. After a stop, only violations and
    crashes count.
    """
    judged = _weighed(requirement, run, seen)
    if not stopped:
        return judged
    known = [judgement for judgement in judged if judgement.verdict in _SEEN_IN_A_PART]
    return known or [Judgement(requirement, NO_SCENARIO, Verdict.INCONCLUSIVE, reason=stopped, run=run)]


def _weighed(requirement: Requirement, run: Run, seen: dict[str, TallyBuilder]) -> list[Judgement]:
    tallies = in_order(requirement, run, seen)
    observed = {name: counted for name, counted in tallies.items() if counted.saw or counted.crash}
    too_few = cache(lambda: too_little(requirement, run, tallies))
    if not observed and (why := generates_nothing(requirement, run)):
        return [Judgement(requirement, NO_SCENARIO, Verdict.UNSUPPORTED, reason=why, run=run)]
    if not observed:
        return [Judgement(requirement, NO_SCENARIO, Verdict.INCONCLUSIVE, reason=too_few, run=run)]
    return list(_weigh(requirement, run, observed, too_few))


def violated_by(answer: Stream, run: Run) -> tuple[str, ...]:
    """Return the ids of the MUST requirements that one further answer of the server violates.

    A requirement whose check crashes is included. Only checks of single answers are used. Facts about the
    server come from the run.
    """
    rows = [row for row in load_requirements().values() if row.level is Level.MUST and row.id in CHECKS]
    violated = []
    for requirement in rows:
        if CHECKS[requirement.id].on_stream is None or unjudged(requirement, run) is not None:
            continue
        seen = [counted for _, _, counted in of_streams([answer], run, [requirement])]
        broken = [found.observation for counted in seen for found in counted.differing]
        crashed = any(counted.crash for counted in seen)
        if crashed or any(_level(requirement, answer, violation) is Level.MUST for violation in broken):
            violated.append(requirement.id)
    return tuple(violated)


OnDone = Callable[[int, str], object]
"""A function that is called with the number of further answers or requirements observed, and the name of the
last one.
"""
ByRun = Sequence[Sequence[Sequence[Judgement]]]
"""For each run, the verdicts on each requirement."""


def judge(
    runs: Sequence[Run],
    requirements: Iterable[Requirement] | None = None,
    *,
    limit_s: float = DEFAULT_LIMIT_S,
) -> list[Judgement]:
    """Return the verdicts on the given requirements (by default all), in the order of the specification.

    Each run is judged separately. If one run has evidence for a requirement, runs without evidence add no
    verdict. `limit_s`: the processor time in seconds of one check for one exchange.
    """
    wanted = list(load_requirements().values() if requirements is None else requirements)
    return combined(judge_runs(runs, wanted, limit_s=limit_s))


def judge_runs(
    runs: Sequence[Run],
    wanted: Sequence[Requirement],
    *,
    jobs: int = 1,
    limit_s: float = DEFAULT_LIMIT_S,
    stop: Stop | None = None,
    on_done: OnDone = lambda _count, _name: None,
) -> ByRun:
    """Judge each run separately and return its verdicts, as for `judge`.

    `jobs` processes share the work. The verdicts do not depend on their number. A system that cannot fork
    uses one process. Once `stop` is set, requirements without a verdict become INCONCLUSIVE. Raises
    BrokenProcessPool if a process was killed.
    """
    stop = stop or Stop()
    with few_collections():
        try:
            with stop.judging():
                known = [_known(run, wanted, limit_s) for run in runs]
        except StoppedError:
            reason = f"{stop.reason} before anything was judged"
            return [
                [
                    [Judgement(row, NO_SCENARIO, Verdict.INCONCLUSIVE, reason=reason, run=run)]
                    for row in wanted
                ]
                for run in runs
            ]
        tallies: list[Tallies] = [{} for _ in runs]
        on_done(sum(len(wanted) - len(of_run.left) for of_run in known), "")
        observing = Observing(
            tuple(of_run.run for of_run in known), tuple(of_run.left for of_run in known), limit_s
        )
        done: set[Part] = set()
        try:
            with stop.judging(), closing(observing.all(jobs)) as parts:
                for part, count, name, counted in parts:
                    gathered(counted, tallies[part.run])
                    done.add(part)
                    on_done(count, name)
        except StoppedError:
            stop.share = len(done) / len(observing.parts)
        unobserved = observing.unobserved(done)
        stopped = f"{stop.reason} before all of it was observed"
        with CLOCK.limited(limit_s):
            return [
                [
                    _by_row(row, of_run, seen.get(row.id, {}), stopped if row.id in missing else "")
                    for row in wanted
                ]
                for of_run, seen, missing in zip(known, tallies, unobserved, strict=True)
            ]


@dataclass(frozen=True)
class _Known:
    """Facts about a run that are computed before its checks observe it."""

    run: Run
    """The run without the exchanges that take too long to read."""
    at_once: Mapping[str, Judgement]
    """The verdicts on requirements that need no observation, by id."""
    left: tuple[Requirement, ...]
    """The requirements that need observations."""
    too_slow: Mapping[str, tuple[str, str]]
    """The scenario and the reason of each exchange that takes too long to read, by name."""


def _known(run: Run, wanted: Sequence[Requirement], limit_s: float) -> _Known:
    """Compute the facts that checks need, and the verdicts that need no observation."""
    too_slow: dict[str, tuple[str, str]] = {}
    # If reading takes too long, the exchange at fault is removed and the others are tried again.
    with CLOCK.limited(limit_s * max(1.0, sum(answer.exchange.size for answer in run.streams) / LARGEST)):
        while True:
            try:
                CLOCK.timed(partial(_prepare, run))
                break
            except TooSlowError as error:
                answer = run.by_exchange.get(error.exchange)
                scenario = NO_SCENARIO if answer is None else answer.exchange.scenario
                too_slow[error.exchange] = scenario, str(error)
                if answer is None or len(too_slow) > _MOST_TOO_SLOW:
                    reason = f"facts about the server could not be computed: {error}"
                    failed = {
                        row.id: Judgement(row, NO_SCENARIO, Verdict.HARNESS_ERROR, reason=reason, run=run)
                        for row in wanted
                    }
                    return _Known(run, failed, (), {})
                run = run.without(error.exchange)
        at_once = {row.id: _judged_at_once(row, run) for row in wanted}
    decided = {name: judgement for name, judgement in at_once.items() if judgement is not None}
    return _Known(run, decided, tuple(row for row in wanted if row.id not in decided), too_slow)


def _by_row(row: Requirement, known: _Known, seen: dict[str, TallyBuilder], stopped: str) -> list[Judgement]:
    """Return the verdicts on a requirement, including HARNESS_ERROR for each exchange that takes too long to
    read.
    """
    if row.id in known.at_once:
        return [known.at_once[row.id]]
    unread = [
        Judgement(row, scenario, Verdict.HARNESS_ERROR, reason=reason, run=known.run)
        for scenario, reason in known.too_slow.values()
    ]
    try:
        return [*unread, *CLOCK.timed(partial(_judged, row, known.run, seen, stopped))]
    except TooSlowError as error:
        return [
            *unread,
            Judgement(row, NO_SCENARIO, Verdict.HARNESS_ERROR, reason=str(error), run=known.run),
        ]


def combined(by_run: ByRun) -> list[Judgement]:
    """Return the verdicts of all runs, ordered by requirement."""
    return [judgement for of_row in zip(*by_run, strict=True) for judgement in _combined(of_row)]


def _combined(by_run: Sequence[Sequence[Judgement]]) -> list[Judgement]:
    """Return the verdicts of all runs on one requirement. If no run has evidence, return only the most severe
    verdict.
    """
    every = [judgement for judgements in by_run for judgement in judgements]
    telling = [
        judgement
        for judgement in every
        if judgement.scenario != NO_SCENARIO
        or judgement.witnesses
        or judgement.violations
        or judgement.verdict is Verdict.HARNESS_ERROR
    ]
    return telling or sorted(every, key=lambda judgement: SEVERITY[judgement.verdict])[-1:]


def _prepare(run: Run) -> None:
    """Compute values that all checks share, before the work is divided among processes."""
    of_several = ("honesty", "comparisons", "capabilities_beside") if len(run.streams) > 1 else ()
    for known in ("target", "clouded", "empty_answers", *of_several):
        getattr(run, known)
