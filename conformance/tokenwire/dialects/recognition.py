"""Recognizes the dialect of an endpoint that several families share.

The marks of a dialect are fields that only its own answers have. A dialect without marks fits every answer of
its endpoint, and is chosen if no mark is seen. If all have marks and none is seen, the dialect is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tokenwire.dialects.dialect import Dialect, Mark, beginning, json_values, load_dialects
from tokenwire.wire.exchange import Ending, Exchange, ExchangeHead, RequestHead

ASKS_FOR_THE_UNKNOWN = "honesty"
"""The scenario with unknown fields and paths, some of which have no endpoint."""
_ENOUGH_EVENTS = 16
"""The number of events to search. A field of every event is in one of these."""


@dataclass(frozen=True)
class _Recognised:
    """The dialect chosen for one endpoint, and the reason."""

    dialect: Dialect | None
    """The dialect; None if the endpoint uses an unknown one."""
    why: str
    """The reason as a clause."""
    by_mark: bool = False
    """True if an answer has a mark of the dialect; otherwise the dialect is only the likeliest."""


def dialects_at(request: RequestHead) -> tuple[Dialect, ...]:
    """Return all dialects with the method and path of a request."""
    return tuple(dialect for dialect in load_dialects().values() if request in dialect.endpoint)


def recognise(candidates: Sequence[Dialect], exchanges: Iterable[ExchangeHead]) -> _Recognised:
    """Recognize the dialect of one endpoint's answers.

    A mark in any answer decides. Without one, the name of the server decides, if it is a family's. Otherwise
    it is the dialect without marks, if there is one. If no answer could have a mark, it is the likeliest.
    Raises ValueError without a candidate.
    """
    if not candidates:
        raise ValueError("no dialect to choose from; an endpoint that no dialect knows speaks none")
    answers = list(exchanges)
    marked: dict[str, _Recognised] = {}
    for exchange in answers:
        # Candidates are ordered, and the first one wins.
        if candidates[0].name in marked:
            break
        unseen = [dialect for dialect in candidates if dialect.marks and dialect.name not in marked]
        for dialect, mark in _marks_seen(unseen, exchange):
            marked[dialect.name] = _Recognised(dialect, f"{exchange.name} holds {mark}", by_mark=True)
    for dialect in candidates:
        if dialect.name in marked:
            return marked[dialect.name]
    names = {exchange.server.name for exchange in answers}
    for dialect in candidates:
        if dialect.family in names:
            return _Recognised(dialect, f"the server goes by the name {dialect.family}")
    unmarked = next((dialect for dialect in candidates if not dialect.marks), None)
    if unmarked is None and not any(
        dialect.read(answer.load()).answered for answer in answers for dialect in candidates
    ):
        likeliest = next((dialect for dialect in candidates if dialect.likeliest), None)
        return _Recognised(likeliest, "no answer was there to tell by")
    missing = [str(mark) for dialect in candidates for mark in dialect.marks]
    if not missing:
        return _Recognised(unmarked, "the only candidate for this endpoint")
    return _Recognised(unmarked, f"no answer holds {' or '.join(dict.fromkeys(missing))}")


def _marks_seen(dialects: Sequence[Dialect], exchange: ExchangeHead) -> Iterator[tuple[Dialect, Mark]]:
    """Yield the first mark of each dialect that an answer has; dialects without a mark are skipped."""
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
    """Assigns a dialect to each exchange of one server, and keeps the reason."""

    def __init__(self, exchanges: Sequence[ExchangeHead]) -> None:
        self._exchanges = exchanges
        self._recognised: dict[tuple[Dialect, ...], _Recognised] = {}
        self.why: dict[str, str] = {}
        """The reason for each dialect used so far, by name."""

    def dialect_of(self, exchange: ExchangeHead) -> Dialect | None:
        """Return the dialect in the exchange's name, or else the dialect of its endpoint.

        Returns None for an unknown endpoint, or if all dialects of the endpoint have marks and none is seen.
        """
        candidates = dialects_at(exchange.request)
        if not candidates:
            # That scenario uses paths without an endpoint, so only the exchange's name shows the dialect.
            # dialect.
            is_unknown_path = exchange.scenario == ASKS_FOR_THE_UNKNOWN
            return load_dialects().get(exchange.named_dialect) if is_unknown_path else None
        named = next((dialect for dialect in candidates if dialect.name == exchange.named_dialect), None)
        if named is not None:
            self.why.setdefault(named.name, "the names of the exchanges say that it asked")
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
    """The dialects answered with a record, divided into supported and other ones, with the reasons."""

    taken: Mapping[str, str]
    left_out: Mapping[str, str]


def detect(answers: Mapping[Dialect, Exchange]) -> Detected:
    """Separate the dialects that a server uses from others of the same endpoints; one for each endpoint."""
    taken: dict[str, str] = {}
    left_out: dict[str, str] = {}
    shared: dict[str, list[Dialect]] = {}
    for dialect in answers:
        shared.setdefault(dialect.endpoint.path, []).append(dialect)
    for path, candidates in shared.items():
        spoken = recognise(candidates, [answers[dialect] for dialect in candidates])
        speaks = spoken.dialect.name if spoken.dialect else "none of the dialects known there"
        for dialect in candidates:
            if dialect is spoken.dialect:
                taken[dialect.name] = f"{path} answers in it: {spoken.why}"
            else:
                left_out[dialect.name] = (
                    f"{path} speaks {speaks}: {spoken.why}; `--dialect {dialect.name}` insists"
                )
    return Detected(taken, left_out)
