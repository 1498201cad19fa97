"""Times in a run: the number of tokens that had arrived at a time, and exchanges that overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

from tokenwire.record import Stream
from tokenwire.wire.exchange import ExchangeHead

_Thing = TypeVar("_Thing")
INSTANT_S = 0.001
"""The resolution of the times of an exchange, in seconds."""


def began(exchange: ExchangeHead) -> float | None:
    """Return the time at which a request was sent, in seconds since the Unix epoch. None if the capture lacks
    it.
    """
    return _seconds(exchange.started)


@lru_cache(maxsize=8192)
def _seconds(started: str) -> float | None:
    try:
        return datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None


def over(exchange: ExchangeHead) -> float | None:
    """Return the time at which an exchange ended, in seconds since the Unix epoch. None if the capture lacks
    it.
    """
    start = began(exchange)
    return None if start is None else start + exchange.duration


def overlap(first: ExchangeHead, second: ExchangeHead) -> bool:
    """True if two exchanges overlap in time. False if the capture has no times."""
    began_one, began_other = began(first), began(second)
    if began_one is None or began_other is None:
        return False
    return began_one < began_other + second.duration and began_other < began_one + first.duration


class Spans(Generic[_Thing]):
    """Objects with a start time and an end time. Bisection finds those that overlap a span of time."""

    def __init__(self, spans: Iterable[tuple[float, float, _Thing]]) -> None:
        self._spans = sorted(spans, key=itemgetter(0))
        self._starts = [start for start, _, _ in self._spans]
        self._ends = sorted(end for _, end, _ in self._spans)
        self._longest = max((end - start for start, end, _ in self._spans), default=0.0)

    def count(self, exchange: ExchangeHead) -> int:
        """Count the objects that overlap an exchange. 0 if the exchange has no time."""
        start, end = began(exchange), over(exchange)
        if start is None or end is None:
            return 0
        return bisect_left(self._starts, end) - bisect_right(self._ends, start)

    def during(self, start: float | None, end: float | None) -> list[_Thing]:
        """Return the objects that overlap a span of time. Empty if the span is unknown."""
        if start is None or end is None:
            return []
        first, last = bisect_left(self._starts, start - self._longest), bisect_left(self._starts, end)
        return [thing for _, ended, thing in self._spans[first:last] if start < ended]


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total time that the spans cover, in seconds. Overlaps count once."""
    covered, reached = 0.0, -inf
    for start, end in sorted(spans):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered


def timeline(under_way: Iterable[tuple[ExchangeHead, _Thing]]) -> Spans[_Thing]:
    """Return the objects with the times of their exchanges. Exchanges without a time are left out."""
    known = ((began(exchange), exchange.duration, thing) for exchange, thing in under_way)
    return Spans((start, start + duration, thing) for start, duration, thing in known if start is not None)


def delivered_at(stream: Stream, moment: float) -> int | None:
    """Return a lower bound of the number of tokens of an answer that had arrived at a time. None if times are
    unknown.

    An emission counts as one token if its choice has neither ids nor counters.
    """
    start = began(stream.exchange)
    if start is None:
        return None
    most = come = 0
    for choice in stream.delivering:
        here = [
            emission.after for emission in choice.delivered if start + emission.event.place.time <= moment
        ]
        come += len(here)
        most = max([most, *here])
    return most or come
