"""Stop the judging at SIGINT or SIGTERM, early enough to report the verdicts so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 5.0
"""Seconds for which judging continues after a signal. SIGKILL usually follows SIGTERM soon."""


class StoppedError(BaseException):
    """The judging must stop. This is not an Exception, so that a check cannot catch it by accident."""


class Stop:
    """Stop the judging at a signal.

    A second signal ends the process. This class has no effect outside of the main thread.
    """

    def __init__(self) -> None:
        self.reason = ""
        """The reason why the judging stopped. Empty while it continues."""
        self.share = 1.0
        """The share of the work that was done, from 0 to 1."""
        self._judging = False

    @contextmanager
    def at_signals(self, ended_by: str = "") -> Iterator[None]:
        """Stop at SIGINT and SIGTERM within the block.

        `ended_by`: the signal that ended the requests, or empty. After such a signal, judging stops after
        `PATIENCE_S` seconds.
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
                if handler is not None:  # Python returns None for a handler that it cannot restore
                    signal.signal(number, handler)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Allow interruption within the block. Raises StoppedError, also if the judging was
        stopped before.
        """
        self._judging = True
        try:
            if self.reason:
                raise StoppedError
            yield
        finally:
            self._judging = False
        if self.reason:
            # Python may have printed the first exception instead of raising it.
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
