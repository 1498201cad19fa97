"""A test hook that kills the server, so that its clients see streams that end early and without an error
event.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from tokenwire_reference.core.request import Row

CRASH_STATUS = 70
"""The exit status of a server that this hook kills."""

TURNS = 1000
"""The number of iterations of the event loop before the crash, so that the last rows reach their clients."""


class CrashAfter:
    """Delivers the first `emissions` rows, and then crashes the server.

    Later rows are lost.
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
    """Kill the process after the event loop has sent its pending data. May be called from any thread."""
    asyncio.run_coroutine_threadsafe(_crash(), loop)


async def _crash() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    os._exit(CRASH_STATUS)
