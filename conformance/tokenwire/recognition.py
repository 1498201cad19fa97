"""Recognition: which dialect an endpoint speaks, where several families share it.

A family is told by what only its own answers hold: the marks of its dialect. A dialect without marks takes
every answer that its endpoint can give, and is what is left where no mark is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tokenwire.dialect import Dialect, load_dialects
from tokenwire.exchange import Exchange, HttpRequest
from tokenwire.json_pointer import ABSENT, find, join


@dataclass(frozen=True)
class Recognised:
    """A dialect among those of one endpoint, and how it was told from the others."""

    dialect: Dialect
    why: str
    """In words, as a clause."""


def dialects_at(request: HttpRequest) -> tuple[Dialect, ...]:
    """All dialects whose endpoint a request went to, by method and path."""
    return tuple(dialect for dialect in load_dialects().values() if request in dialect.endpoint)


def recognise(candidates: Sequence[Dialect], exchanges: Iterable[Exchange]) -> Recognised:
    """The one of some dialects of one endpoint that its answers are written in.

    A mark in any answer tells; without one, the name that the server goes by does, if it is a family's; else
    the dialect without marks, or the first one where all have some. Raises ValueError where there is no
    candidate.
    """
    if not candidates:
        raise ValueError("no dialect to choose from; an endpoint that no dialect knows speaks none")
    answers = list(exchanges)
    for dialect in candidates:
        for exchange in answers:
            mark = _mark_seen(dialect, exchange)
            if mark:
                return Recognised(dialect, f"{exchange.name} holds {mark}")
    names = {exchange.server.name for exchange in answers}
    for dialect in candidates:
        if dialect.family in names:
            return Recognised(dialect, f"the server goes by the name {dialect.family}")
    unmarked = next((dialect for dialect in candidates if not dialect.marks), candidates[0])
    missing = [join(*mark) for dialect in candidates for mark in dialect.marks]
    return Recognised(unmarked, f"no answer holds {' or '.join(missing)}")


def _mark_seen(dialect: Dialect, exchange: Exchange) -> str:
    """The first mark of a dialect that an answer holds, as a pointer; empty where it holds none."""
    if exchange.status != 200 or not dialect.marks:
        return ""
    events = dialect.read(exchange).events
    seen = (mark for mark in dialect.marks if any(find(event.data, mark) is not ABSENT for event in events))
    return join(*next(seen, ()))


class Spoken:
    """Which dialect each exchange of one server is read by."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._exchanges = exchanges
        self._recognised: dict[tuple[Dialect, ...], Dialect] = {}

    def dialect_of(self, exchange: Exchange) -> Dialect | None:
        """The dialect that asked, where the exchange's name tells; else the one that its endpoint speaks.

        None for an endpoint that no dialect knows.
        """
        candidates = dialects_at(exchange.request)
        if not candidates:
            return None
        asked_by = exchange.name.partition("/")[0]
        named = next((dialect for dialect in candidates if dialect.name == asked_by), None)
        if named is not None:
            return named
        if candidates not in self._recognised:
            there = [one for one in self._exchanges if dialects_at(one.request) == candidates]
            self._recognised[candidates] = recognise(candidates, there).dialect
        return self._recognised[candidates]


def not_spoken(answers: Mapping[Dialect, Exchange]) -> dict[str, str]:
    """Of dialects that were each answered with a record, those that their endpoint does not speak, and why.

    At each endpoint one dialect is left.
    """
    reasons: dict[str, str] = {}
    shared: dict[str, list[Dialect]] = {}
    for dialect in answers:
        shared.setdefault(dialect.endpoint.path, []).append(dialect)
    for path, candidates in shared.items():
        spoken = recognise(candidates, [answers[dialect] for dialect in candidates])
        for dialect in candidates:
            if dialect is not spoken.dialect:
                reasons[dialect.name] = (
                    f"{path} speaks {spoken.dialect.name}: {spoken.why}; `--dialect {dialect.name}` insists"
                )
    return reasons
