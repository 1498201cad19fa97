"""Failures of a gateway that are its worker's own: the worker breaks the same requirement in the same way.

The requests of the failures are asked of the worker, too. Its answers then take the place of the gateway's,
and the same checks look at the run again. A failure that is still there is not the gateway's.
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
"""The oracle of rows that hold a gateway against its worker: they are the gateway's own."""


def rows_of_a_server() -> list[Requirement]:
    """Return the requirements that a worker may break as well as its gateway."""
    return [row for row in load_requirements().values() if row.oracle != _ACROSS]


def _names_in(seen: Observation) -> list[str]:
    """Return the names of all exchanges that a violation is about."""
    return list(dict.fromkeys(place.exchange for place in (seen.place, *seen.related)))


def _kinds(judgement: Judgement) -> Iterator[tuple[tuple[str, FailureKind], Observation]]:
    """Yield the violations of a judgement, each with its requirement and kind."""
    if judgement.verdict in _VIOLATED and judgement.requirement.oracle != _ACROSS:
        for seen in judgement.violations:
            yield (judgement.requirement.id, kind_of(seen, judgement)), seen


def to_ask(judgements: Iterable[Judgement], run: Run, most: int) -> list[Answer]:
    """Return the answers whose requests show each kind of failure once; at most `most`.

    A request that the server died of is not asked of another one.
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
    """Return the positions of the judgements whose violations are all of kinds that the worker shows, too."""
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
    """Yield the positions of those judgements of one run that are the worker's own."""
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
