"""The TCP connection of one exchange. Arriving bytes are timestamped before anything else happens.

For a slow reader, the connection negotiates small segments and a small receive window. A server notices a
slow reader only when all socket buffers are full. Over loopback these hold 4 MB by default, and 0.1 MB with
these settings (measured on Linux 6). A server that then merges events does so after a few events.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

_SMALL_SEGMENT = 536
"""The segment size that every host must accept (RFC 9293). The kernel sizes the sender's buffer by it."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing discards unsent data and sends RST."""
_NEXT_ADDRESS_S = 2.0
"""Seconds before a connection attempt to one address of a host is given up for the next address."""
_Address = tuple[Any, ...]
"""An address as `socket.getaddrinfo` returns it."""

Arrival = tuple[float, bytes]
"""An arrival: its time on the monotonic clock, and the bytes.

Empty bytes: the server closed the connection.
"""


class Connection(asyncio.Protocol):
    """Timestamps arriving bytes, and processes them later.

    Because of the delay, concurrent connections can timestamp their own bytes first. `take` is called with
    each arrival. The caller completes the future `over`. Awaiting `over` raises an exception of `take`, or
    the reason why the connection was lost.
    """

    def __init__(self, take: Callable[[float, bytes], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Arrival] = []
        self._transport: asyncio.Transport | None = None
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._arrived.append((time.monotonic(), data))
        if len(self._arrived) == 1:
            # Process the bytes later, so that other connections can timestamp theirs first.
            self._loop.call_soon(self._hand_on)

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._hand_on()
        if not self.over.done():
            if exc is None:
                self._arrived.append((time.monotonic(), b""))
                self._hand_on()
            else:
                self.over.set_exception(exc)
        self._lost.set()

    def _hand_on(self) -> None:
        arrived, self._arrived = self._arrived, []
        try:
            for arrival, data in arrived:
                if self.over.done():
                    return
                self._take(arrival, data)
        except Exception as error:  # any exception of `take` ends the exchange
            # The exchange may have ended before, for example if the run was interrupted.
            if not self.over.done():
                self.over.set_exception(error)

    async def open(
        self, host: str, port: int, tls: ssl.SSLContext | None, window: int | None, request: bytes
    ) -> None:
        """Connect and send a request.

        `window`: size of the receive buffer in bytes; None for the default. Raises OSError.
        """
        opened = await _connected(host, port, window)
        name = host if tls is not None else None
        await self._loop.create_connection(lambda: self, sock=opened, ssl=tls, server_hostname=name)
        assert self._transport is not None
        self._transport.write(request)

    def pause(self) -> None:
        """Stop reading from the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def reset_on_close(self) -> None:
        """Make `close` reset the connection (RST)."""
        opened = self._transport.get_extra_info("socket") if self._transport is not None else None
        if opened is not None and opened.fileno() >= 0:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    async def close(self) -> None:
        """Close at once, even with data in transit."""
        if not self.over.cancel() and not self.over.cancelled():
            # asyncio logs an exception of a future that nobody fetches, so the exception is fetched here.
            self.over.exception()
        if self._transport is not None:
            self._transport.abort()
            await self._lost.wait()


async def _connected(host: str, port: int, window: int | None) -> socket.socket:
    """Return a socket connected to the first address of the host that accepts. Raises OSError."""
    *first, last = await _addresses(host, port)
    for address in first:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_NEXT_ADDRESS_S):
                return await _connected_to(address, window)
    return await _connected_to(last, window)


async def _addresses(host: str, port: int) -> Sequence[_Address]:
    with contextlib.suppress(socket.gaierror):  # a host name is not numeric; the thread below resolves it
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connected_to(address: _Address, window: int | None) -> socket.socket:
    family, kind, protocol, _, where = address
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        if window is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            if hasattr(socket, "TCP_MAXSEG"):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT)
        await asyncio.get_running_loop().sock_connect(opened, where)
    except BaseException:
        opened.close()
        raise
    return opened
