"""When a request emits, and which range of its tokens: the one owner of output-side state. No torch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.core.request import FinishReason, OutputRow, Request

logger = logging.getLogger(__name__)

WHOLE_INTERVAL = 50
"""Tokens between the rows of a request that is not streamed. They keep rows short; no client sees them."""


@dataclass
class _Live:
    """A request that has not emitted its finish."""

    request: Request
    sent: int = 0
    """How many of its tokens have been emitted."""


class OutputStreamer:
    """Turns what a step did to its requests into rows (sgl-project/sglang PR #25634).

    A request is admitted once, emits its finish once, and is forgotten then: a request that comes back after
    its finish, as one may under overlapped scheduling, has no state here and emits nothing.
    """

    def __init__(
        self,
        *,
        stream_interval: int,
        storage_backend: str | None = None,
    ) -> None:
        """Take the server's default interval, and what keeps the pages of the cache for good, if anything."""
        self._stream_interval = stream_interval
        self._storage_backend = storage_backend
        self._live: dict[str, _Live] = {}

    @property
    def live(self) -> list[Request]:
        """The requests that have not emitted their finish."""
        return [each.request for each in self._live.values()]

    def admit(self, request: Request) -> None:
        """Begin with a request. Raises ValueError where its rid is that of a live one."""
        if request.rid in self._live:
            raise ValueError(
                f"request id {request.rid!r} is in use; a live request owns its id until it ends"
            )
        self._live[request.rid] = _Live(request)

    def stream(self, requests: Iterable[Request]) -> list[OutputRow]:
        """Give the rows that are due after a step that touched these requests."""
        rows = []
        for request in requests:
            live = self._live.get(request.rid)
            if live is None:
                continue
            try:
                row = self._due_row(live)
            except Exception as error:  # made for one request: the rows of the others go out
                logger.exception("no row could be made of request %r", request.rid)
                request.finish = FinishReason.of_failure(error)
                row = _last_row(request, live.sent)
            if row is not None:
                live.sent = row.end
                rows.append(row)
                if request.finish is not None:
                    del self._live[request.rid]
        return rows

    def _due_row(self, live: _Live) -> OutputRow | None:
        """The next row of a request, if one is due."""
        request = live.request
        if not self._is_due(request, live.sent):
            return None
        return request.seams.row(request, _row(request, live.sent, self._storage_backend))

    def _is_due(self, request: Request, sent: int) -> bool:
        if request.finish is not None:
            return True
        if request.wants_embedding:
            return False
        unsent = len(request.output_ids) - sent
        if not request.stream:
            return unsent >= WHOLE_INTERVAL
        interval = max(request.sampling.stream_interval or self._stream_interval, 1)
        first = sent == 0 and unsent > 0
        due = (first or unsent >= interval) and not request.held_back
        return request.seams.due(request, sent, due)


def cached_tokens_details(request: Request, storage_backend: str | None) -> Mapping[str, Any] | None:
    """Which tier of the cache the reused prompt tokens came from; None where nothing was reused.

    A server with a storage backend names it wherever it tells tiers.
    """
    if not request.cached_tokens:
        return None
    details: dict[str, Any] = {"device": request.cached_tokens_device, "host": request.cached_tokens_host}
    if request.cached_tokens_storage or storage_backend:
        details["storage"] = request.cached_tokens_storage
    if storage_backend:
        details["storage_backend"] = storage_backend
    return details


def _last_row(request: Request, sent: int) -> OutputRow:
    """The end of a request without anything that was not sent before."""
    return OutputRow(
        rid=request.rid,
        start=sent,
        end=sent,
        output_ids=[],
        series={},
        customized_info_keys=frozenset(),
        prompt_series={},
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=request.cached_tokens,
        cached_tokens_details=None,
        num_retractions=request.num_retractions,
        finish=request.finish,
    )


def _row(request: Request, start: int, storage_backend: str | None) -> OutputRow:
    end = len(request.output_ids)
    return OutputRow(
        rid=request.rid,
        start=start,
        end=end,
        output_ids=request.output_ids[start:end],
        series={name: values[start:end] for name, values in request.series.items()},
        customized_info_keys=frozenset(request.customized_info_keys),
        # Only a first row begins at 0: a row without tokens is the last.
        prompt_series={} if start else {k: list(v) for k, v in request.prompt_series.items()},
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=request.cached_tokens,
        cached_tokens_details=cached_tokens_details(request, storage_backend),
        num_retractions=request.num_retractions,
        finish=request.finish,
        embedding=request.embedding,
        drafts=request.drafts if request.finish else None,
        routed_experts=request.routed_experts,
    )
