"""Causes of failures: which violations follow from other violations.

One error on the wire seldom violates a single requirement. A doubled id violates the requirements on
counters, on the budget, and on equality with other answers. A report shows such an error once: it folds the
consequences under their cause. A violation is folded under another violation if the latter explains all
findings of the former, in one of three ways:

* By the requirement: `implied_by` names the other requirement, directly or through further requirements, and
  the same answer violates it. A violation of an equality is also explained by a violation in the same field
  of any answer at the same endpoints.
* By the table `spec/causes.yaml`: an endpoint ignores or misreads a request field. The violation that shows
  this explains other violations for requests with this field.
* By the place: the other violation has a more specific requirement, and is at the same pointer of the same
  event. It may also be in the event with which the folded violation was compared.

A FAIL is folded only if one answer violates both requirements, or if the table explains the FAIL. If only the
place explains the FAIL, this answer must be the one that the report shows for the cause.

Folding does not change verdicts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tokenwire.ask import Asked
from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.judging.verdict import SEVERITY, Verdict
from tokenwire.record import Place
from tokenwire.requirement import Requirement, ancestors, load_requirements
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed

_VIOLATED = (Verdict.FAIL, Verdict.WARN)
_MOST_SPECIFIC_FIRST = (
    "bytes",
    "within-response",
    "refusal",
    "tokenizer",
    "script",
    "schema",
    "side-effect",
    "across-responses",
    "across-targets",
    "arrival",
)
_ACROSS = ("across-responses", "across-targets")

Where = tuple[object, ...]
Specificity = tuple[int, int, int]


@dataclass(frozen=True)
class CauseRow:
    """An error of an endpoint that ignores or misreads a request field, as a row of `spec/causes.yaml`."""

    cause: str
    """The requirement whose violation shows the error."""
    says: str
    of: str
    """The affected requests, as a key of `REQUESTS`."""
    follows: tuple[str, ...]
    """The requirements that an answer to an affected request may violate."""
    gateway: bool = False
    """True if the row applies only to a gateway that is compared with its worker."""


REQUESTS: Mapping[str, Callable[[Asked], bool]] = {
    "anything": lambda _: True,
    "input_ids": lambda asked: asked.input_ids is not None,
    "request_id": lambda asked: asked.request_id is not None,
    "several": lambda asked: asked.n * asked.prompts > 1 or asked.batch,
    "budget": lambda asked: asked.max_new_tokens is not None,
    "zero_budget": lambda asked: asked.max_new_tokens == 0,
    "logprobs": lambda asked: asked.logprobs,
    "stop": lambda asked: bool(asked.stop or asked.stop_token_ids or asked.stop_regex),
}


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """Return the rows of the table of causes."""
    table = read_yaml(spec_root() / "causes.yaml")
    return tuple(typed(CauseRow, row, f"row {number}") for number, row in enumerate(table, 1))


@cache
def _rows_behind() -> dict[str, tuple[CauseRow, ...]]:
    """Map each requirement to the table rows that may explain its violation."""
    found: dict[str, tuple[CauseRow, ...]] = defaultdict(tuple)
    for row in cause_rows():
        for name in row.follows:
            found[name] += (row,)
    return found


@cache
def _ancestors() -> dict[str, tuple[str, ...]]:
    """Map each requirement to all its possible causes, direct and indirect."""
    behind = _rows_behind()
    rows = {
        name: replace(row, implied_by=(*row.implied_by, *(found.cause for found in behind.get(name, ()))))
        for name, row in load_requirements().items()
    }
    return ancestors(rows)


@cache
def _implied() -> dict[str, tuple[str, ...]]:
    """Map each requirement to the requirements that imply it within one answer, directly and indirectly."""
    return ancestors(load_requirements())


@cache
def _order() -> dict[str, int]:
    return {name: position for position, name in enumerate(load_requirements())}


def specificity(requirement: Requirement) -> Specificity:
    """Return a sort key that puts the most specific requirement first.

    The key consists of the number of possible causes, the scope of the check, and the position in the
    specification.
    """
    return (
        len(_implied().get(requirement.id, ())),
        _MOST_SPECIFIC_FIRST.index(requirement.oracle),
        _order().get(requirement.id, len(_order())),
    )


def _field(place: Place) -> str:
    """Return the last name in a JSON pointer, skipping list indices."""
    return next((part for part in reversed(place.pointer.split("/")) if not part.isdecimal()), "")


def _exchanges(seen: Sequence[Observation]) -> set[str]:
    return {place.exchange for observation in seen for place in (observation.place, *observation.related)}


class _Violations:
    """The violations of a run by their places. A violation is identified by the position of its judgement."""

    def __init__(self, judgements: Sequence[Judgement], of_worker: Container[int]) -> None:
        self._judgements, self._of_worker = judgements, of_worker
        self._by_place: dict[Where, set[int]] = defaultdict(set)
        self._specific: dict[int, Specificity] = {}
        self.positions = [
            n
            for n, judgement in enumerate(judgements)
            if judgement.verdict in _VIOLATED and judgement.violations and not judgement.known
        ]
        for n in self.positions:
            self._specific[n] = specificity(judgements[n].requirement)
            for seen in judgements[n].violations:
                for where in self._all_of(n, seen.place):
                    self._by_place[where].add(n)
        self.positions.sort(key=lambda n: (self._specific[n], n))

    def causes_first(self, positions: Iterable[int]) -> list[int]:
        """Return the positions with causes before their consequences, by the table of causes."""
        names = {n: self._judgements[n].requirement.id for n in positions}
        return sorted(names, key=lambda n: (len(_ancestors().get(names[n], ())), self._specific[n], n))

    def _all_of(self, n: int, place: Place) -> Iterator[Where]:
        run, name = id(self._judgements[n].run), self._judgements[n].requirement.id
        yield run, place.exchange, place.event, place.pointer
        yield run, name, place.exchange
        yield run, name, self._endpoint(n, place)
        if place.pointer:  # without a pointer, two whole answers would count as one common field
            yield run, name, self._endpoint(n, place), _field(place)

    def _endpoint(self, n: int, place: Place) -> tuple[str]:
        """Return the dialect of the answer at a place, or the name of the exchange if there is no such
        answer.
        """
        stream = self._judgements[n].run.by_exchange.get(place.exchange)
        return (stream.dialect if stream else place.exchange,)

    def explaining(self, n: int, seen: Observation) -> set[int]:
        """Return the positions of the judgements that may explain a finding, by requirement or by place."""
        judgement = self._judgements[n]
        run, places = id(judgement.run), (seen.place, *seen.related)
        found: set[int] = set()
        for name in (*judgement.requirement.implied_by, *_implied().get(judgement.requirement.id, ())):
            for place in places:
                found |= self._by_place.get((run, name, place.exchange), set())
                if judgement.requirement.oracle in _ACROSS:
                    field = _field(seen.place)
                    found |= self._by_place.get((run, name, self._endpoint(n, place), field), set())
        for place in places:
            if (
                place.pointer
            ):  # a place without a pointer is a whole event or answer, which is not specific enough
                there = self._by_place.get((run, place.exchange, place.event, place.pointer), set())
                found |= {m for m in there if self._specific[m] < self._specific[n]}
        return found - {n}

    def behind(self, n: int, seen: Observation) -> set[int]:
        """Return the positions of the judgements that may explain a finding by the table of causes."""
        run, found = self._judgements[n].run, set[int]()
        for row in _rows_behind().get(self._judgements[n].requirement.id, ()):
            for place in (seen.place, *seen.related):
                stream = run.by_exchange.get(place.exchange)
                applies = not row.gateway or (run.is_gateway and n not in self._of_worker)
                if applies and stream is not None and REQUESTS[row.of](stream.asked):
                    found |= self._by_place.get((id(run), row.cause, (stream.dialect,)), set())
        return found

    def shown_with(self, n: int, m: int) -> bool:
        """True if a judgement may be folded under another.

        For a FAIL, both judgements must have findings in the same answer.
        """
        first, other = self._judgements[n], self._judgements[m]
        implied = other.requirement.id in (
            *first.requirement.implied_by,
            *_implied().get(first.requirement.id, ()),
        )
        # If only the place explains the failure, only the first violation of the cause counts, because the
        # report shows it. Otherwise the worst failure might be folded under a failure of another answer.
        theirs = _exchanges(other.violations if implied else other.violations[:1])
        return first.verdict is not Verdict.FAIL or not theirs.isdisjoint(_exchanges(first.violations))

    def nearness(self, n: int, m: int) -> tuple[bool, bool, bool, Specificity, int]:
        """Return a sort key that puts the most likely cause of `n` first: in the same answer, the same field,
        the same scenario.
        """
        judgement, other = self._judgements[n], self._judgements[m]
        first = judgement.violations[0]
        answers = [
            (id(judgement.run), other.requirement.id, place.exchange)
            for place in (first.place, *first.related)
        ]
        return (
            not any(m in self._by_place.get(where, ()) for where in answers),
            _field(first.place) != _field(other.violations[0].place),
            judgement.scenario != other.scenario,
            self._specific[m],
            m,
        )


@dataclass(frozen=True)
class Causes:
    """The violations that follow from other violations."""

    folded: Mapping[int, int]
    """The position of each folded judgement, with the position of its cause."""
    unexplained: Mapping[int, Observation]
    """The first unexplained finding of each judgement that has one, by position."""

    def leading(self, position: int, judgement: Judgement) -> Judgement:
        """Return the judgement at a position, with its unexplained violation first."""
        first = self.unexplained.get(position)
        if first is None:
            return judgement
        others = (violation for violation in judgement.violations if violation is not first)
        return replace(judgement, reason=first.message, violations=(first, *others))


def causes(judgements: Sequence[Judgement], of_worker: Container[int] = ()) -> Causes:
    """Find the violations that follow from other violations.

    A cause is not itself folded, and is at least as severe as its consequences. Failures that a baseline
    tolerates are ignored. `of_worker`: the positions of the failures of a gateway that its worker shows as
    well. They do not follow from an error of the gateway.
    """
    violations = _Violations(judgements, of_worker)
    folded: dict[int, int] = {}
    unexplained: dict[int, Observation] = {}

    def root(n: int) -> int:
        while n in folded:
            n = folded[n]
        return n

    def fold(n: int, *, by_table: bool) -> None:
        """Fold a judgement under its most likely cause, if each finding of the judgement has a cause.

        Otherwise note the first unexplained finding.
        """
        gravity = SEVERITY[judgements[n].verdict]
        explained: list[set[int]] = []
        for seen in judgements[n].violations:
            found = {m for m in map(root, violations.explaining(n, seen)) if violations.shown_with(n, m)}
            # A violation that itself has a cause does not explain further requests of the endpoint.
            found |= {m for m in violations.behind(n, seen) if m not in folded} if by_table else set()
            explained.append({m for m in found - {n} if SEVERITY[judgements[m].verdict] >= gravity})
            if not explained[-1]:
                unexplained[n] = seen
                return
        unexplained.pop(n, None)
        folded[n] = min(explained[0], key=lambda m: violations.nearness(n, m))

    for n in violations.positions:  # the positions are sorted: causes come before their consequences
        fold(n, by_table=False)
    for n in violations.causes_first(n for n in violations.positions if n not in folded):
        fold(n, by_table=True)
    return Causes({n: root(n) for n in folded}, unexplained)
