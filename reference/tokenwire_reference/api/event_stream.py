"""Streams: one unnamed event for each value, then `[DONE]`; and noticing that the client has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.json_answer import Json, to_json

logger = logging.getLogger(__name__)
Value = TypeVar("Value")


class ClientLeftError(Exception):
    """The connection was closed before there was an answer."""


class EventStream(StreamingResponse):
    """An answer of events. `close` is called in the end, however the stream ends.

    What fails on the way becomes the last event, in the shape that `last_words` gives it.
    """

    def __init__(
        self,
        values: AsyncIterator[Any],
        close: Callable[[], None],
        last_words: Callable[[RefusalError], Json] = RefusalError.flat_event,
    ) -> None:
        super().__init__(_events(values, last_words), media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _events(
    values: AsyncIterator[Any], last_words: Callable[[RefusalError], Json]
) -> AsyncIterator[bytes]:
    try:
        async for value in values:
            yield b"data: " + to_json(value) + b"\n\n"
    except Exception as error:
        if not isinstance(error, RefusalError):
            logger.exception("a stream failed")
        yield b"data: " + to_json(last_words(RefusalError.of_failure(error))) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def unless_client_leaves(http_request: HttpRequest, work: Awaitable[Value]) -> Value:
    """Await some work; a client that closes the connection first cancels it, which raises ClientLeftError.

    The body of the request must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(http_request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnect(http_request: HttpRequest) -> None:
    while (await http_request.receive())["type"] != "http.disconnect":
        pass


async def with_first(first: Value, rest: AsyncIterator[Value]) -> AsyncIterator[Value]:
    """Put a value that was already taken before the others."""
    yield first
    async for value in rest:
        yield value
