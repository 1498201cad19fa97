"""Patience with a target that falls silent: only so much of it.

Without an end to it, a target that dies would cost the time limit of every exchange that is left.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tokenwire.asking.scenario import Sender
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

LEAST = 8
"""So many exchanges in a row must have got no complete answer before a target is given up."""

_SILENT = (Ending.TIMEOUT, Ending.UNREACHABLE, Ending.OUTGROWN)


class StoppedAnswering(Exception):  # noqa: N818  # the end of the asking, not an error of the program
    """Many exchanges in a row got no complete answer; the message says how many and how they ended."""


class PatientSender:
    """Sends through another sender for as long as the target answers at least now and then."""

    def __init__(self, inner: Sender, patience: int = LEAST) -> None:
        """`patience`: how many exchanges in a row may go unanswered; as many as are under way at a time."""
        self._inner = inner
        self._patience = max(patience, LEAST)
        self._silent = 0
        self._over = False

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Send a request. Raises StoppedAnswering where that was one unanswered too many.

        Whoever asks after that is called off, as the rest of the run is: raises CancelledError.
        """
        if self._over:
            raise asyncio.CancelledError("the target was given up")
        exchange = await self._inner.send(name, scenario, request, **how)
        self._silent = self._silent + 1 if exchange.ending in _SILENT else 0
        if self._silent >= self._patience:
            self._over = True
            raise StoppedAnswering(
                f"the target stopped answering: {self._silent} exchanges in a row ended by "
                f"{exchange.ending}, the last was {name} ({exchange.detail})"
            )
        return exchange
