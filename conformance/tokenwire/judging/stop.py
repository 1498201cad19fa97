"""SIGINT and SIGTERM stop the judging, and leave time for a report on the verdicts so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 5.0
"""Seconds of judging after a signal, because SIGKILL usually follows SIGTERM soon."""


class StoppedError(BaseException):
    """The judging must stop. It is not an Exception, so that a check cannot catch it."""


class Stop:
    """Stops the judging at a signal; a second one ends the process. It has no effect outside the main
    thread.
    """

    def __init__(self) -> None:
        self.reason = ""
        """The reason why the judging stopped; empty while it continues."""
        self.share = 1.0
        """The share of the work that was done."""
        self._judging = False

    @contextmanager
    def at_signals(self, ended_by: str = "") -> Iterator[None]:
        """Stop at SIGINT and SIGTERM.

        `ended_by`: the signal that ended the requests, empty for none; after one, `PATIENCE_S` are left.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {number: signal.signal(number, self._signalled) for number in SIGNALS}
        alarmed = hasattr(signal, "setitimer") and bool(ended_by)
        if alarmed:
            reason = f"judging was ended {PATIENCE_S:g} s after {ended_by}"
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: self._stop(reason))
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        try:
            yield
        finally:
            if alarmed:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                if handler is not None:  # otherwise the handler is not Python's
                    signal.signal(number, handler)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Mark the block as interruptible work. Raises StoppedError, even if the judging has stopped
        before.
        """
        self._judging = True
        try:
            if self.reason:
                raise StoppedError
            yield
        finally:
            self._judging = False
        if self.reason:
            # The first exception may only have been printed.
            raise StoppedError

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        self._stop(f"{signal.Signals(number).name} ended judging")

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._judging:
            self._judging = False
            raise StoppedError
