"""Deeds: what the suite did to a server, and the server's ends, each with its time.

A deed touches the exchanges that overlap it, and no others. If its time is unknown, it touches all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from tokenwire.checks.reading.times import began, over
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Answer
from tokenwire.target.death import Death
from tokenwire.wire.exchange import ExchangeHead

DEATH = "death"


@dataclass(frozen=True)
class _Deed:
    """One control call, or one death of the server."""

    kind: str
    """An `Action`, or `DEATH`."""
    began: float | None
    """In seconds of the Unix epoch; None if the capture does not say."""
    ended: float | None
    exchange: str
    """The exchange of the call, or the one that the server most likely died of."""
    ids: frozenset[str] = frozenset()
    """The requests that an abort names."""
    everything: bool = False
    """It aborts all requests."""

    def overlaps(self, began: float | None, ended: float | None) -> bool:
        """Whether it touches this span of time; true if either time is unknown."""
        if self.began is None or self.ended is None or began is None or ended is None:
            return True
        return self.began < ended and began < self.ended

    def is_a(self, kind: str) -> bool:
        """Whether it is of a kind; what aborts everything is an abort, too."""
        return self.kind == kind or (self.everything and kind == Action.ABORT)

    def names(self, ids: Iterable[str]) -> bool:
        """Whether it is an abort of any of these ids, or of everything."""
        return self.everything or not self.ids.isdisjoint(ids)


class Deeds:
    """All deeds of a run; those that overlap a span of time are found by bisection."""

    def __init__(self, calls: Iterable[ControlCall] = (), deaths: Iterable[Death] = ()) -> None:
        called = (
            _Deed(
                call.action,
                began(call.exchange),
                over(call.exchange),
                call.exchange.name,
                call.ids,
                call.everything,
            )
            for call in calls
            if call.action is not Action.LOAD  # only reads
        )
        died = (_Deed(DEATH, death.began, death.ended, death.name) for death in deaths)
        self.every = (*called, *died)
        self._by_kind: dict[str, _InOrder] = {}

    def during(self, began: float | None, ended: float | None, kind: str) -> list[_Deed]:
        """The deeds of a kind that overlap a span of time."""
        if kind not in self._by_kind:
            self._by_kind[kind] = _InOrder([deed for deed in self.every if deed.is_a(kind)])
        return [deed for deed in self._by_kind[kind].near(began, ended) if deed.overlaps(began, ended)]

    def beside(self, exchange: ExchangeHead, kind: str) -> list[_Deed]:
        """The deeds of a kind that overlap an exchange."""
        return self.during(began(exchange), over(exchange), kind)

    @cached_property
    def _ends_of_updates(self) -> list[float]:
        return sorted(
            deed.ended for deed in self.every if deed.kind == Action.UPDATE and deed.ended is not None
        )

    def weights(self, answer: Answer) -> int | None:
        """Which weights made an answer, by number; None where an update met it, or its time is unknown.

        An update that was refused may have changed them, too.
        """
        start = began(answer.exchange)
        met = self.beside(answer.exchange, Action.UPDATE)
        return None if met else bisect_right(self._ends_of_updates, start or 0.0)


_DISTURBS = (Action.PAUSE, Action.UPDATE, Action.FLUSH)


def disturbed(streams: Iterable[Answer], deeds: Deeds) -> frozenset[str]:
    """The exchanges that a pause, an update of the weights or a flush overlapped."""
    if not any(deed.kind in _DISTURBS for deed in deeds.every):
        return frozenset()
    return frozenset(
        stream.exchange.name
        for stream in streams
        if any(deeds.beside(stream.exchange, kind) for kind in _DISTURBS)
    )


class _InOrder:
    """Deeds in the order of time."""

    def __init__(self, deeds: Iterable[_Deed]) -> None:
        self._all = list(deeds)
        timed = [
            (known.began, known.ended, known)
            for known in self._all
            if known.began is not None and known.ended is not None
        ]
        timed.sort(key=itemgetter(0))
        self._timed = [deed for _, _, deed in timed]
        self._starts = [start for start, _, _ in timed]
        self._longest = max((end - start for start, end, _ in timed), default=0.0)
        self._timeless = [known for known in self._all if known.began is None or known.ended is None]

    def near(self, began: float | None, ended: float | None) -> list[_Deed]:
        """All that may overlap a span of time."""
        if began is None or ended is None:
            return self._all
        first = bisect_left(self._starts, began - self._longest)
        return self._timeless + self._timed[first : bisect_left(self._starts, ended)]
