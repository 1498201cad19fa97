"""Passes the rows of one step at a time from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from tokenwire_reference.core.request import Row

POLL_SECONDS = 0.1
"""Seconds between two checks that the event loop still runs, while the engine's thread waits for it."""


class Handover:
    """Delivers the rows of a step to all consumers before the rows of the next step.

    The engine's thread and the event loop share one interpreter. If the engine ran ahead, the threads would
    switch after every write to a connection, most of the time would be spent on switching, and outputs would
    pile up. The engine may run one step ahead, because computation on a device does not delay the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Sequence[Row]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._taken = threading.Event()
        self._taken.set()

    def __call__(self, rows: Sequence[Row]) -> None:
        """Deliver the rows of a step.

        Called on the engine's thread, and waits until the rows of the previous step are taken.
        """
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
