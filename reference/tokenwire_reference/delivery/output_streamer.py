"""When a request emits, and which range of its tokens: the one owner of output-side state. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.request import OutputRow, Request

WHOLE_INTERVAL = 50
"""Tokens between the rows of a request that is not streamed. They keep rows short; no client sees them."""

Decode = Callable[[Sequence[int]], str]


@dataclass
class _Sent:
    """How much of one live request has been emitted."""

    tokens: int = 0
    prompt_series: bool = False


class OutputStreamer:
    """Turns what a step did to its requests into rows (sgl-project/sglang PR #25634).

    A request is admitted once, emits its finish once, and is forgotten then: a request that comes back after
    its finish, as one may under overlapped scheduling, has no state here and emits nothing.
    """

    def __init__(
        self,
        *,
        stream_interval: int,
        decode: Decode | None,
        storage_backend: str | None = None,
        crash_after: int = 0,
    ) -> None:
        """Take the server's default interval and a tokenizer's plain decode, None without a tokenizer.

        `storage_backend` is what keeps the pages of the cache for good, None for nothing. `crash_after` is a
        test hook: the number of rows after which the server shall die; 0 for never.
        """
        self._stream_interval = stream_interval
        self._decode = decode
        self._storage_backend = storage_backend
        self._crash_after = crash_after
        self._emitted = 0
        self._sent: dict[str, _Sent] = {}

    def admit(self, request: Request) -> None:
        """Begin with a request. Raises ValueError where its rid is that of a live one."""
        if request.rid in self._sent:
            raise ValueError(
                f"request id {request.rid!r} is in use; a live request owns its id until it ends"
            )
        self._sent[request.rid] = _Sent()

    def stream(self, requests: Iterable[Request]) -> list[OutputRow]:
        """Give the rows that are due after a step that touched these requests."""
        rows = []
        for request in requests:
            sent = self._sent.get(request.rid)
            if sent is not None and self._is_due(request, sent):
                rows.append(request.fault.row(request, _row(request, sent, self._storage_backend)))
                if request.finish is not None:
                    del self._sent[request.rid]
        self._emitted += len(rows)
        return rows

    @property
    def must_crash(self) -> bool:
        """Whether the test hook's number of rows has been emitted."""
        return 0 < self._crash_after <= self._emitted

    def _is_due(self, request: Request, sent: _Sent) -> bool:
        if request.finish is not None:
            return True
        if request.wants_embedding:
            return False
        unsent = len(request.output_ids) - sent.tokens
        if not request.stream:
            return unsent >= WHOLE_INTERVAL
        interval = max(request.sampling.stream_interval or self._stream_interval, 1)
        first = sent.tokens == 0 and unsent > 0
        due = (first or unsent >= interval) and not self._is_held_back(request)
        return request.fault.due(request, sent.tokens, due)

    def _is_held_back(self, request: Request) -> bool:
        """Whether the text may be turning into a stop string. The next step tries a held row again."""
        stops = request.sampling.stop
        if not stops or self._decode is None:
            return False
        # Every token has at least one byte, so that many tokens reach back over the longest stop string.
        reach = max(len(stop.encode()) for stop in stops) + 4
        return may_become_stop(self._decode(request.output_ids[-reach:]), stops)


def may_become_stop(tail: str, stops: Sequence[str]) -> bool:
    """Whether a text contains a stop string, or ends in a proper prefix of one.

    An incomplete character at the end is no text yet: what stands before it decides.
    """
    tail = tail.rstrip("\ufffd")
    return any(stop in tail or any(tail.endswith(stop[:n]) for n in range(1, len(stop))) for stop in stops)


def cached_tokens_details(request: Request, storage_backend: str | None) -> Mapping[str, Any] | None:
    """Which tier of the cache the reused prompt tokens came from; None where nothing was reused.

    A server with a storage backend names it wherever it tells tiers.
    """
    device, host, storage = (
        request.cached_tokens_device,
        request.cached_tokens_host,
        request.cached_tokens_storage,
    )
    if not (device or host or storage):
        return {"device": request.cached_tokens, "host": 0} if request.cached_tokens else None
    details: dict[str, Any] = {"device": device, "host": host}
    if storage or storage_backend:
        details["storage"] = storage
    if storage_backend:
        details["storage_backend"] = storage_backend
    return details


def _row(request: Request, sent: _Sent, storage_backend: str | None) -> OutputRow:
    start, end = sent.tokens, len(request.output_ids)
    row = OutputRow(
        rid=request.rid,
        start=start,
        end=end,
        output_ids=request.output_ids[start:end],
        series={name: values[start:end] for name, values in request.series.items()},
        customized_info_keys=frozenset(request.customized_info_keys),
        prompt_series={} if sent.prompt_series else {k: list(v) for k, v in request.prompt_series.items()},
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=request.cached_tokens,
        cached_tokens_details=cached_tokens_details(request, storage_backend),
        num_retractions=request.num_retractions,
        finish=request.finish,
        embedding=request.embedding,
        drafts=request.drafts if request.finish else None,
    )
    sent.tokens, sent.prompt_series = end, True
    return row
