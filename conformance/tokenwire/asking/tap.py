"""Control over how a response is read: a tap follows it and may abort it; a slow reader pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tokenwire.wire.event_stream import EventStreamParser
from tokenwire.wire.exchange import Exchange


class Tap:
    """Follows one exchange.

    The recorder reports progress to the tap. The scenario waits for progress, and may abort the exchange.
    """

    def __init__(self) -> None:
        self._events = 0
        self._began = self._over = False
        self._parser = EventStreamParser()
        self._changed = asyncio.Event()
        self.body = bytearray()
        """The body of the answer so far."""
        self.left = asyncio.Event()
        """Set once the scenario has aborted the exchange."""
        self.resets = False
        """True if the abort resets the connection (RST) instead of closing it (FIN)."""
        self.so_far: Callable[[], Exchange | None] = lambda: None
        """Returns the exchange so far, without credentials; None before it is sent."""

    async def events(self, count: int) -> bool:
        """Wait for the response head and `count` events; return False if the response ended before."""
        while not (self._began and self._events >= count):
            if self._over:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def hang_up(self, *, reset: bool = True) -> None:
        """Abort the exchange, by a reset (RST) or by closing the connection (FIN)."""
        self.resets = reset
        self.left.set()

    def begin(self) -> None:
        """Report that the response head arrived."""
        self._began = True
        self._changed.set()

    def read(self, data: bytes) -> None:
        """Report bytes of the body."""
        self.body += data
        self._events += len(self._parser.feed(data))
        self._changed.set()

    def end(self) -> None:
        """Report the end of the exchange."""
        self._over = True
        self._changed.set()


@dataclass(frozen=True)
class SlowReader:
    """Settings of a slow client: it reads a few bytes, pauses, then reads the rest."""

    after_bytes: int = 1
    """Bytes of the body before the pause."""
    pause_s: float = 2.0
    window: int = 4096
    """Size of the receive buffer in bytes. The kernel doubles it."""
