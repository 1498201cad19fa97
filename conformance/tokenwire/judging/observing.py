"""The part of judging in which checks observe a run: single answers, pairs of answers, or the whole run.

Observations are counted for each requirement and scenario. The parts of a run may be divided among processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from tokenwire.checks.about import Traits, traits_of
from tokenwire.checks.check import CHECKS, Answers, RunCheck, StreamCheck
from tokenwire.checks.evidence import Observation
from tokenwire.judging.clock import CLOCK, DEFAULT_LIMIT_S, LARGEST, TooSlowError
from tokenwire.judging.run import Run
from tokenwire.judging.tally import NOTHING, Tally, TallyBuilder, tally
from tokenwire.processes import shared_out, together
from tokenwire.record import Answer
from tokenwire.requirement import Requirement
from tokenwire.target.determinism import AnswerPair

NO_SCENARIO = "-"
"""The scenario of a verdict that belongs to no scenario."""

_TOGETHER = 16
"""The number of answer pairs in one part of a run, and of observations that are counted at once."""
_LARGE = 4 << 20
"""The number of bytes of answers in one part of a run."""

Counted = tuple[str, str, Tally]
"""A requirement's id, a scenario, and the tally of the observations there."""
Tallies = dict[str, dict[str, TallyBuilder]]
"""The tallies by requirement id and scenario."""


class Part(NamedTuple):
    """A part of a run to observe: some answers, some pairs, or the whole run with some requirements."""

    run: int
    observes: str
    start: int
    stop: int


def may_observe(requirement: Requirement, stream: Answer, run: Run) -> bool:
    """True if the check of a requirement may observe an answer."""
    # If a bad request failed like the valid request after it, the server may have been dead. So the failure
    # proves nothing about refusals.
    return requirement.oracle != "refusal" or stream.exchange.name not in run.clouded


def pairs_for(requirement: Requirement, run: Run) -> Sequence[AnswerPair]:
    """Return the pairs of answers that a check of two answers compares."""
    return run.pairs_beside if requirement.oracle == "across-targets" else run.comparisons


@dataclass(frozen=True)
class Observing:
    """The runs, and the requirements to observe in each of them."""

    runs: tuple[Run, ...]
    wanted: tuple[tuple[Requirement, ...], ...]
    limit_s: float = DEFAULT_LIMIT_S
    """The processor time in seconds of one check for one exchange."""

    def all(self, jobs: int) -> Generator[tuple[Part, int, str, Iterable[Counted]], None, None]:
        """Yield the result of each part of the runs.

        A result is the part, its number of answers or requirements, the name of the last one, and the
        observations.
        """
        parts = self.parts
        for part, counted in zip(parts, shared_out(self._observed, parts, jobs), strict=True):
            yield part, *self._progress(part), counted

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts that must be observed."""
        return tuple(part for position in range(len(self.runs)) for part in self._parts(position))

    def unobserved(self, done: Collection[Part]) -> tuple[frozenset[str], ...]:
        """Return, for each run, the ids of the requirements with a part that is not in `done`."""
        left: list[set[str]] = [set() for _ in self.runs]
        for part in self.parts:
            if part not in done:
                left[part.run] |= {row.id for row in self._rows(part)}
        return tuple(map(frozenset, left))

    def _rows(self, part: Part) -> Iterable[Requirement]:
        """Return the requirements whose checks observe a part of this type."""
        wanted = self.wanted[part.run]
        match part.observes:
            case "run":
                rows: Iterable[Requirement] = wanted[part.start : part.stop]
                return (row for row in rows if CHECKS[row.id].on_run is not None)
            case "pairs":
                return (row for row in wanted if CHECKS[row.id].on_comparison is not None)
            case _:
                return (row for row in wanted if CHECKS[row.id].observe is not None)

    def _parts(self, position: int) -> Iterator[Part]:
        """Yield the parts of a run. The slowest parts come first."""
        run, wanted = self.runs[position], self.wanted[position]
        if not wanted:
            return
        paired = any(CHECKS[row.id].on_comparison for row in wanted)
        pairs = max(len(run.comparisons), len(run.pairs_beside)) if paired else 0
        # Each requirement whose check observes the whole run is a part of its own. All other requirements
        # share parts.
        for rows in together(
            range(len(wanted)), lambda nth: _LARGE * (CHECKS[wanted[nth].id].on_run is not None), _LARGE
        ):
            yield Part(position, "run", rows[0], rows[-1] + 1)
        for start in range(0, pairs, _TOGETHER):
            yield Part(position, "pairs", start, min(start + _TOGETHER, pairs))
        for some in together(range(len(run.answers)), lambda nth: run.answers[nth].exchange.size, _LARGE):
            yield Part(position, "streams", some[0], some[-1] + 1)

    def _observed(self, part: Part) -> list[Counted]:
        run, wanted = self.runs[part.run], self.wanted[part.run]
        limits = 1.0
        if part.observes == "run":
            limits = max(limits, run.size / LARGEST)
        with CLOCK.limited(self.limit_s * limits):
            return list(by_scenario(gathered(_of_part(part, run, wanted))))

    def _progress(self, part: Part) -> tuple[int, str]:
        if part.observes == "run":
            return part.stop - part.start, self.wanted[part.run][part.stop - 1].id
        if part.observes == "pairs":
            return 0, "pairs of answers"
        return part.stop - part.start, self.runs[part.run].answers[part.stop - 1].exchange.name


def _of_part(part: Part, run: Run, wanted: Sequence[Requirement]) -> Iterator[Counted]:
    match part.observes:
        case "streams":
            answers = run.answers[part.start : part.stop]
            yield from of_streams(answers, run, wanted, start=part.start)
        case "pairs":
            yield from _of_pairs(part, run, wanted)
        case _:
            for requirement in wanted[part.start : part.stop]:
                yield from _of_run(requirement, run)


def of_streams(
    streams: Iterable[Answer], run: Run, wanted: Iterable[Requirement], *, start: int = 0
) -> Iterator[Counted]:
    """Yield the observations of the checks of single answers. `start` is the position of the first answer in
    the run.
    """
    checks = [(row, CHECKS[row.id]) for row in wanted if CHECKS[row.id].observe is not None]
    by_traits: dict[Traits, list[tuple[Requirement, StreamCheck]]] = {}
    target, empty_answers, clouded = run.target, run.empty_answers, run.clouded
    for position, stream in enumerate(streams, start):
        scenario = stream.exchange.scenario
        try:
            loaded = CLOCK.timed(partial(run.load, stream))
        except TooSlowError as error:
            for requirement, _ in checks:
                yield requirement.id, scenario, Tally(crash=((position, 0), str(error)))
            continue
        traits = traits_of(loaded)
        # Answers with equal traits are observed by the same checks.
        if traits not in by_traits:
            by_traits[traits] = [
                (row, check.observe)
                for row, check in checks
                if check.observe is not None and check.about.admits(traits)
            ]
        is_clouded = stream.exchange.name in clouded
        for requirement, observe in by_traits[traits]:
            if is_clouded and not may_observe(requirement, stream, run):
                continue
            seen = tally(observe, loaded, target, position=position, empty_answers=empty_answers)
            if seen is not NOTHING:
                yield requirement.id, scenario, seen
        loaded.clear_caches(
            facts=False
        )  # otherwise cached values, such as logprobs, would use memory until the run ends


def _of_pairs(part: Part, run: Run, wanted: Sequence[Requirement]) -> Iterator[Counted]:
    # A part is one range that applies to both lists of pairs. `_parts` uses the longer list.
    for pairs in (run.comparisons, run.pairs_beside):
        comparing = [row for row in wanted if pairs_for(row, run) is pairs]
        for position, pair in enumerate(pairs[part.start : part.stop] if comparing else (), part.start):
            scenario = pair.other.exchange.scenario
            loaded = run.load_pair(pair)
            for requirement in comparing:
                check = CHECKS[requirement.id].on_comparison
                if check is not None:
                    seen = tally(
                        check, loaded, run.target, position=position, empty_answers=run.empty_answers
                    )
                    yield requirement.id, scenario, seen


def _of_run(requirement: Requirement, run: Run) -> Iterator[Counted]:
    check = CHECKS[requirement.id].on_run
    if check is None:
        return
    answers = run.answers
    if run.clouded and requirement.oracle == "refusal":
        answers = Answers(stream for stream in answers if may_observe(requirement, stream, run))
    found: dict[str, TallyBuilder] = defaultdict(TallyBuilder)
    # `crashed` holds the traceback if the check crashes. `found` holds the check's observations.
    crashed = tally(_count_by_scenario, check, answers, run, found, position=0)
    yield requirement.id, NO_SCENARIO, crashed
    for scenario, seen in found.items():
        yield requirement.id, scenario, seen.built


def _count_by_scenario(
    check: RunCheck, answers: tuple[Answer, ...], run: Run, into: dict[str, TallyBuilder]
) -> Iterator[Observation]:
    """Count a check's observations of a run by scenario.

    This function yields nothing. It is a generator so that `tally` catches a crash of the check.
    """
    waiting: dict[str, list[Observation]] = defaultdict(list)
    left_out: list[tuple[str, Observation]] = []  # a scenario with only these observations comes last

    def count(scenario: str, position: int) -> None:
        into[scenario].add(
            tally(iter, waiting.pop(scenario), position=position, empty_answers=run.empty_answers)
        )

    nth = 0
    try:
        for nth, seen in enumerate(check(answers, run.target)):
            source = run.by_exchange.get(seen.place.exchange)
            scenario = source.exchange.scenario if source else NO_SCENARIO
            if seen.condition_only and seen.message:
                left_out.append((scenario, seen))
                continue
            waiting[scenario].append(seen)
            # This access creates the entry, so that scenarios keep the order of the observations.
            into[scenario]
            if len(waiting[scenario]) >= _TOGETHER:
                count(scenario, nth)
    finally:
        # Observations before a crash count too.
        for scenario, seen in left_out:
            waiting[scenario].append(seen)
        for scenario in list(waiting):
            count(scenario, nth)
    yield from ()


def gathered(counted: Iterable[Counted], into: Tallies | None = None) -> Tallies:
    """Collect tallies by requirement and scenario."""
    tallies: Tallies = {} if into is None else into
    for requirement, scenario, seen in counted:
        if seen is not NOTHING:
            tallies.setdefault(requirement, {}).setdefault(scenario, TallyBuilder()).add(seen)
    return tallies


def by_scenario(tallies: Tallies) -> Iterator[Counted]:
    """Yield the tally of each requirement and scenario."""
    for requirement, scenarios in tallies.items():
        for scenario, seen in scenarios.items():
            yield requirement, scenario, seen.built


def evidence(run: Run, wanted: Sequence[Requirement]) -> Iterator[Counted]:
    """Yield the tallies of the given requirements in a run, without deciding verdicts."""
    tallies: Tallies = {}
    for _, _, _, counted in Observing((run,), (tuple(wanted),)).all(jobs=1):
        gathered(counted, tallies)
    yield from by_scenario(tallies)


def in_order(requirement: Requirement, run: Run, seen: dict[str, TallyBuilder]) -> dict[str, Tally]:
    """Return the tallies of a requirement by scenario, with the scenarios in the order of the run."""
    order: Iterable[str] = seen
    if len(seen) > 1 and CHECKS[requirement.id].on_stream is not None:
        order = run.scenarios
        if requirement.oracle == "refusal":
            order = dict.fromkeys(
                stream.exchange.scenario for stream in run.answers if may_observe(requirement, stream, run)
            )
    elif len(seen) > 1 and CHECKS[requirement.id].on_comparison is not None:
        order = dict.fromkeys(pair.other.exchange.scenario for pair in pairs_for(requirement, run))
    return {scenario: seen[scenario].built for scenario in order if scenario in seen}
