"""The judge's clock: limits the processor time of one check for one exchange.

Answers are untrusted, so the work on them is bounded. The limit is in seconds of processor time, so that a
busy machine does not interrupt anything. A check that takes longer is interrupted, even inside a regular
expression, and its requirement becomes HARNESS_ERROR; others continue.

A timer of the process fires at most every second. Work that ends within a second costs two assignments.
Python interrupts only its main thread: elsewhere, and on systems without such timers, nothing is limited.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from tokenwire.record import Answer

DEFAULT_LIMIT_S = 60.0
LARGEST = 64 << 20
"""The bytes of answers covered by one limit, which is the most for an exchange of a capture. A check of a
larger run has proportionally more time.
"""
_MOST_BETWEEN_S = 1.0
_LOOKS = 4
"""The least number of timer checks within the limit."""
_DEEPEST = 200
"""The most stack frames to search for the answer that a check reads."""

_Result = TypeVar("_Result")


class TooSlowError(BaseException):
    """Some work exceeds the limit. It is not an Exception, so that a check cannot catch it."""

    def __init__(self, limit_s: float, exchange: str) -> None:
        self.exchange = exchange
        """The name of the exchange in work; empty if unknown."""
        where = f"{exchange}: " if exchange else ""
        super().__init__(
            f"{where}the check took more than {limit_s:g} s of processor time; --judge-limit N allows more"
        )


class Clock:
    """The current work and its time limit."""

    def __init__(self) -> None:
        self.work: object | None = None
        """A distinct object for each piece of work; None while nothing is limited."""
        self._seen: object | None = None
        self._since = 0.0
        self._limit_s = DEFAULT_LIMIT_S

    @contextmanager
    def limited(self, limit_s: float) -> Iterator[None]:
        """Limit each piece of work."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            yield
            return
        before, outer = self._limit_s, signal.signal(signal.SIGVTALRM, self._look)
        self._limit_s = limit_s
        tick = min(limit_s / _LOOKS, _MOST_BETWEEN_S)
        timer = signal.setitimer(signal.ITIMER_VIRTUAL, tick, tick)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
            signal.signal(signal.SIGVTALRM, outer)
            self._limit_s, self._seen = before, None

    def timed(self, compute: Callable[[], _Result]) -> _Result:
        """Compute something as one piece of work. Raises TooSlowError."""
        outer, self.work = self.work, compute
        try:
            return compute()
        finally:
            self.work = outer

    def _look(self, _number: int, frame: FrameType | None) -> None:
        """Interrupt work that was seen before and exceeds the limit, by raising TooSlowError."""
        now = time.thread_time()
        if self.work is None or self.work is not self._seen:
            self._seen, self._since = self.work, now
        elif now - self._since >= self._limit_s:
            self._since = now  # once for each limit, because Python may only print the exception
            raise TooSlowError(self._limit_s, _read_in(frame))


def _read_in(frame: FrameType | None) -> str:
    """Return the exchange that the innermost function with an answer reads."""
    for _ in range(_DEEPEST):
        if frame is None:
            break
        for value in frame.f_locals.values():
            if isinstance(value, Answer):
                return value.exchange.name
        frame = frame.f_back
    return ""


CLOCK = Clock()
"""The clock of this process."""
