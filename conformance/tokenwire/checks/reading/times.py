"""Times in a run: the tokens of an answer at a moment, and exchanges that overlap."""

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
"""The unit in seconds to which the times of an exchange are rounded."""


def began(exchange: ExchangeHead) -> float | None:
    """Return when a request was sent, in seconds since the epoch; None if the capture lacks it."""
    return _seconds(exchange.started)


@lru_cache(maxsize=8192)
def _seconds(started: str) -> float | None:
    try:
        return datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None


def over(exchange: ExchangeHead) -> float | None:
    """Return when an exchange ended; None if the capture lacks it."""
    start = began(exchange)
    return None if start is None else start + exchange.duration


def overlap(first: ExchangeHead, second: ExchangeHead) -> bool:
    """True if two exchanges overlap; False if the capture has no times."""
    began_one, began_other = began(first), began(second)
    if began_one is None or began_other is None:
        return False
    return began_one < began_other + second.duration and began_other < began_one + first.duration


class Spans(Generic[_Thing]):
    """Things with a beginning and an end; those that overlap a span of time are found by bisection."""

    def __init__(self, spans: Iterable[tuple[float, float, _Thing]]) -> None:
        self._spans = sorted(spans, key=itemgetter(0))
        self._starts = [start for start, _, _ in self._spans]
        self._ends = sorted(end for _, end, _ in self._spans)
        self._longest = max((end - start for start, end, _ in self._spans), default=0.0)

    def count(self, exchange: ExchangeHead) -> int:
        """Count the things that overlap an exchange; 0 if it has no time."""
        start, end = began(exchange), over(exchange)
        if start is None or end is None:
            return 0
        return bisect_left(self._starts, end) - bisect_right(self._ends, start)

    def during(self, start: float | None, end: float | None) -> list[_Thing]:
        """Return the things that overlap a span of time; empty if the span is unknown."""
        if start is None or end is None:
            return []
        first, last = bisect_left(self._starts, start - self._longest), bisect_left(self._starts, end)
        return [thing for _, ended, thing in self._spans[first:last] if start < ended]


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total seconds that some spans of time cover."""
    covered, reached = 0.0, -inf
    for start, end in sorted(spans):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered


def timeline(under_way: Iterable[tuple[ExchangeHead, _Thing]]) -> Spans[_Thing]:
    """Return things with the times of their exchanges, without those of unknown time."""
    known = ((began(exchange), exchange.duration, thing) for exchange, thing in under_way)
    return Spans((start, start + duration, thing) for start, duration, thing in known if start is not None)


def delivered_at(stream: Stream, moment: float) -> int | None:
    """Return the least number of tokens of an answer that had arrived at a moment; None without times.

    An emission counts for one token if its choice carries neither ids nor counters.
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
