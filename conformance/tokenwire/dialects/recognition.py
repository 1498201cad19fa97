"""Recognizes the dialect of an endpoint, if several server families have this endpoint.

The marks of a dialect are fields that only its own answers have. A dialect without marks fits all answers of
its endpoint, and is chosen if no mark is found. If all dialects of the endpoint have marks and none is found,
the dialect is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tokenwire.dialects.dialect import Dialect, Mark, beginning, json_values, load_dialects
from tokenwire.wire.exchange import Ending, Exchange, ExchangeHead, RequestHead

ASKS_FOR_THE_UNKNOWN = "honesty"
"""The scenario that sends unknown fields, and requests to paths that no dialect has."""
_ENOUGH_EVENTS = 16
"""The number of events that are searched for marks. A field that every event has is in one of them."""


@dataclass(frozen=True)
class _Recognised:
    """The dialect that was chosen for an endpoint, with the reason."""

    dialect: Dialect | None
    """The dialect; None if the endpoint's dialect is unknown."""
    why: str
    """The reason, for the report."""
    by_mark: bool = False
    """True if an answer has a mark of the dialect. Otherwise it was chosen as the most likely one."""


def dialects_at(request: RequestHead) -> tuple[Dialect, ...]:
    """Return all dialects with this method and path."""
    return tuple(dialect for dialect in load_dialects().values() if request in dialect.endpoint)


def recognise(candidates: Sequence[Dialect], exchanges: Iterable[ExchangeHead]) -> _Recognised:
    """Choose the dialect of one endpoint by its answers.

    If an answer has a mark, the mark decides. Otherwise the server's name decides, if it is the name of a
    family. Otherwise the dialect without marks is chosen. If no answer can have a mark, for example because
    all are errors, the most likely dialect is chosen. Raises ValueError if there are no candidates.
    """
    if not candidates:
        raise ValueError("no dialect has this endpoint, so none can be recognized")
    answers = list(exchanges)
    marked: dict[str, _Recognised] = {}
    for exchange in answers:
        # The first candidate has precedence, so no further mark is needed.
        if candidates[0].name in marked:
            break
        unseen = [dialect for dialect in candidates if dialect.marks and dialect.name not in marked]
        for dialect, mark in _marks_seen(unseen, exchange):
            marked[dialect.name] = _Recognised(dialect, f"{exchange.name} contains {mark}", by_mark=True)
    for dialect in candidates:
        if dialect.name in marked:
            return marked[dialect.name]
    names = {exchange.server.name for exchange in answers}
    for dialect in candidates:
        if dialect.family in names:
            return _Recognised(dialect, f"the server's name is {dialect.family}")
    unmarked = next((dialect for dialect in candidates if not dialect.marks), None)
    if unmarked is None and not any(
        dialect.read(answer.load()).answered for answer in answers for dialect in candidates
    ):
        likeliest = next((dialect for dialect in candidates if dialect.likeliest), None)
        return _Recognised(likeliest, "no answer shows which dialect it is")
    missing = [str(mark) for dialect in candidates for mark in dialect.marks]
    if not missing:
        return _Recognised(unmarked, "the only candidate for this endpoint")
    return _Recognised(unmarked, f"no answer contains {' or '.join(dict.fromkeys(missing))}")


def _marks_seen(dialects: Sequence[Dialect], exchange: ExchangeHead) -> Iterator[tuple[Dialect, Mark]]:
    """Yield each dialect of which an answer has a mark, with the first such mark."""
    if exchange.status != 200 or exchange.ending is Ending.OUTGROWN:
        return
    body, cut_off = beginning(exchange.load(), _ENOUGH_EVENTS), exchange.ending is not Ending.COMPLETE
    possible = {
        dialect.name: [mark for mark in dialect.marks if mark.may_stand_in(body)] for dialect in dialects
    }
    all_values = json_values(body, cut_off=cut_off) if any(possible.values()) else ()
    values = list(islice(all_values, _ENOUGH_EVENTS))
    for dialect in dialects:
        seen = (mark for mark in possible[dialect.name] if any(map(mark.seen_in, values)))
        if (first := next(seen, None)) is not None:
            yield dialect, first


class DialectResolver:
    """Finds the dialect of each exchange with one server, and stores the reason."""

    def __init__(self, exchanges: Sequence[ExchangeHead]) -> None:
        self._exchanges = exchanges
        self._recognised: dict[tuple[Dialect, ...], _Recognised] = {}
        self.why: dict[str, str] = {}
        """The reason for each dialect that was found, by its name."""

    def dialect_of(self, exchange: ExchangeHead) -> Dialect | None:
        """Return the dialect that the exchange's name contains, or else the dialect of its endpoint.

        Return None for an unknown endpoint, or if its dialect is unknown.
        """
        candidates = dialects_at(exchange.request)
        if not candidates:
            # This scenario also requests paths that no dialect has. There, only the exchange's name contains
            # the dialect.
            is_unknown_path = exchange.scenario == ASKS_FOR_THE_UNKNOWN
            return load_dialects().get(exchange.named_dialect) if is_unknown_path else None
        named = next((dialect for dialect in candidates if dialect.name == exchange.named_dialect), None)
        if named is not None:
            self.why.setdefault(named.name, "the exchanges are named after it")
            return named
        if candidates not in self._recognised:
            there = [other for other in self._exchanges if dialects_at(other.request) == candidates]
            self._recognised[candidates] = recognise(candidates, there)
        recognised = self._recognised[candidates]
        if recognised.dialect is not None:
            self.why.setdefault(recognised.dialect.name, recognised.why)
        return recognised.dialect


@dataclass(frozen=True)
class Detected:
    """The dialects that a server supports, and other dialects of the same endpoints, each with a reason."""

    taken: Mapping[str, str]
    left_out: Mapping[str, str]


def detect(answers: Mapping[Dialect, Exchange]) -> Detected:
    """Choose one dialect for each endpoint. `answers`: a response to each dialect's minimal request."""
    taken: dict[str, str] = {}
    left_out: dict[str, str] = {}
    shared: dict[str, list[Dialect]] = {}
    for dialect in answers:
        shared.setdefault(dialect.endpoint.path, []).append(dialect)
    for path, candidates in shared.items():
        spoken = recognise(candidates, [answers[dialect] for dialect in candidates])
        speaks = spoken.dialect.name if spoken.dialect else "an unknown dialect"
        for dialect in candidates:
            if dialect is spoken.dialect:
                taken[dialect.name] = f"{path} uses it: {spoken.why}"
            else:
                left_out[dialect.name] = (
                    f"{path} uses {speaks}: {spoken.why}; `--dialect {dialect.name}` overrides this"
                )
    return Detected(taken, left_out)
