"""A connection between its socket and uvicorn, built with public interfaces of asyncio, ASGI and uvicorn.

uvicorn buffers 64 KiB before an answer has to wait, and this would prevent coalescing. Here an answer waits
as soon as the kernel accepts no more bytes. uvicorn also sets no time limit for the arrival of a request or
for a client that does not read. It accepts request heads of any length. It does not notice that a client
disconnects after sending another request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenwire_reference.doors.event_stream import OUTLET
from tokenwire_reference.doors.heads import MOST_HEAD_BYTES
from tokenwire_reference.server_args import ServerArgs

HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
_CONNECTION = "tokenwire.connection"
"""The key of the connection in the `state` of a request."""


class Connection(asyncio.Protocol):
    """Passes all calls of asyncio on to uvicorn's protocol, and adds time limits and limits of size."""

    def __init__(
        self, http: Callable[..., Any], args: ServerArgs, *, app_state: dict[str, Any], **options: Any
    ) -> None:
        self._http: asyncio.Protocol = http(app_state={**app_state, _CONNECTION: self}, **options)
        self._args = args
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.left = asyncio.Event()
        """An event that is set once the connection is lost."""
        self._head_bytes = 0
        """The number of bytes received since the last request began."""
        self._answering = False
        self._full = False
        self._unsent = 0
        """The number of unsent bytes at the last check, to detect a client that does not read."""
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> bool:
        """True if written bytes cannot reach the client."""
        return self._transport.is_closing()

    @property
    def free(self) -> bool:
        """True if a write need not wait."""
        return not self._full or self.lost

    def request_began(self) -> None:
        """Note that the request head arrived."""
        self._answering = True

    def answer_ended(self) -> None:
        """Note that the answer is complete, and wait for the next request."""
        self._answering = False
        self._head_bytes = 0
        self._await_request()

    def _await_request(self) -> None:
        """Start the time limit for the arrival of the whole next request, however slowly its bytes arrive."""
        if self._receiving is None and not self.lost:
            self._receiving = self._loop.call_later(self._args.receive_seconds, self._transport.close)

    def request_came(self) -> None:
        """Note that the request is complete, and cancel its time limit."""
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self._http.connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            if self._head_bytes > MOST_HEAD_BYTES:
                self._transport.write(HEAD_TOO_LONG)
                self._transport.close()
                return
            self._head_bytes += len(data)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()
        self.request_came()
        self._all_sent()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._full = True
        self._await_reader()
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._all_sent()
        self._http.resume_writing()

    def _await_reader(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self._sending = self._loop.call_later(self._args.send_seconds, self._check_reader)

    def _check_reader(self) -> None:
        """Close the connection and discard its pending bytes if the client has read nothing since the last
        check.
        """
        if self._transport.get_write_buffer_size() < self._unsent:
            self._await_reader()
        else:
            self._transport.abort()

    def _all_sent(self) -> None:
        self._full = False
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None


class _Outlet:
    """Writes parts of the body of one answer directly to the connection (see `event_stream.Outlet`)."""

    def __init__(self, connection: Connection, send: Send) -> None:
        self._connection = connection
        self._send = send

    @property
    def free(self) -> bool:
        return self._connection.free

    def write(self, part: bytes) -> None:
        if self._connection.lost:
            return
        writing = self._send({"type": "http.response.body", "body": part, "more_body": True})
        try:
            writing.__await__().send(None)  # Writing directly costs less than creating a task for the write.
        except StopIteration:
            return
        raise RuntimeError("a write has to wait although the connection reported free space")


class OverConnections:
    """Wraps an ASGI application: connects each answer with its `Connection`, and counts running answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answers = 0
        self.idle = asyncio.Event()
        """An event that is set while no answer is running."""
        self.idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope["state"].pop(_CONNECTION)
        more = True

        async def receive_or_leave() -> Message:
            nonlocal more
            if not more:
                await connection.left.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            more = message.get("more_body", False)
            if not more:
                connection.request_came()
            return message

        async def send_unless_lost(message: Message) -> None:
            # Each further part of an answer would raise this error, and asyncio would log a warning for each.
            if not (connection.lost and message.get("more_body", False)):
                await send(message)

        connection.request_began()
        if not any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"]):
            connection.request_came()
        self._answers += 1
        self.idle.clear()
        extensions = {**scope.get("extensions", {}), OUTLET: _Outlet(connection, send)}
        try:
            await self._app({**scope, "extensions": extensions}, receive_or_leave, send_unless_lost)
        finally:
            self._answers -= 1
            if not self._answers:
                self.idle.set()
            connection.answer_ended()
