"""How long connections last: of clients that owe a request, and of a server that is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import struct
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tokenwire_reference.connection import Connection, OverConnections
from tokenwire_reference.doors.event_stream import OUTLET
from tokenwire_reference.doors.heads import MOST_HEAD_BYTES
from tokenwire_reference.serve import AcceptFailures, Ending
from tokenwire_reference.server_args import ServerArgs

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
SENT = {
    "nothing": b"",
    "half a head": HEAD[:20],
    "half a body": HEAD + b"ab",
}


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def connect(request):
    """Makes a connection for an application, by each parser that uvicorn has."""

    def make(app, **limits) -> Connection:
        config = uvicorn.Config(OverConnections(app), lifespan="off", log_config=None)
        config.load()
        options = {"config": config, "server_state": ServerState()}
        return Connection(request.param, ServerArgs(**limits), **options, app_state={})

    return make


@contextlib.asynccontextmanager
async def listening(connect, app, **limits):
    """A server for one application: its address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connect(app, **limits), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


async def answer_the_whole(scope, receive, send) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    await answer_at_once(scope, receive, send)


async def answer_at_once(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("app", [answer_the_whole, answer_at_once])
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_a_client_that_owes_is_left_in_the_end(connect, sent, app):
    async def exchange() -> None:
        async with listening(connect, app, receive_seconds=0.05) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):  # a reset, if it had not read all that we sent
                await asyncio.wait_for(reader.read(), 60)  # ends as the server closes
            writer.close()

    asyncio.run(exchange())


@pytest.mark.parametrize(
    ("signals", "ends"),
    [
        ((), False),
        ((signal.SIGTERM,), False),
        ((signal.SIGTERM, signal.SIGTERM), True),
        ((signal.SIGTERM, signal.SIGINT), True),
        ((signal.SIGINT,), True),
        ((None,), True),
    ],
)
@pytest.mark.parametrize("idle", [False, True])
def test_only_the_first_sigterm_waits_for_answers_that_are_under_way(
    serving, scripted_engine, signals, ends, idle
):
    async def ended() -> tuple[bool, bool]:
        async with serving(scripted_engine([[5]]), None, ServerArgs(drain_seconds=60)) as app:
            served = app.state.served
            ending = Ending(served)
            if not idle:
                ending.answers.idle.clear()
            for number in signals:
                ending.end(number)
            for _ in range(10):
                await asyncio.sleep(0)
            return ending.server.should_exit, served.draining.is_set()

    assert asyncio.run(ended()) == (ends or (idle and bool(signals)), bool(signals))


def transport_of(**more) -> Mock:
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing = lambda: transport.close.called or transport.abort.called
    transport.get_extra_info = lambda name: None
    transport.configure_mock(**more)
    return transport


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Clock:
    """An event loop whose timers are kept, and never run by themselves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []

    def __getattr__(self, name: str):
        return getattr(self._loop, name)

    def call_later(self, delay: float, callback, *args) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(delay, callback, args, self._loop)
        self._timers.append((delay, handle))
        return handle

    @property
    def waits(self) -> list[asyncio.TimerHandle]:
        """The timers of 60 s that run."""
        return [handle for delay, handle in self._timers if delay == 60 and not handle.cancelled()]


def test_bytes_that_come_slowly_win_no_time_and_an_answer_takes_as_long_as_it_takes(connect):
    async def conversation() -> None:
        clock = Clock(asyncio.get_running_loop())
        client = connect(answer_the_whole, receive_seconds=60)
        client._loop = clock
        transport = transport_of()
        client.connection_made(transport)
        (first,) = clock.waits
        for byte in HEAD + b"abc":
            client.data_received(bytes([byte]))
            await turns()
            assert clock.waits == [first]
        client.data_received(b"d")
        await turns()
        (second,) = clock.waits
        assert first.cancelled()
        client.data_received(HEAD[:5])
        assert (clock.waits, transport.close.called) == ([second], False)
        second._run()
        assert transport.close.called
        client.connection_lost(None)
        assert clock.waits == []

    asyncio.run(conversation())


def test_what_is_written_behind_a_client_that_left_is_dropped_in_silence(connect, caplog):
    """A batch tells of many choices before the loop learns that the first of them could not be sent."""
    left, answered = asyncio.Event(), asyncio.Event()

    async def answer_in_many_pieces(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await left.wait()
        for piece in range(20):
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": piece < 19})
        answered.set()

    async def exchange() -> None:
        loop = asyncio.get_running_loop()
        async with listening(connect, answer_in_many_pieces) as address:
            with socket.create_connection(address) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, GET)
                await loop.sock_recv(client, 1)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            left.set()  # the reset, and the pieces, are there at the same turn of the loop
            await answered.wait()
            await turns()

    asyncio.run(exchange())
    assert [record.message for record in caplog.records] == []


def test_an_answer_is_offered_an_outlet_that_knows_when_its_connection_is_full_or_lost(connect):
    async def conversation() -> None:
        seen = []
        transport = transport_of()

        async def answer(scope, receive, send) -> None:
            outlet = scope["extensions"][OUTLET]
            await send({"type": "http.response.start", "status": 200, "headers": []})
            transport.write.reset_mock()
            outlet.write(b"ab")
            seen.append(outlet.free)
            client.pause_writing()
            seen.append(outlet.free)
            transport.close()
            seen.append(outlet.free)
            outlet.write(b"cd")
            client.connection_lost(None)

        client = connect(answer)
        client.connection_made(transport)
        client.data_received(GET)
        await turns()
        assert seen == [True, False, True]
        assert [call.args for call in transport.write.call_args_list] == [(b"2\r\nab\r\n",)]

    asyncio.run(conversation())


def test_a_client_that_reads_nothing_is_left_and_one_that_reads_slowly_is_not(connect):
    async def conversation() -> None:
        clock = Clock(asyncio.get_running_loop())
        client = connect(answer_at_once, send_seconds=60, receive_seconds=1)
        client._loop = clock
        transport = transport_of(get_write_buffer_size=Mock(side_effect=[100, 90, 90, 50, 50]))
        client.connection_made(transport)
        client.pause_writing()
        (first,) = clock.waits
        first._run()  # it has read 10 bytes
        second = clock.waits[-1]
        assert (second is first, transport.abort.called) == (False, False)
        client.resume_writing()
        assert second.cancelled()
        client.pause_writing()
        clock.waits[-1]._run()
        assert transport.abort.called

    asyncio.run(conversation())


def test_what_waits_for_a_client_that_never_reads_is_forgotten(connect):
    """On real sockets: megabytes wait, and the connection ends."""
    ended = asyncio.Event()

    async def answer_a_lot(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while (await receive())["type"] != "http.disconnect":
                await send({"type": "http.response.body", "body": bytes(1 << 24), "more_body": True})
            ended.set()
        finally:
            await send({"type": "http.response.body", "body": b""})

    async def exchange() -> None:
        async with listening(connect, answer_a_lot, send_seconds=0.05) as address:
            with socket.create_connection(address) as client:
                await asyncio.get_running_loop().sock_sendall(client, GET)
                await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(exchange())


def test_a_client_that_leaves_behind_its_next_request_is_noticed(connect):
    left = asyncio.Event()

    async def answer(scope, receive, send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async def conversation() -> None:
        client = connect(answer)
        client.connection_made(transport_of())
        client.data_received(GET + GET)
        await turns()
        client.connection_lost(None)
        await asyncio.wait_for(left.wait(), 60)

    asyncio.run(conversation())


@pytest.mark.parametrize("before", [b"", GET])
def test_a_head_without_end_is_refused(connect, before):
    async def conversation() -> None:
        client, transport = connect(answer_at_once), transport_of()
        client.connection_made(transport)
        if before:
            client.data_received(before)
            await turns()
            transport.write.reset_mock()
        client.data_received(b"GET / HTTP/1.1\r\n")
        parts = 0
        while not transport.close.called:
            client.data_received(b"x-%d: " % parts + b"x" * 1000 + b"\r\n")
            await turns()
            parts += 1
            assert parts * 1000 < MOST_HEAD_BYTES + 3000
        assert transport.write.call_args_list[0].args[0].split()[1] in {b"431", b"400"}

    asyncio.run(conversation())


def test_a_server_without_file_descriptors_says_so_once(caplog):
    loop = Mock(time=Mock(side_effect=[5.0, 5.0, 5.5, 16.0, 16.0]))
    handle = AcceptFailures()
    full = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "Too many"),
    }
    handle(loop, full)
    handle(loop, full)
    assert [record.message for record in caplog.records] == ["new connections wait: [Errno 24] Too many"]
    handle(loop, full)
    assert len(caplog.records) == 2
    assert not loop.default_exception_handler.called
    handle(loop, {"message": "another", "exception": OSError(errno.EPIPE, "Broken pipe")})
    assert loop.default_exception_handler.called
