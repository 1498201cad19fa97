"""Control requests and deaths of a server, with their times.

In this module, both are called actions. An action affects only the exchanges that overlap it in time. An
action whose time is unknown counts as affecting all exchanges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tokenwire.checks.reading.times import Spans, began, over
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Answer
from tokenwire.target.death import Death
from tokenwire.wire.exchange import ExchangeHead

DEATH = "death"


@dataclass(frozen=True)
class _Deed:
    """One control request, or one death of the server."""

    kind: str
    """The value of an `Action`, or `DEATH`."""
    began: float | None
    """The beginning, in seconds since the Unix epoch. None if the capture lacks it."""
    ended: float | None
    ids: frozenset[str] = frozenset()
    """The ids of the requests that an abort names."""
    everything: bool = False
    """True if the action aborts all requests."""

    def is_a(self, kind: str) -> bool:
        """True if the action is of the given kind.

        An action that aborts all requests also counts as an abort.
        """
        return self.kind == kind or (self.everything and kind == Action.ABORT)

    def names(self, ids: Iterable[str]) -> bool:
        """True if the action aborts a request with one of these ids, or all requests."""
        return self.everything or not self.ids.isdisjoint(ids)


class Deeds:
    """All control actions and deaths of a run. Bisection finds the actions that overlap a span of time."""

    def __init__(self, calls: Iterable[ControlCall] = (), deaths: Iterable[Death] = ()) -> None:
        called = (
            _Deed(call.action, began(call.exchange), over(call.exchange), call.ids, call.everything)
            for call in calls
            if call.action is not Action.LOAD  # a load request only reads
        )
        died = (_Deed(DEATH, death.began, death.ended) for death in deaths)
        self.every = (*called, *died)
        self._by_kind: dict[str, tuple[list[_Deed], list[_Deed], Spans[_Deed]]] = {}

    def during(self, began: float | None, ended: float | None, kind: str) -> list[_Deed]:
        """Return the actions of a kind that overlap a span of time, or whose time is unknown."""
        if kind not in self._by_kind:
            of_kind = [deed for deed in self.every if deed.is_a(kind)]
            timed = [(d.began, d.ended, d) for d in of_kind if d.began is not None and d.ended is not None]
            timeless = [deed for deed in of_kind if deed.began is None or deed.ended is None]
            self._by_kind[kind] = of_kind, timeless, Spans(timed)
        of_kind, timeless, spans = self._by_kind[kind]
        return of_kind if began is None or ended is None else timeless + spans.during(began, ended)

    def beside(self, exchange: ExchangeHead, kind: str) -> list[_Deed]:
        """Return the actions of a kind that overlap an exchange."""
        return self.during(began(exchange), over(exchange), kind)

    @cached_property
    def _ends_of_updates(self) -> list[float]:
        return sorted(
            deed.ended for deed in self.every if deed.kind == Action.UPDATE and deed.ended is not None
        )

    def weights(self, answer: Answer) -> int | None:
        """Return the number of weight updates that ended before an answer began.

        None if an update overlaps the answer, or if its time is unknown. A refused update counts, because it
        may have changed the weights.
        """
        start = began(answer.exchange)
        met = self.beside(answer.exchange, Action.UPDATE)
        return None if met else bisect_right(self._ends_of_updates, start or 0.0)


_DISTURBS = (Action.PAUSE, Action.UPDATE, Action.FLUSH)


def disturbed(streams: Iterable[Answer], deeds: Deeds) -> frozenset[str]:
    """Return the names of the exchanges that overlap a pause, a weight update or a flush."""
    if not any(deed.kind in _DISTURBS for deed in deeds.every):
        return frozenset()
    return frozenset(
        stream.exchange.name
        for stream in streams
        if any(deeds.beside(stream.exchange, kind) for kind in _DISTURBS)
    )
