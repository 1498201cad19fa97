"""The proxy: forwards bytes between a client and the target as they arrive.

Each connection of a client has one connection to the target. The bytes are not parsed and not changed:
headers, framing, chunk borders, half-closes and resets are forwarded as they are. Bytes from one side are
written to the other side before they are observed. Reading pauses while the other side does not accept data.
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
    """Receives the bytes of one connection. It must not raise exceptions or block."""

    def sent(self, data: bytes) -> None:
        """Receive bytes from the client, which were already written to the target."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes from the target."""

    def received(self, size: int) -> None:
        """Receive the number of bytes that the target has written into the last buffer.

        The bytes were already forwarded to the client.
        """

    def unsent(self) -> None:
        """Called if bytes in the last buffer were not sent yet, so the buffer must not be reused."""

    def resent(self) -> None:
        """Called after `unsent`, when the bytes in the buffer were sent or will never be sent."""

    def client_ended(self) -> None:
        """Called if the client will not send any more."""

    def target_ended(self) -> None:
        """Called if the target will not send any more."""

    def closed(self) -> None:
        """Called at the end of the connection."""


class _Side(asyncio.BaseProtocol):
    """One of the two connections, to the client or to the target."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """Create a side. ended: called when its peer will not send any more."""
        self._on_end = ended
        self.peer: _Side
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.lost = False
        """True if the connection has ended, or could not be opened."""
        self.on_both_lost: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> bool:
        """Forward a half-close.

        Return True to keep the other direction open, if the transport supports it.
        """
        self._end()
        if self.transport is None or not self.transport.can_write_eof():
            return False
        # Both sides have ended, but a connection with a half-close is not closed automatically.
        if self.peer.ended:
            self.close()
            self.peer.close()
        return True

    def pause_writing(self) -> None:
        # Read from the other side only as fast as this side accepts data. Otherwise memory would fill up.
        if self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        # A reset is forwarded as a reset. A normal close would mean that everything was sent.
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
            else:  # TLS does not have a half-close
                transport.close()
        self._on_end()

    def close(self) -> None:
        """Close the connection after pending data was written."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Reset the connection, after the kernel has accepted pending data."""
        if self.transport is None or self.transport.is_closing():
            return
        opened = cast("socket.socket | None", self.transport.get_extra_info("socket"))
        if opened is not None:
            with contextlib.suppress(OSError):  # the peer has already closed
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.close()


class _ClientSide(_Side, asyncio.Protocol):
    """The connection to the client. It is read only after the target is connected."""

    def __init__(self, observer: _ConnectionObserver) -> None:
        super().__init__(observer.client_ended)
        self._observer = observer
        self.on_made: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # With this limit, resume_writing is called when the memory of a write is free again.
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
    """The connection to the target.

    Its bytes are read into the observer's buffer, and forwarded from there.
    """

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
    """Return two connected sides."""
    client, target = _ClientSide(observer), _TargetSide(observer)
    client.peer, target.peer = target, client
    return client, target


class Proxy:
    """Listens for clients, and forwards their connections to one target.

    observer: creates the observer for a new connection. unreachable: called with the error if the target
    cannot be reached; the client's connection is then reset.
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
        """Start to listen; return the address with the actual port.

        Raises OSError if the address is in use.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, address.host, address.port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
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
        """Connect to the target, and then start to read from the client."""
        assert client.transport is not None
        # Reading is paused here and not in `connection_made`, because Python 3.11.2 (Debian 12) begins to
        # read after `connection_made` even if reading was paused.
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
