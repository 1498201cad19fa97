"""The server of the page: on this machine only, and for nobody but who knows the token in its address.

A page of another origin can reach a port of this machine, and a name of its own may lead here: so the host
that a request names is compared, and the origin that it comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import h11

from tokenwire.usage_error import UsageError
from tokenwire.watch.admin import http_document
from tokenwire.wire.inert import inert

_HOST = "127.0.0.1"
_LARGEST = 16 << 20
_PATIENCE_S = 10.0
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_HEADERS = ("Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin")

Get = Callable[[str], Awaitable[tuple[str, str]]]
"""Makes the media type and the text of a page, of what stands behind the path that it is at."""
Post = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Does what the page asks for; both sides are JSON."""
Events = Callable[[Mapping[str, str]], AsyncIterator[Any]]
"""What the page is told from now on, as JSON, by what it wants to see."""


class Server:
    """Answers one request to a connection."""

    def __init__(self, pages: Mapping[str, Get], deeds: Mapping[str, Post], events: Events) -> None:
        self._pages, self._deeds, self._events = pages, deeds, events
        self._prefix = f"/{secrets.token_urlsafe(24)}/"
        self._server: asyncio.Server | None = None
        self._hosts: frozenset[str] = frozenset()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.open = True
        self.url = ""

    async def listen(self) -> None:
        """Begin, on a free port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        port = self._server.sockets[0].getsockname()[1]
        self._hosts = frozenset({f"{_HOST}:{port}", f"localhost:{port}"})
        self.url = f"http://{_HOST}:{port}{self._prefix}"

    async def close(self) -> None:
        """End all connections."""
        self.open = False
        if self._server is not None:
            self._server.close()
        for writer in self._serving.values():
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        task.add_done_callback(self._serving.pop)
        with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            request, body = await asyncio.wait_for(_request(reader), _PATIENCE_S)
            headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
            path, _, query = request.target.decode("latin-1").partition("?")
            refusal = self._refusal(request.method, path, headers)
            if refusal is not None:
                writer.write(http_document(refusal, "text/plain", refusal.phrase.encode(), *_HEADERS))
            elif request.method == b"GET" and path == f"{self._prefix}events":
                await self._stream(writer, dict(parse_qsl(query)))
            else:
                writer.write(await self._answer(request.method, path.removeprefix(self._prefix), body))
            await writer.drain()
        writer.close()

    def _refusal(self, method: bytes, path: str, headers: Mapping[str, str]) -> HTTPStatus | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts or origin not in (f"http://{host}", *([None] if method == b"GET" else [])):
            return HTTPStatus.FORBIDDEN
        known = secrets.compare_digest(path[: len(self._prefix)].encode(), self._prefix.encode())
        return None if known else HTTPStatus.NOT_FOUND

    async def _answer(self, method: bytes, path: str, body: bytes) -> bytes:
        name, _, rest = path.partition("/")
        try:
            if method == b"GET" and name in self._pages:
                kind, text = await self._pages[name](rest)
                return http_document(HTTPStatus.OK, kind, text.encode(), *_HEADERS)
            if method == b"POST" and name in self._deeds:
                said = json.dumps(await self._deeds[name](json.loads(body)))
                return http_document(HTTPStatus.OK, _JSON, said.encode(), *_HEADERS)
        except (UsageError, OSError, ValueError, LookupError, TypeError) as error:
            said = json.dumps({"error": inert(str(error) or repr(error))})
            return http_document(HTTPStatus.BAD_REQUEST, _JSON, said.encode(), *_HEADERS)
        return http_document(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page", *_HEADERS)

    async def _stream(self, writer: asyncio.StreamWriter, wanted: Mapping[str, str]) -> None:
        """Server-sent events, each when the one before it was taken: nothing piles up for a slow page."""
        writer.write(http_document(HTTPStatus.OK, "text/event-stream", None, *_HEADERS))
        async for data in self._events(wanted):
            writer.write(f"data: {json.dumps(data)}\n\n".encode())
            await writer.drain()


async def _request(reader: asyncio.StreamReader) -> tuple[h11.Request, bytes]:
    """A request with its body. Raises h11.RemoteProtocolError for what is none, or too large."""
    connection = h11.Connection(h11.SERVER)
    request, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _LARGEST:
                raise h11.RemoteProtocolError("the body is too large")
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request, body
        else:
            raise h11.RemoteProtocolError("the connection ended before a request came")
