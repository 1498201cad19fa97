"""Failures of a gateway that its worker causes: the worker violates the same requirement in the same way.

The requests that failed at the gateway are repeated at the worker. Then the run is judged again with the
worker's answers instead of the gateway's. A failure that occurs again is the worker's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tokenwire.checks.evidence import Observation
from tokenwire.judging.failure_kind import FailureKind, kind_of
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import VIOLATED
from tokenwire.record import Answer
from tokenwire.requirement import Requirement, load_requirements
from tokenwire.wire.exchange import Ending

_VIOLATED = frozenset(VIOLATED.values())
_ACROSS = "across-targets"
"""The oracle of requirements that compare a gateway with its worker. Their violations are the
gateway's own.
"""


def rows_of_a_server() -> list[Requirement]:
    """Return the requirements that a worker can violate as well as its gateway."""
    return [row for row in load_requirements().values() if row.oracle != _ACROSS]


def _names_in(seen: Observation) -> list[str]:
    """Return the names of all exchanges that are part of a violation."""
    return list(dict.fromkeys(place.exchange for place in (seen.place, *seen.related)))


def _kinds(judgement: Judgement) -> Iterator[tuple[tuple[str, FailureKind], Observation]]:
    """Yield the violations of a judgement, each with its requirement's id and its kind."""
    if judgement.verdict in _VIOLATED and judgement.requirement.oracle != _ACROSS:
        for seen in judgement.violations:
            yield (judgement.requirement.id, kind_of(seen, judgement)), seen


def to_ask(judgements: Iterable[Judgement], run: Run, most: int) -> list[Answer]:
    """Return the answers whose requests are repeated at the worker: at most `most`, which show each kind of
    failure once.

    Requests that killed the server are not repeated.
    """
    found: dict[str, Answer] = {}
    known: set[tuple[str, FailureKind]] = set()
    fatal = {death.of.exchange.name for death in run.deaths}
    for judgement in judgements:
        for kind, seen in _kinds(judgement):
            names = _names_in(seen)
            answers = [run.by_exchange[name] for name in names if name in run.by_exchange]
            whole = all(answer.exchange.ending is Ending.COMPLETE for answer in answers)
            more = [answer for answer in answers if answer.exchange.name not in found]
            fits = len(answers) == len(names) and len(found) + len(more) <= most
            if kind not in known and whole and fits and not fatal.intersection(names):
                known.add(kind)
                found |= {answer.exchange.name: answer for answer in more}
    return list(found.values())


def workers_own(judgements: Sequence[Judgement]) -> frozenset[int]:
    """Return the positions of the judgements of which the worker shows all kinds of violations."""
    of_run: dict[int, list[int]] = defaultdict(list)
    for position, judgement in enumerate(judgements):
        if judgement.run.exhibits and any(True for _ in _kinds(judgement)):
            of_run[id(judgement.run)].append(position)
    return frozenset(
        position
        for positions in of_run.values()
        for position in _own([judgements[n] for n in positions], positions)
    )


def _own(judgements: Sequence[Judgement], positions: Sequence[int]) -> Iterator[int]:
    """Yield the positions of the judgements of one run of which the worker shows all kinds of violations."""
    run = judgements[0].run
    of_worker = {answer.exchange.name: answer for answer in run.exhibits}
    swapped = replace(
        run,
        streams=tuple(of_worker.get(answer.exchange.name, answer) for answer in run.streams),
        exhibits=(),
    )
    rows = {judgement.requirement.id: judgement.requirement for judgement in judgements}
    shown = {
        kind
        for judgement in judge([swapped], rows.values())
        for kind, seen in _kinds(judgement)
        if of_worker.keys() >= set(_names_in(seen))
    }
    for position, judgement in zip(positions, judgements, strict=True):
        if all(kind in shown for kind, _ in _kinds(judgement)):
            yield position
