"""The proxy: forwards bytes between connections as they arrive.

Each connection of a client has one connection to the target. Nothing is parsed, so nothing is altered: heads,
framing, chunk borders, half-closes and resets arrive unchanged. Each read is first written to the other side,
and reading pauses while the other side does not accept data.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Protocol, cast

from tokenwire.wire.address import Address

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing sends RST."""


class _ConnectionObserver(Protocol):
    """Receives the bytes of one connection. It must neither raise nor block."""

    def sent(self, data: bytes) -> None:
        """Observe bytes from the client, which were written to the target."""

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes from the target."""

    def received(self, size: int) -> None:
        """Observe bytes from the target in the last buffer, which were written to the client."""

    def unsent(self) -> None:
        """Observe that bytes in the last buffer wait to be sent."""

    def resent(self) -> None:
        """Observe that these bytes were sent, or never will be."""

    def client_ended(self) -> None:
        """Observe that the client sends nothing more."""

    def target_ended(self) -> None:
        """Observe that the target sends nothing more."""

    def closed(self) -> None:
        """Observe the end of the connection."""


class _Side(asyncio.BaseProtocol):
    """One of the two connections of a pair."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """Initialize. ended: called when this side sends nothing more."""
        self._on_end = ended
        self.peer: _Side
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.lost = False
        """True if its connection has ended, or failed to open."""
        self.on_both_lost: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> bool:
        """Forward the half-close. True keeps the other direction open, if the transport can."""
        self._end()
        if self.transport is None or not self.transport.can_write_eof():
            return False
        # Both sides have ended, and a half-closed connection does not close by itself.
        if self.peer.ended:
            self.close()
            self.peer.close()
        return True

    def pause_writing(self) -> None:
        # The other side is read no faster than this one accepts data; otherwise memory would fill.
        if self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        # A reset is forwarded as a reset, because a close would mean that everything was sent.
        if exc is not None:
            self.peer.reset()
        else:
            self.peer.close()
        if not self.ended:
            self.ended = True
            self._on_end()
        if self.peer.lost:
            self.on_both_lost()

    def _end(self) -> None:
        self.ended = True
        transport = self.peer.transport
        if transport is not None and not transport.is_closing():
            if transport.can_write_eof():
                transport.write_eof()
            else:  # TLS has no half-close
                transport.close()
        self._on_end()

    def close(self) -> None:
        """Close after pending writes."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Close with a reset, after the kernel accepted pending writes."""
        if self.transport is None or self.transport.is_closing():
            return
        opened = cast("socket.socket | None", self.transport.get_extra_info("socket"))
        if opened is not None:
            with contextlib.suppress(OSError):  # the peer closed first
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.close()


class _ClientSide(_Side, asyncio.Protocol):
    """The client's side, which is read only after the target is connected."""

    def __init__(self, observer: _ConnectionObserver) -> None:
        super().__init__(observer.client_ended)
        self._observer = observer
        self.on_made: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # With this limit, pause_writing and resume_writing show when the memory of a write is free again.
        cast(asyncio.WriteTransport, transport).set_write_buffer_limits(0)
        self.on_made()

    def data_received(self, data: bytes) -> None:
        if self.peer.transport is not None:
            self.peer.transport.write(data)
        self._observer.sent(data)

    def pause_writing(self) -> None:
        self._observer.unsent()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._observer.resent()
        super().resume_writing()


class _TargetSide(_Side, asyncio.BufferedProtocol):
    """The target's side, whose bytes are received in the observer's buffer and forwarded from there."""

    def __init__(self, observer: _ConnectionObserver) -> None:
        super().__init__(observer.target_ended)
        self._observer = observer
        self._buffer = memoryview(b"")

    def get_buffer(self, _: int) -> memoryview:
        self._buffer = self._observer.buffer()
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.peer.transport is not None:
            self.peer.transport.write(self._buffer[:nbytes])
        self._observer.received(nbytes)


def sides(observer: _ConnectionObserver) -> tuple[_ClientSide, _TargetSide]:
    """Return both sides of a new pair."""
    client, target = _ClientSide(observer), _TargetSide(observer)
    client.peer, target.peer = target, client
    return client, target


class Proxy:
    """Listens, and forwards all connections to one target.

    observer: makes the observer of a new connection. unreachable: called with the error if the target cannot
    be reached; the client's connection is reset.
    """

    def __init__(
        self,
        target: Address,
        observer: Callable[[], _ConnectionObserver],
        unreachable: Callable[[OSError], None],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = target
        self._observer = observer
        self._unreachable = unreachable
        self._tls = (tls or ssl.create_default_context()) if target.tls else None
        self._open: dict[_ClientSide, _ConnectionObserver] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Start, and return the address with its port. Raises OSError if it is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, address.host, address.port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        """Stop listening, and close open connections."""
        if self._server is not None:
            self._server.close()
        for connecting in self._connecting:
            connecting.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for client, observer in self._open.items():
            for side in (client, client.peer):
                if side.transport is not None:
                    side.transport.abort()
            observer.closed()
        self._open.clear()

    def _accept(self) -> asyncio.Protocol:
        observer = self._observer()
        client, target = sides(observer)
        client.on_made = lambda: self._begin(client, target, observer)
        client.on_both_lost = target.on_both_lost = lambda: self._over(client)
        return client

    def _begin(self, client: _ClientSide, target: _TargetSide, observer: _ConnectionObserver) -> None:
        self._open[client] = observer
        connecting = asyncio.create_task(self._connect(client, target))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def _over(self, client: _ClientSide) -> None:
        observer = self._open.pop(client, None)
        if observer is not None:
            observer.closed()

    async def _connect(self, client: _ClientSide, target: _TargetSide) -> None:
        """Connect to the target, then read from the client."""
        assert client.transport is not None
        # Not in `connection_made`, because Python 3.11.2 (Debian 12) begins to read after it even if paused.
        # This runs before the data is processed.
        client.transport.pause_reading()
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: target, self._target.host, self._target.port, ssl=self._tls
            )
        except OSError as error:
            self._unreachable(error)
            target.lost = True
            if client.lost:
                self._over(client)
            client.reset()
        else:
            client.transport.resume_reading()
            if client.lost:
                target.close()
