"""The judge's clock: limits the processor time of one check for one exchange.

Answers are untrusted, so the work on them is bounded. The limit is in seconds of processor time, so that a
busy machine does not interrupt anything. A check that exceeds it is interrupted, even inside a regular
expression. Its requirement becomes HARNESS_ERROR, and the other checks continue.

A timer of the process fires at least once a second. Work that ends within a second costs only two
assignments. Python can interrupt only its main thread. In other threads, and on systems without such timers,
nothing is limited.
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
"""The number of bytes of answers for one limit, which is the maximum size of an exchange in a capture.

A check of a larger run gets proportionally more time.
"""
_MOST_BETWEEN_S = 1.0
_LOOKS = 4
"""The minimum number of times that the timer fires within the limit."""
_DEEPEST = 200
"""The maximum number of stack frames that are searched for the current answer."""

_Result = TypeVar("_Result")


class TooSlowError(BaseException):
    """The work exceeded the limit. This is not an Exception, so that a check cannot catch it by accident."""

    def __init__(self, limit_s: float, exchange: str) -> None:
        self.exchange = exchange
        """The name of the exchange that was read. Empty if it is unknown."""
        where = f"{exchange}: " if exchange else ""
        super().__init__(
            f"{where}the check took more than {limit_s:g} s of processor time; --judge-limit N allows more"
        )


class Clock:
    """The piece of work that is running, and its time limit."""

    def __init__(self) -> None:
        self.work: object | None = None
        """A distinct object for each piece of work. None while no work is limited."""
        self._seen: object | None = None
        self._since = 0.0
        self._limit_s = DEFAULT_LIMIT_S

    @contextmanager
    def limited(self, limit_s: float) -> Iterator[None]:
        """Limit each piece of work within the block to `limit_s` seconds of processor time."""
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
        """Run a function as one piece of work. Raises TooSlowError if it exceeds the limit."""
        outer, self.work = self.work, compute
        try:
            return compute()
        finally:
            self.work = outer

    def _look(self, _number: int, frame: FrameType | None) -> None:
        """Raise TooSlowError if the same work has run since an earlier call, for longer than the limit."""
        now = time.thread_time()
        if self.work is None or self.work is not self._seen:
            self._seen, self._since = self.work, now
        elif now - self._since >= self._limit_s:
            # If Python only prints this exception, the next one is raised after another limit.
            self._since = now
            raise TooSlowError(self._limit_s, _read_in(frame))


def _read_in(frame: FrameType | None) -> str:
    """Return the name of the exchange whose answer the innermost function uses. Empty if none is found."""
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
