"""Streams: events for values, their end, and detection of clients that disconnect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json, to_json
from tokenwire_reference.doors.reader import Delivery, Emission
from tokenwire_reference.doors.request_manager import ClientLeftError, Generation

logger = logging.getLogger(__name__)
_Value = TypeVar("_Value")


def _unnamed(value: Json) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def _named(value: Json) -> bytes:
    return f"event: {value['type']}\n".encode() + _unnamed(value)


@dataclass(frozen=True)
class Framing:
    """A way of writing values as events."""

    event: Callable[[Json], bytes]
    end: bytes
    """The bytes after the last event."""


UNNAMED = Framing(_unnamed, b"data: [DONE]\n\n")
NAMED = Framing(_named, b"")
"""The framing of endpoints with typed items.

Each event is named by its type, and nothing follows the last event.
"""
WRITE_BYTES = 1 << 16
"""The approximate number of bytes of events that are written together."""


class Outlet(Protocol):
    """Writes parts of a body that has begun, without a coroutine for each part.

    An outlet is an extension of ASGI; a server that supports it provides it in `scope["extensions"][OUTLET]`.
    """

    @property
    def free(self) -> bool:
        """True if the connection accepts more without waiting."""

    def write(self, part: bytes) -> None:
        """Write a part; do nothing if the client has disconnected."""


OUTLET = "tokenwire.outlet"


class Writer(Protocol):
    """Formats the answers of a route: it makes a whole answer, or events, from the emissions of a call."""

    def whole(self, choices: Sequence[Emission]) -> Json:
        """Return the whole answer."""

    def of(self, emission: Emission) -> Iterable[Json]:
        """Return the events of an emission. An error event ends the stream."""

    def closing(self) -> Iterable[Json]:
        """Return the events that follow the last emission."""

    def failed(self, refusal: RefusalError) -> Json:
        """Return the last event of a stream that failed."""


class EventStream(Response):
    """An answer of events, written as they become due; its generation is always closed at the end.

    A failure becomes the last event. Each write waits for a slow client. Tokens that become due meanwhile are
    then sent as one emission. If the server offers an outlet, the events of a step are written as its rows
    are delivered, without waking a task.
    """

    def __init__(
        self,
        generation: Generation,
        first: Emission,
        writer: Writer,
        *,
        leaving: asyncio.Future[None],
        delivery: Delivery,
        framing: Framing = UNNAMED,
    ) -> None:
        """Initialize. `first` is the first emission; `leaving` completes once the client has disconnected."""
        self.status_code = 200
        self.media_type = "text/event-stream"
        self.background = None
        self.init_headers()
        self._generation = generation
        self._first: Emission | None = first
        self._writer = writer
        self._leaving = leaving
        self._delivery = delivery
        self._framing = framing
        self._parts: Iterator[bytes] = iter(())
        """The parts of the body that are ready and not written yet."""
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        outlet: Outlet | None = scope.get("extensions", {}).get(OUTLET)
        at_once = None if outlet is None else partial(self._write_at_once, outlet)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while True:
                for part in chain(self._parts, _joined(self._due())):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if self._over:
                    break
                await self._generation.woken(at_once)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientLeftError:
            return
        finally:
            self._leaving.cancel()
            self._generation.close()

    def _write_at_once(self, outlet: Outlet) -> bool:
        """Write the due events until the connection would block. Return False if some events remain."""
        if not outlet.free:
            return False
        self._parts = _joined(self._due())
        for part in self._parts:
            outlet.write(part)
            if not outlet.free:
                return False
        return not self._over

    def _due(self) -> Iterator[bytes]:
        """Yield the due events with their framing."""
        if self._over:
            return
        try:
            for emission in self._emissions():
                yield from map(self._framing.event, self._writer.of(emission))
            if self._generation.ended:
                yield from map(self._framing.event, self._writer.closing())
                self._over = True
        except Exception as error:
            if not isinstance(error, RefusalError):
                logger.exception("a stream failed")
            yield self._framing.event(self._writer.failed(RefusalError.of_failure(error)))
            self._over = True
        if self._over and self._framing.end:
            yield self._framing.end

    def _emissions(self) -> Iterator[Emission]:
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        yield from self._generation.take(self._delivery)


def _joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yield frames that are available at once, joined into few pieces."""
    waiting: list[bytes] = []
    size = 0
    for frame in frames:
        waiting.append(frame)
        size += len(frame)
        if size >= WRITE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


async def unless_client_leaves(http_request: HttpRequest, work: Awaitable[_Value]) -> _Value:
    """Await a coroutine, and cancel it if the client disconnects first; then raise ClientLeftError.

    The body of the request must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(http_request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


def once_client_leaves(http_request: HttpRequest, call: Callable[[], None]) -> asyncio.Future[None]:
    """Wait until the client has disconnected or this coroutine is cancelled, and then call a function.

    The body of the request must have been read.
    """
    leaving = asyncio.ensure_future(_disconnect(http_request.receive))
    leaving.add_done_callback(lambda _: call())
    return leaving


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
