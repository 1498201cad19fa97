"""A connection of its own for a request: one that holds back its server, or one that can be reset.

To hold a server back takes small segments and a small window, agreed on before the connection opens. A
stalled reader is felt by a server only once all buffers on the way are full. Over loopback these hold 4
MB with usual sockets and 0.1 MB with these (measured on Linux 6), so coalescing shows after a few events.
"""

# ruff: noqa: ARG002  # the signatures are those of httpcore; time is bounded by the caller

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpcore
import httpx

_SMALL_SEGMENT = 536
"""The segment size that every host must take (RFC 9293); the kernel sizes a sender's buffer by it."""


_READ_AHEAD = 65536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, on, zero seconds: closing throws away what is under way and sends RST."""


async def _connect(host: str, port: int, window: int | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        if window is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        if window is not None and hasattr(socket, "TCP_MAXSEG"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT)
        await loop.sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


class _Stream(httpcore.AsyncNetworkStream):
    """An asyncio stream in the words of httpcore."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # the peer was faster
            await self._writer.wait_closed()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._writer.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, window: int | None) -> None:
        self._window = window
        self.socket: socket.socket | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.socket = await _connect(host, port, self._window)
        limit = self._window or _READ_AHEAD
        return _Stream(*await asyncio.open_connection(sock=self.socket, limit=limit))


class _Body(httpx.AsyncByteStream):
    def __init__(self, body: AsyncIterator[bytes], pool: httpcore.AsyncConnectionPool) -> None:
        self._body = body
        self._pool = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._body:
            yield data

    async def aclose(self) -> None:
        await self._pool.aclose()


class OwnTransport(httpx.AsyncBaseTransport):
    """One connection for one request; `window` is the size of a small receive buffer, None for a usual one.

    Raises what httpcore and the operating system raise, OSError included.
    """

    def __init__(self, window: int | None = None) -> None:
        self._backend = _Backend(window)

    def reset_on_close(self) -> None:
        """Let the connection, once it is closed, end in a reset (RST)."""
        opened = self._backend.socket
        if opened is not None and opened.fileno() >= 0:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False) if request.url.scheme == "https" else None,
            network_backend=self._backend,
        )
        try:
            answer = await pool.handle_async_request(
                httpcore.Request(
                    request.method, str(request.url), headers=request.headers.raw, content=request.read()
                )
            )
        except BaseException:
            await pool.aclose()
            raise
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.aiter_stream(), pool)
        )
