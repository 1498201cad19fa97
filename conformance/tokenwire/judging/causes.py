"""Causes of failures: which violations follow from others.

A fault on the wire seldom breaks one sentence alone. A doubled id breaks the counters, the budget, the
equality with the whole answer, and all that is compared with it. A report shows such a fault once: a
violation is folded under another one if that explains every finding of it.

* by the row: `implied_by` names the other requirement, at any distance, and the same answer violates it. What
  compares answers is explained as well by a violation in the same field of any answer of their endpoints;
* by the table `spec/causes.yaml`: an endpoint ignores or mistakes what requests ask for, and its violation of
  the row that says so explains what else breaks there for such requests;
* by the place: the other is at the same pointer of the same event, or of the one that the finding was
  compared with, and is more specific.

A FAIL is folded only if an answer violates both, or by the table; and by the place alone, only if the one
that is shown does.

Verdicts do not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Something that an endpoint ignores or misinterprets."""

    cause: str
    """The requirement whose violation shows it."""
    says: str
    of: str
    """The affected requests, by a name in `REQUESTS`."""
    follows: tuple[str, ...]
    """The requirements that such requests break."""
    gateway: bool = False
    """True if only a gateway does so, compared with its worker."""


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
    """Map each requirement to the rows of the table that may explain it."""
    found: dict[str, tuple[CauseRow, ...]] = defaultdict(tuple)
    for row in cause_rows():
        for name in row.follows:
            found[name] += (row,)
    return found


@cache
def _ancestors() -> dict[str, tuple[str, ...]]:
    """Map each requirement to all its possible causes, direct or not."""
    behind = _rows_behind()
    rows = {
        name: replace(row, implied_by=(*row.implied_by, *(found.cause for found in behind.get(name, ()))))
        for name, row in load_requirements().items()
    }
    return ancestors(rows)


@cache
def _implied() -> dict[str, tuple[str, ...]]:
    """Map each requirement to those that imply it through one answer, directly or not."""
    return ancestors(load_requirements())


@cache
def _order() -> dict[str, int]:
    return {name: position for position, name in enumerate(load_requirements())}


def specificity(requirement: Requirement) -> Specificity:
    """Return a sort key that puts the most specific requirement first.

    It sorts by the number of possible causes, then by the scope of the check, then by the order of the
    specification.
    """
    return (
        len(_implied().get(requirement.id, ())),
        _MOST_SPECIFIC_FIRST.index(requirement.oracle),
        _order().get(requirement.id, len(_order())),
    )


def _field(place: Place) -> str:
    """Return the name at the end of a pointer, without indices."""
    return next((part for part in reversed(place.pointer.split("/")) if not part.isdecimal()), "")


def _exchanges(seen: Sequence[Observation]) -> set[str]:
    return {place.exchange for observation in seen for place in (observation.place, *observation.related)}


class _Violations:
    """The places of the violations of a run, by the positions of their judgements."""

    def __init__(self, judgements: Sequence[Judgement]) -> None:
        self._judgements = judgements
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
        """Return the positions in the order of the table of causes: causes before consequences."""
        names = {n: self._judgements[n].requirement.id for n in positions}
        return sorted(names, key=lambda n: (len(_ancestors().get(names[n], ())), self._specific[n], n))

    def _all_of(self, n: int, place: Place) -> Iterator[Where]:
        run, name = id(self._judgements[n].run), self._judgements[n].requirement.id
        yield run, place.exchange, place.event, place.pointer
        yield run, name, place.exchange
        yield run, name, self._endpoint(n, place)
        if place.pointer:  # two whole answers do not count as a common field
            yield run, name, self._endpoint(n, place), _field(place)

    def _endpoint(self, n: int, place: Place) -> tuple[str]:
        """Return the dialect of the answer at a place; the exchange's name if there is no such answer."""
        stream = self._judgements[n].run.by_exchange.get(place.exchange)
        return (stream.dialect if stream else place.exchange,)

    def explaining(self, n: int, seen: Observation) -> set[int]:
        """Return the judgements that may explain a finding."""
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
            if place.pointer:  # a place without a pointer is a whole event or answer, which is too large
                there = self._by_place.get((run, place.exchange, place.event, place.pointer), set())
                found |= {m for m in there if self._specific[m] < self._specific[n]}
        return found - {n}

    def behind(self, n: int, seen: Observation) -> set[int]:
        """Return the judgements that may explain a finding by the table of causes."""
        run, found = self._judgements[n].run, set[int]()
        for row in _rows_behind().get(self._judgements[n].requirement.id, ()):
            for place in (seen.place, *seen.related):
                stream = run.by_exchange.get(place.exchange)
                applies = bool(run.beside) or not row.gateway
                if applies and stream is not None and REQUESTS[row.of](stream.asked):
                    found |= self._by_place.get((id(run), row.cause, (stream.dialect,)), set())
        return found

    def shown_with(self, n: int, m: int) -> bool:
        """True if a judgement may be folded under another. A FAIL must share an answer with it."""
        first, other = self._judgements[n], self._judgements[m]
        implied = other.requirement.id in (
            *first.requirement.implied_by,
            *_implied().get(first.requirement.id, ()),
        )
        # By the place alone, only the shown answer counts. Otherwise the gravest failure of a report might be
        # folded under one of another answer.
        theirs = _exchanges(other.violations if implied else other.violations[:1])
        return first.verdict is not Verdict.FAIL or not theirs.isdisjoint(_exchanges(first.violations))

    def nearness(self, n: int, m: int) -> tuple[bool, bool, bool, Specificity, int]:
        """Return a sort key that puts the likeliest cause of `n` first: the same answer, then field, then
        scenario.
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
    """The violations that follow from others."""

    folded: Mapping[int, int]
    """The positions of the folded judgements, each with the position of its cause."""
    unexplained: Mapping[int, Observation]
    """The first unexplained finding of a judgement whose other findings are explained, by position."""

    def leading(self, position: int, judgement: Judgement) -> Judgement:
        """Return the judgement at a position, with its first unexplained violation first."""
        first = self.unexplained.get(position)
        if first is None:
            return judgement
        others = (violation for violation in judgement.violations if violation is not first)
        return replace(judgement, reason=first.message, violations=(first, *others))


def causes(judgements: Sequence[Judgement]) -> Causes:
    """Find the violations that follow from others.

    A cause does not follow from another, and is at least as grave as its consequences. Known failures of a
    baseline neither fold nor are folded.
    """
    violations = _Violations(judgements)
    folded: dict[int, int] = {}
    unexplained: dict[int, Observation] = {}

    def root(n: int) -> int:
        while n in folded:
            n = folded[n]
        return n

    def fold(n: int, *, by_table: bool) -> None:
        """Fold a judgement under its nearest cause, if each of its findings has one."""
        gravity = SEVERITY[judgements[n].verdict]
        explained: list[set[int]] = []
        for seen in judgements[n].violations:
            found = {m for m in map(root, violations.explaining(n, seen)) if violations.shown_with(n, m)}
            # A violation that itself follows from another cause does not apply to all requests of an
            # endpoint.
            found |= {m for m in violations.behind(n, seen) if m not in folded} if by_table else set()
            explained.append({m for m in found - {n} if SEVERITY[judgements[m].verdict] >= gravity})
            if not explained[-1]:
                unexplained[n] = seen
                return
        unexplained.pop(n, None)
        folded[n] = min(explained[0], key=lambda m: violations.nearness(n, m))

    for n in violations.positions:  # causes come before their consequences
        fold(n, by_table=False)
    for n in violations.causes_first(n for n in violations.positions if n not in folded):
        fold(n, by_table=True)
    return Causes({n: root(n) for n in folded}, unexplained)
