"""Passes the rows of one step at a time from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from tokenwire_reference.core.request import Row

POLL_SECONDS = 0.1
"""Seconds between checks that the loop still runs, in a thread that waits for it."""


class Handover:
    """Lets the loop deliver the rows of a step to all consumers before the next step's rows.

    The two threads share one interpreter. An engine that runs ahead would take it away after every write to a
    connection, and most of the time would be spent on switching; outputs would pile up meanwhile. It may run
    one step ahead, because computation on a device costs the loop nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Sequence[Row]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._taken = threading.Event()
        self._taken.set()

    def __call__(self, rows: Sequence[Row]) -> None:
        """Deliver the rows of a step, in the engine's thread. It waits until the previous ones are taken."""
        while not self._taken.wait(POLL_SECONDS):
            if not self._loop.is_running():
                return  # the event loop that would take them has ended
        self._taken.clear()
        self._loop.call_soon_threadsafe(self._arrive, rows)

    def _arrive(self, rows: Sequence[Row]) -> None:
        try:
            self._deliver(rows)
        finally:
            # Continue after the consumers of these rows.
            self._loop.call_soon(self._taken.set)
