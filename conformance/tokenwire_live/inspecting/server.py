"""The HTTP server for the pages of `inspect` and `watch`.

A page needs the secret token in its address, unless it is an open page. The Host and Origin headers of each
request are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import h11

from tokenwire.failing import tell_failure
from tokenwire.local_server import Guard
from tokenwire.usage_error import UsageError
from tokenwire.wire import strict_json
from tokenwire.wire.address import Address
from tokenwire.wire.inert import inert

_HERE = Address("127.0.0.1", 0)
_LARGEST = 16 << 20
_PATIENCE_S = 10.0
_FOREIGN = "This host or origin is not served here. Use the address that the program printed"
HTML, JSON = "text/html; charset=utf-8", "application/json"
LOCAL = "; connect-src 'self'; base-uri 'none'; form-action 'none'"
"""The part of the content security policy that lets a page send requests to this server."""
_HEADERS = ("Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin")

Get = Callable[[str], Awaitable[tuple[str, str]]]
"""Returns the media type and the text of a page. The argument is the path after the page's name."""
Post = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Handles a POST request of the page. The argument and the result are JSON values."""
Events = Callable[[Mapping[str, str]], AsyncIterator[Any]]
"""Yields messages to the page as JSON. The argument is the query in the request's URL."""


def _document(status: HTTPStatus, kind: str, text: str | None, *headers: str) -> bytes:
    """Return a response that closes the connection. Without text, the response is only the head."""
    data = b"" if text is None else inert(text).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        *([] if text is None else [f"Content-Length: {len(data)}"]),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *_HEADERS,
        *headers,
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + data


def _refused(status: HTTPStatus, *headers: str) -> bytes:
    return _document(status, "text/plain", f"{status.phrase}\n", *headers)


class PageServer:
    """Serves one request per connection.

    `open_pages`: pages that do not need the token. `way_out`: advice at the end of the message for a refused
    Host.
    """

    def __init__(
        self,
        pages: Mapping[str, Get],
        deeds: Mapping[str, Post] | None = None,
        events: Events | None = None,
        open_pages: Mapping[str, Get] | None = None,
        way_out: str = ".",
    ) -> None:
        self._foreign = f"{_FOREIGN}{way_out}"
        self._pages, self._deeds, self._events = pages, deeds or {}, events
        self._open_pages = open_pages or {}
        self._prefix = f"/{secrets.token_urlsafe(24)}/"
        self._server: asyncio.Server | None = None
        self._guard = Guard()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.open = True
        self.url = ""

    async def listen(self, address: Address = _HERE, names: Iterable[str] = ()) -> None:
        """Start the server. `names`: further host names under which it may be reached. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, address.host, address.port)
        own = frozenset(name.lower() for name in (address.host, *names))
        address = Address(*self._server.sockets[0].getsockname()[:2])
        self._guard = Guard(address.host, own)
        self.url = f"http://{address}{self._prefix}"

    async def close(self) -> None:
        """Close all connections."""
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
        try:
            await self._serve_one(reader, writer)
        except (OSError, h11.RemoteProtocolError):
            pass  # the browser has disconnected, or does not use HTTP
        except Exception as error:  # an error in one request must not print a traceback
            tell_failure("a request of the page", error)
            with contextlib.suppress(OSError):
                writer.write(_refused(HTTPStatus.INTERNAL_SERVER_ERROR))
                await writer.drain()
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of a connection. Errors are raised."""
        request, body = await asyncio.wait_for(self._request(reader), _PATIENCE_S)
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        path, _, query = request.target.decode("latin-1").partition("?")
        refusal = self._refusal(request.method, path, headers)
        if refusal is HTTPStatus.FORBIDDEN:
            writer.write(_document(refusal, "text/plain", f"{self._foreign}\n"))
        elif refusal is not None:
            writer.write(_refused(refusal))
        elif request.method == b"GET" and path == f"{self._prefix}events" and self._events is not None:
            await self._stream(writer, self._events(dict(parse_qsl(query))))
        else:
            answer = await self._answer(request.method.decode(), path, body)
            head = answer[: answer.index(b"\r\n\r\n") + 4]
            writer.write(head if request.method == b"HEAD" else answer)
        await writer.drain()

    def _refusal(self, method: bytes, path: str, headers: Mapping[str, str]) -> HTTPStatus | None:
        acts = bool(self._deeds) and method != b"GET"
        if not self._guard.admits(headers.get("host", ""), headers.get("origin"), needs_origin=acts):
            return HTTPStatus.FORBIDDEN
        known = secrets.compare_digest(path[: len(self._prefix)].encode(), self._prefix.encode())
        return None if known or path[1:] in self._open_pages else HTTPStatus.NOT_FOUND

    async def _answer(self, method: str, path: str, body: bytes) -> bytes:
        behind = path.startswith(self._prefix)
        name, _, rest = path.removeprefix(self._prefix if behind else "/").partition("/")
        page = (self._pages if behind else self._open_pages).get(name)
        try:
            if method in {"GET", "HEAD"} and page is not None:
                return _document(HTTPStatus.OK, *await page(rest))
            if method == "POST" and behind and name in self._deeds:
                result = json.dumps(await self._deeds[name](strict_json.loads(body.decode())))
                return _document(HTTPStatus.OK, JSON, result)
        except (UsageError, OSError, ValueError, LookupError, TypeError) as error:
            return _document(
                HTTPStatus.BAD_REQUEST, JSON, json.dumps({"error": inert(str(error) or repr(error))})
            )
        if page is None:
            return _refused(HTTPStatus.NOT_FOUND)
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD")

    async def _stream(self, writer: asyncio.StreamWriter, events: AsyncIterator[Any]) -> None:
        """Send server-sent events.

        Each event waits until the previous event was sent, so that a slow page does not fill memory.
        """
        writer.write(_document(HTTPStatus.OK, "text/event-stream", None))
        async for data in events:
            writer.write(f"data: {json.dumps(data)}\n\n".encode())
            await writer.drain()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes]:
        """Read a request with its body. Raises h11.RemoteProtocolError if it is invalid or too large."""
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
                if len(body) > (_LARGEST if self._deeds else 0):
                    raise h11.RemoteProtocolError("the body is too large")
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return request, body
            else:
                raise h11.RemoteProtocolError("the connection ended before a request arrived")
