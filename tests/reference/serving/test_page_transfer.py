"""Pages between two servers, with peers that are strangers, or that write what is no answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest
import torch

from tokenwire_reference.core.kv import StoredPage
from tokenwire_reference.doors.host_list import LOOPBACK, HostList
from tokenwire_reference.extras.page_transfer import (
    Identity,
    Pages,
    PageServer,
    TransferError,
    fetch_pages,
)

PAGE = StoredPage("computed", [torch.zeros(2)])
PAGES = Pages({b"\x01": PAGE})
LONG = 60.0
KEYED = Identity("model", "secret")
OPEN = Identity("model")
DEEP = b"[" * 100_000 + b"]" * 100_000


@contextlib.asynccontextmanager
async def page_server(identity=OPEN, patience_s=LONG):
    server = PageServer(identity, patience_s)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, ("127.0.0.1", port)
    finally:
        server.close()


@contextlib.asynccontextmanager
async def stranger(answer):
    """In place of a prefill server; its address."""

    async def write(reader, writer):
        await reader.readline()
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(write, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


async def fetch(address, room=7, identity=OPEN):
    return await fetch_pages(address, room, identity=identity, template=PAGE.payload, most=4)


async def line_for(address, line):
    """What a page server answers to a line: its first line."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(line + b"\n")
    writer.write_eof()
    answer = await reader.readline()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def of_one_line(caplog):
    """The warnings of a test: each one line and without a traceback."""
    assert {record.name for record in caplog.records} <= {"tokenwire_reference.extras.page_transfer"}
    assert not any(record.exc_info for record in caplog.records)
    messages = [record.getMessage() for record in caplog.records]
    assert not any("\n" in message for message in messages)
    return messages


def test_who_has_the_key_gets_the_pages():
    async def story():
        async with page_server(KEYED) as (server, address):
            server.expect(7)
            server.offer(7, PAGES)
            return await fetch(address, identity=KEYED)

    assert list(asyncio.run(story())) == [b"\x01"]


@pytest.mark.parametrize("key", [None, "other", "sécret"])
def test_who_has_not_the_key_gets_none_and_takes_none_away(key):
    async def story():
        async with page_server(KEYED) as (server, address):
            server.expect(7)
            server.offer(7, PAGES)
            with pytest.raises(
                TransferError, match="has an --api-key, and this server has another one or none"
            ):
                await fetch(address, identity=Identity("model", key))
            for proof in (5, None, "", "é", KEYED.asks(8)["proof"], "secret"):
                asked = json.dumps({"room": 7, "fingerprint": "model", "proof": proof}).encode()
                assert b"api-key" in await line_for(address, asked)
            assert await fetch(address, identity=KEYED)

    asyncio.run(story())


def test_the_key_is_not_sent():
    assert "secret" not in json.dumps(KEYED.asks(7)) + repr(KEYED)


def test_pages_of_another_model_are_refused():
    async def story():
        async with page_server() as (_, address):
            with pytest.raises(TransferError, match="runs another model"):
                await fetch(address, identity=Identity("another"))

    asyncio.run(story())


@pytest.mark.parametrize("early", [True, False])
def test_a_room_is_given_to_the_first_who_asks_and_to_no_other(early):
    async def story():
        async with page_server() as (server, address):
            if not early:
                server.expect(7)
            first = asyncio.create_task(fetch(address))
            while not any(room.asked_for for room in server._rooms.values()):
                await asyncio.sleep(0)
            with pytest.raises(TransferError, match="it was asked for before"):
                await fetch(address)
            server.expect(7)
            server.offer(7, PAGES)
            assert await first
            with pytest.raises(TransferError, match="it was asked for before"):
                await fetch(address)
            assert server.rooms == 0
            server.expect(7)  # another request has the number again
            server.offer(7, PAGES)
            assert await fetch(address)

    asyncio.run(story())


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        b'{"room": 1e400}',
        b'{"room": 1.5}',
        b'{"room": true}',
        b'{"room": -1}',
        b'{"room": "7"}',
        b'{"room": 99999999999999999999}',
        b'{"room": 7, "fingerprint": "\\ud800"}',
        b"[]",
        b"7",
        b"null",
        b"",
        b"\xff\xfe",
        b"GET / HTTP/1.1",
        b"x" * (1 << 21),
    ],
)
def test_what_a_stranger_writes_ends_his_connection_in_one_line_of_the_log(caplog, line):
    async def story():
        async with page_server() as (server, address):
            with contextlib.suppress(ConnectionError):
                answer = await line_for(address, line)
                assert answer in (b"", b'{"failure": "no room was named"}\n')
            assert not server._rooms
            server.expect(7)
            server.offer(7, PAGES)
            assert await fetch(address)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert len(of_one_line(caplog)) <= 1


HEAD = {"pages": [["01", "computed"]], "bytes": 8}
BAD_HEADER = b"\xff" * 8
DEEP_HEADER = (len(DEEP)).to_bytes(8, "little") + DEEP


@pytest.mark.parametrize(
    "answer",
    [
        DEEP + b"\n",
        b"[]\n",
        b"null\n",
        b"7\n",
        b"{}\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b'{"failure": "\\ud800"}\n',
        b'{"pages": 5, "bytes": 8}\n',
        b'{"pages": [[]], "bytes": 0}\n',
        b'{"pages": [["zz", "computed"]], "bytes": 0}\n',
        b'{"pages": [], "bytes": 1.5}\n',
        b'{"pages": [], "bytes": 1e400}\n',
        json.dumps(HEAD).encode() + b"\n",
        json.dumps(HEAD).encode() + b"\n" + BAD_HEADER,
        json.dumps({**HEAD, "pages": [["01", "computed"]] * 4, "bytes": len(DEEP_HEADER)}).encode()
        + b"\n"
        + DEEP_HEADER,
        b"x" * (1 << 21),
    ],
)
def test_what_is_no_handover_is_one_sentence_that_says_nothing_of_what_it_was(caplog, answer):
    async def story():
        async with stranger(answer) as address:
            with pytest.raises(TransferError) as refused:
                await fetch(address)
            return str(refused.value)

    with caplog.at_level(logging.WARNING):
        words = asyncio.run(story())
    assert words == "no pages came" or words.startswith(
        ("the prefill server sends ", "the pages of the prefill server")
    )
    assert len(of_one_line(caplog)) <= 1


def test_a_closed_port_is_not_told_from_an_open_one():
    async def story():
        async with stranger(b"SSH-2.0-x\r\n") as address:
            with pytest.raises(TransferError) as strange:
                await fetch(address)
        with pytest.raises(TransferError) as closed:
            await fetch(address)
        return str(strange.value), str(closed.value)

    strange, closed = asyncio.run(story())
    assert strange == closed == "no pages came"


@pytest.mark.parametrize(
    ("named", "asked", "may"),
    [
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "127.9.9.9", True),
        (LOOPBACK, "::1", True),
        (LOOPBACK, "LocalHost", True),
        (LOOPBACK, "10.0.0.1", False),
        (LOOPBACK, "169.254.169.254", False),
        (LOOPBACK, "::ffff:10.0.0.1", False),
        (LOOPBACK, "localhost.evil.example", False),
        (LOOPBACK, "2130706433", False),
        (LOOPBACK, "", False),
        (["prefill-0", "10.0.0.0/8", "fd00::1"], "10.9.9.9", True),
        (["prefill-0", "10.0.0.0/8", "fd00::1"], "prefill-0", True),
        (["prefill-0", "10.0.0.0/8", "fd00::1"], "fd00::1", True),
        (["prefill-0", "10.0.0.0/8", "fd00::1"], "127.0.0.1", False),
        (["prefill-0", "10.0.0.0/8", "fd00::1"], "prefill-1", False),
    ],
)
def test_hosts_that_may_be_asked(named, asked, may):
    assert (asked in HostList(named)) == may
