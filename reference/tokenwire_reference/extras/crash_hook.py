"""The test hook that kills the server, so that its clients see cut streams without an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from tokenwire_reference.core.request import Row

CRASH_STATUS = 70
"""Exit status of a server that crashes by this hook."""

TURNS = 1000
"""Turns of the event loop for the last rows to reach their clients."""


class CrashAfter:
    """Delivers the rows of steps until there were `emissions` of them; then the server crashes.

    Later rows of the engine are lost.
    """

    def __init__(
        self, emissions: int, deliver: Callable[[Sequence[Row]], None], crash: Callable[[], None]
    ) -> None:
        self._left = emissions
        self._deliver = deliver
        self._crash = crash

    def __call__(self, rows: Sequence[Row]) -> None:
        """Deliver the rows of one step, unless the crash has begun."""
        if self._left > 0:
            self._deliver(rows)
            self._left -= len(rows)
            if self._left <= 0:
                self._crash()


def crash_soon(loop: asyncio.AbstractEventLoop) -> None:
    """Kill the process from any thread, after the event loop has sent its pending data."""
    asyncio.run_coroutine_threadsafe(_crash(), loop)


async def _crash() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    os._exit(CRASH_STATUS)
