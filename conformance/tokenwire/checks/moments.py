"""When things happened in a run: what had come of an answer at a moment, and which exchanges overlapped."""

from __future__ import annotations

from datetime import datetime

from tokenwire.checks.walk import walk
from tokenwire.exchange import Exchange
from tokenwire.record import Stream


def began(exchange: Exchange) -> float | None:
    """When a request was sent, in seconds since the epoch; None where the capture does not tell."""
    try:
        return datetime.fromisoformat(exchange.started).timestamp()
    except ValueError:
        return None


def over(exchange: Exchange) -> float | None:
    """When an exchange was over; None where the capture does not tell."""
    start = began(exchange)
    return None if start is None else start + exchange.duration


def overlap(one: Exchange, other: Exchange) -> bool:
    """Whether two exchanges were under way at the same time; false where a capture does not tell."""
    starts, ends = (began(one), began(other)), (over(one), over(other))
    if None in (*starts, *ends):
        return False
    return max(time for time in starts if time is not None) < min(time for time in ends if time is not None)


def delivered_at(stream: Stream, moment: float) -> int | None:
    """How many tokens of an answer had come at a moment, at least; None where the capture does not tell.

    An emission counts for one token where its choice carries neither ids nor counters.
    """
    start = began(stream.exchange)
    if start is None:
        return None
    come = [step for step in walk(stream) if start + step.emission.event.place.time <= moment]
    return max((step.after for step in come), default=0) or len(come)
