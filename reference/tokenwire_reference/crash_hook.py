"""The test hook that kills the server: its clients see streams that are cut, and no error."""

from __future__ import annotations

import asyncio
import os

CRASH_STATUS = 70
"""Exit status of a server that was told to crash."""

TURNS = 1000
"""Turns of the event loop in which the last rows reach their clients."""


def crash_soon(loop: asyncio.AbstractEventLoop) -> None:
    """Kill the process from any thread, once the event loop has sent what it had."""
    asyncio.run_coroutine_threadsafe(_crash(), loop)


async def _crash() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    os._exit(CRASH_STATUS)
