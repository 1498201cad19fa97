"""How long connections last: of clients that owe a request, and of a server that is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
from unittest.mock import Mock

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from tokenwire_reference.doors.event_stream import OUTLET
from tokenwire_reference.serve import Connection, Protocol, Server
from tokenwire_reference.server_args import ServerArgs

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
SENT = {
    "nothing": b"",
    "half a head": HEAD[:20],
    "half a body": HEAD + b"ab",
}


def protocol(app, receive_seconds: float, loop=None) -> Protocol:
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    options = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": loop}
    return Protocol(**options, receive_seconds=receive_seconds)


async def answer_the_whole(scope, receive, send) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    await answer_at_once(scope, receive, send)


async def answer_at_once(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("app", [answer_the_whole, answer_at_once])
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_a_client_that_owes_is_left_in_the_end(sent, app):
    async def exchange() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(app, 0.05), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
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
    ],
)
def test_only_the_first_sigterm_waits_for_answers_that_are_under_way(serving, scripted_engine, signals, ends):
    async def told() -> tuple[bool, bool]:
        async with serving(scripted_engine([[5]]), None, ServerArgs(drain_seconds=60)) as app:
            served = app.state.served
            server = Server(served)
            server.config.load()
            server.server_state.tasks.add(Mock())
            for number in signals:
                server.handle_exit(number, None)
            return await server.on_tick(1), served.draining.is_set()

    assert asyncio.run(told()) == (ends, bool(signals))


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
        """The timers of 60 s that run: uvicorn has one of 5 s between two requests."""
        return [handle for delay, handle in self._timers if delay == 60 and not handle.cancelled()]


def test_bytes_that_come_slowly_win_no_time_and_an_answer_takes_as_long_as_it_takes():
    async def conversation() -> None:
        clock = Clock(asyncio.get_running_loop())
        client = protocol(answer_the_whole, 60, clock)
        transport = Mock(is_closing=lambda: False, get_extra_info=lambda name: None)
        client.connection_made(transport)
        (first,) = clock.waits
        for byte in HEAD + b"abc":
            client.data_received(bytes([byte]))
            assert clock.waits == [first]
        client.data_received(b"d")
        assert clock.waits == []  # the server owes now
        await asyncio.gather(*client.tasks)
        (second,) = clock.waits
        client.data_received(HEAD[:5])
        assert (clock.waits, transport.close.called) == ([second], False)
        second._run()
        assert transport.close.called
        client.connection_lost(None)
        assert clock.waits == []

    asyncio.run(conversation())


def test_what_is_written_behind_a_client_that_left_is_dropped_in_silence(caplog):
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
        server = await loop.create_server(lambda: protocol(answer_in_many_pieces, 60), "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await loop.sock_recv(client, 1)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            left.set()  # the reset, and the pieces, are there at the same look of the loop
            await answered.wait()

    asyncio.run(exchange())
    assert [record.message for record in caplog.records] == []


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"])
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"5")]])
def test_bodies_are_framed_as_h11_frames_them(head, headers):
    def framed(connection):
        connection.receive_data(head)
        while type(connection.next_event()) is not h11.EndOfMessage:
            pass
        events = [h11.Response(status_code=200, headers=headers), h11.Data(b"ab"), h11.Data(b"")]
        written = [connection.send(event) for event in [*events, h11.Data(b"cde"), h11.EndOfMessage()]]
        return written, connection.our_state

    assert framed(Connection(h11.SERVER)) == framed(h11.Connection(h11.SERVER))


def test_an_answer_is_offered_an_outlet_that_knows_when_its_connection_is_full_or_lost():
    async def conversation() -> None:
        told = []
        transport = Mock(is_closing=lambda: False, get_extra_info=lambda name: None)
        client = protocol(None, 60, asyncio.get_running_loop())

        async def answer(scope, receive, send) -> None:
            outlet = scope["extensions"][OUTLET]
            await send({"type": "http.response.start", "status": 200, "headers": []})
            transport.write.reset_mock()
            outlet.write(b"ab")
            told.append(outlet.free)
            client.pause_writing()
            told.append(outlet.free)
            client.connection_lost(None)
            told.append(outlet.free)
            outlet.write(b"cd")

        client.app = client.with_outlet(answer)
        client.connection_made(transport)
        client.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.gather(*client.tasks)
        assert told == [True, False, True]
        assert [call.args for call in transport.write.call_args_list] == [(b"2\r\nab\r\n",)]

    asyncio.run(conversation())
