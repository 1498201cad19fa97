"""Ways of reading an answer under way: a tap that follows it and may leave, or a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tokenwire.wire.event_stream import EventStreamParser
from tokenwire.wire.exchange import Exchange


class Tap:
    """Given to one exchange. The scenario waits on it, and may hang up; the recorder keeps it informed."""

    def __init__(self) -> None:
        self._events = 0
        self._began = self._over = False
        self._parser = EventStreamParser()
        self._changed = asyncio.Event()
        self.body = bytearray()
        """The body of the answer so far."""
        self.left = asyncio.Event()
        """Set as soon as the client has left."""
        self.resets = False
        """True if leaving resets the connection instead of closing it."""
        self.so_far: Callable[[], Exchange | None] = lambda: None
        """The exchange as far as it has come, without credentials; None before it is sent."""

    async def events(self, count: int) -> bool:
        """Wait for the head of the answer and `count` events; false if it ended before they came."""
        while not (self._began and self._events >= count):
            if self._over:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def hang_up(self, *, reset: bool = True) -> None:
        """Leave now, whatever is still to come: by a reset (RST) or by closing (FIN)."""
        self.resets = reset
        self.left.set()

    def begin(self) -> None:
        """The head of the answer has come."""
        self._began = True
        self._changed.set()

    def read(self, data: bytes) -> None:
        """Bytes of the body have come."""
        self.body += data
        self._events += len(self._parser.feed(data))
        self._changed.set()

    def end(self) -> None:
        """The exchange is over."""
        self._over = True
        self._changed.set()


@dataclass(frozen=True)
class SlowReader:
    """A reader so slow that the server feels it: stop after the first bytes, wait, read the rest."""

    after_bytes: int = 1
    """Stop as soon as this many bytes of the body were read."""
    pause_s: float = 2.0
    window: int = 4096
    """Size of the receive buffer in bytes (the kernel doubles it)."""
