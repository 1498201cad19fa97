"""The proxy alters nothing and delays nothing: raw sockets on both sides see the same bytes, in step."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tokenwire.usage_error import UsageError
from tokenwire.wire.address import Address
from tokenwire_live.watch.proxy import Proxy, sides

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
RESET = struct.pack("ii", 1, 0)


class _Notes:
    """An observer that notes what it hears, and has a small place for what comes."""

    def __init__(self) -> None:
        self.notes: list[object] = []
        self._place = memoryview(b"")

    def sent(self, data: bytes) -> None:
        self.notes.append(("sent", data))

    def buffer(self) -> memoryview:
        self._place = memoryview(bytearray(5000))
        return self._place

    def received(self, size: int) -> None:
        self.notes.append(("received", bytes(self._place[:size])))

    def unsent(self) -> None:
        pass

    def resent(self) -> None:
        pass

    def client_ended(self) -> None:
        self.notes.append("client ended")

    def target_ended(self) -> None:
        self.notes.append("target ended")

    def closed(self) -> None:
        self.notes.append("closed")


class _Served:
    def __init__(self) -> None:
        self.observers: list[_Notes] = []
        self.unreachable: list[OSError] = []
        self.address: Address

    def observer(self) -> _Notes:
        self.observers.append(_Notes())
        return self.observers[-1]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port)


@contextlib.asynccontextmanager
async def proxied(handler: Handler) -> AsyncIterator[_Served]:
    """A proxy in front of a target that does with each connection as the handler says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    served = _Served()
    proxy = Proxy(Address(*server.sockets[0].getsockname()), served.observer, served.unreachable.append)
    served.address = await proxy.listen(Address("127.0.0.1", 0))
    async with server:
        yield served
        await proxy.close()


def run(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene, 30)

    asyncio.run(bounded())


REQUESTS = {
    "odd heads": b"GET /x?b=2&a=%20 HTTP/1.1\r\nhOST:   here  \r\nX-Twice: 1\r\nx-twice: 2\r\nX-Twice: 1\r\n"
    b"\r\n",
    "HEAD": b"HEAD / HTTP/1.0\r\n\r\n",
    "a body with a length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n\x00\xff\r\n\xe5",
    "a body in odd chunks": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1;name=value\r\na\r\n00A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
    "one waits for 100": b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    "two at once": b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n",
    "not HTTP at all": bytes(range(256)) * 3,
    "a large body": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n"
    + b"\x07\n\r" * 1_000_000,
}
ANSWERS = {
    "odd heads": b"HTTP/1.1 299 Rather  Fine\r\nsErVer: x\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\nrest",
    "odd chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"001;x=y\r\nd\r\n3\r\nata\r\n0\r\n\r\n",
    "CRLF events": b"HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\ndata: {}\r\n\r\n: ping\r\ndata: 1\r\n\r\n",
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n"
    b"HTTP/1.1 204 No\r\n\r\n",
    "a bare answer": b"\r\n\r\nhello",
    "nothing": b"",
    "much": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(range(256)) * 12_000,
}


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("answered", ANSWERS.values(), ids=ANSWERS)
def test_every_byte_arrives_as_it_was_sent(asked: bytes, answered: bytes) -> None:
    got: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readexactly(len(asked)))
        writer.write(answered)
        await writer.drain()

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(asked)
            assert await reader.read(-1) == answered
            writer.close()
        (observer,) = served.observers
        for kind, data in (("sent", asked), ("received", answered)):
            noted = [note[1] for note in observer.notes if isinstance(note, tuple) and note[0] == kind]
            assert b"".join(noted) == data

    run(scene())
    assert got == [asked]


def test_single_bytes_go_through_one_by_one_in_both_directions() -> None:
    """Each side waits for the byte of the other: whoever held one back would stop everything."""
    talk = b"POST / HTTP/1.1\r\n\r\n"

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while byte := await reader.read(1):
            writer.write(byte)

    async def scene() -> None:
        async with proxied(echo) as served:
            reader, writer = await served.connect()
            for byte in talk:
                writer.write(bytes([byte]))
                assert await reader.readexactly(1) == bytes([byte])
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()

    run(scene())


def test_no_event_waits_for_the_next() -> None:
    """The server writes an event only after the client has the one before."""
    seen = asyncio.Queue[int]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(50):
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            assert await seen.get() == number
        writer.write(b"0\r\n\r\n")

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            for number in range(50):
                assert (await reader.readuntil(b"\n\n\r\n")).endswith(b"data: %d\n\n\r\n" % number)
                seen.put_nowait(number)
            assert await reader.read() == b"0\r\n\r\n"
            writer.close()

    run(scene())


def test_a_connection_is_used_again_and_again() -> None:
    connections: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            for number in range(5):
                head = b"GET /%d HTTP/1.1\r\n\r\n" % number
                writer.write(head)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(len(head)) == head
            writer.close()

    run(scene())
    assert connections == [1]


def test_the_body_comes_only_after_the_target_asks_for_it() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"body")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()

    run(scene())


def test_a_half_close_is_passed_on_and_the_answer_still_comes() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(-1)
        writer.write(b"got " + asked)

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(b"all")
            writer.write_eof()
            assert await reader.read() == b"got all"
            writer.close()

    run(scene())


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


def test_a_client_that_leaves_is_seen_by_the_target() -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(b"one")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        left.set()

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(b"ask")
            assert await reader.readexactly(3) == b"one"
            _reset(writer)
            await left.wait()

    run(scene())


def test_a_target_that_cuts_is_seen_by_the_client() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(b"half")
        await reader.readexactly(3)
        _reset(writer)

    async def scene() -> None:
        async with proxied(handle) as served:
            reader, writer = await served.connect()
            writer.write(b"ask")
            assert await reader.readexactly(4) == b"half"
            writer.write(b"cut")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    run(scene())


def test_a_target_that_is_not_there_resets_the_client() -> None:
    async def scene() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
            served = _Served()
            proxy = Proxy(Address(*taken.getsockname()), served.observer, served.unreachable.append)
            served.address = await proxy.listen(Address("127.0.0.1", 0))
            reader, writer = await served.connect()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            await proxy.close()
        assert len(served.unreachable) == 1

    run(scene())


class _Transport(asyncio.Transport):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def pause_reading(self) -> None:
        self.notes.append("pause")

    def resume_reading(self) -> None:
        self.notes.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


@pytest.mark.parametrize("full", [0, 1], ids=["the client", "the target"])
def test_nobody_is_read_while_the_other_takes_nothing(full: int) -> None:
    async def scene() -> None:
        pair, transports = sides(_Notes()), (_Transport(), _Transport())
        for side, transport in zip(pair, transports, strict=True):
            side.connection_made(transport)
        pair[full].pause_writing()
        assert [item.notes for item in transports] == ([[], ["pause"]] if full == 0 else [["pause"], []])
        pair[full].resume_writing()
        assert transports[1 - full].notes == ["pause", "resume"]
        assert transports[full].notes == []

    run(scene())


@pytest.mark.parametrize(
    ("words", "why"),
    [("8080", "HOST:PORT"), ("host:x", "HOST:PORT"), (":80", "HOST:PORT"), ("h:70000", "HOST:PORT")],
)
def test_what_is_no_address_to_listen_at(words: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Address.listening(words)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host", "not the URL of a server"),
        ("http://host/v1", "has a path"),
        ("http://host:99999", "is not a URL"),
        ("http://user@host", "not the URL of a server"),
    ],
)
def test_what_is_no_target(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Address.of_target(url)


def test_addresses() -> None:
    assert Address.of_target("https://host/") == Address("host", 443, tls=True)
    assert str(Address.listening("[::1]:80")) == "[::1]:80"


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not trusted"])
def test_a_target_that_speaks_tls(certificate: tuple[Path, Path], trusted: bool) -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(head)
        writer.close()
        left.set()

    async def scene() -> None:
        speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        speaks.load_cert_chain(*certificate)
        trusts = ssl.create_default_context(cafile=certificate[0] if trusted else None)
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=speaks)
        target = Address("localhost", server.sockets[0].getsockname()[1], tls=True)
        served = _Served()
        proxy = Proxy(target, served.observer, served.unreachable.append, tls=trusts)
        served.address = await proxy.listen(Address("127.0.0.1", 0))
        reader, writer = await served.connect()
        if trusted:
            for head in (b"GET /1\r\n\r\n", b"GET /2\r\n\r\n"):
                writer.write(head)
                assert await reader.readuntil(b"\r\n\r\n") == head
            writer.close()
            await left.wait()  # the target sees that the client has gone
        else:
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
        await proxy.close()
        server.close()
        await server.wait_closed()
        assert len(served.unreachable) == (not trusted)

    run(scene())
