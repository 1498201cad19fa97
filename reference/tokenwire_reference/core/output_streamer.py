"""Decides when a request emits, and which range of its tokens it emits.

Only this module keeps the number of sent tokens. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenwire_reference.core.request import Request, Row, alone
from tokenwire_reference.core.request_extras import WANTS_EMBEDDING

WHOLE_INTERVAL = 50
"""The number of tokens in a row of a request without streaming.

Short rows spread the work; a client cannot see them.
"""


@dataclass
class _Live:
    """A request that has not emitted its finish."""

    request: Request
    sent: int = 0
    """The number of emitted tokens."""


class OutputStreamer:
    """Turns the results of a step into rows (sgl-project/sglang PR #25634).

    A request is admitted once, emits its finish once, and is then removed. With overlapped scheduling, a
    request may come back after its finish. Such a request has no state here, and emits nothing.
    """

    def __init__(self, *, stream_interval: int) -> None:
        self._stream_interval = stream_interval
        self._live: dict[str, _Live] = {}

    @property
    def live(self) -> list[Request]:
        """Return the requests that have not emitted their finish."""
        return [entry.request for entry in self._live.values()]

    def admit(self, request: Request) -> None:
        """Add a request. Raises ValueError if a live request has the same rid."""
        if request.rid in self._live:
            raise ValueError(
                f"request id {request.rid!r} is in use; wait for that request to end, or choose another id"
            )
        self._live[request.rid] = _Live(request)

    def stream(self, requests: Iterable[Request]) -> list[Row]:
        """Return the rows that are due after a step with these requests."""
        rows = []
        for request in requests:
            live = self._live.get(request.rid)
            if live is None:
                continue
            row = alone(request, self._due_row, live, what="no row could be made of it")
            if row is None and request.finish is not None:  # a finish is always due, so the row failed
                row = Row(request, live.sent, live.sent, request.series, request.finish)
            if row is not None:
                live.sent = row.end
                rows.append(row)
                if request.finish is not None:
                    del self._live[request.rid]
        return rows

    def _due_row(self, live: _Live) -> Row | None:
        """Return the next row of a request, if one is due."""
        request = live.request
        if not self._is_due(request, live.sent):
            return None
        row = Row(request, live.sent, len(request.output_ids), request.series, request.finish)
        return request.seams.published(request, row)

    def _is_due(self, request: Request, sent: int) -> bool:
        if request.finish is not None:
            return True
        if WANTS_EMBEDDING.of(request):
            return False
        unsent = len(request.output_ids) - sent
        if not request.stream:
            return unsent >= WHOLE_INTERVAL
        interval = max(request.sampling.stream_interval or self._stream_interval, 1)
        first = sent == 0 and unsent > 0
        due = (first or unsent >= interval) and not request.held_back
        return request.seams.due(request, sent, due)
