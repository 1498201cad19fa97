"""The proxy that breaks off a stream: it forwards all bytes, and cuts where it is asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tokenwire.wire.address import Address
from tokenwire_live.cutting import CuttingProxy

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENTS = (b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n', b'data: {"n": 3}\n\n', b"data: [DONE]\n\n")
ASKED = b"POST /generate HTTP/1.1\r\nhost: worker\r\ncontent-length: 2\r\n\r\n{}"


def chunked(*parts: bytes) -> bytes:
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (*parts, b""))


WHOLE = HEAD + chunked(*EVENTS)
BEFORE_THE_CUT = WHOLE[: WHOLE.index(EVENTS[1]) + len(EVENTS[1])]


@asynccontextmanager
async def behind_a_proxy(answer: bytes, step: int) -> AsyncIterator[Address]:
    """A proxy before a worker that writes its answer in pieces of `step` bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        for start in range(0, len(answer), step):
            writer.write(answer[start : start + step])
            try:
                await writer.drain()
            except OSError:
                break
        writer.close()

    worker = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = worker.sockets[0].getsockname()[:2]
    proxy = CuttingProxy(Address(host, port))
    try:
        yield await proxy.listen(Address("127.0.0.1", 0))
    finally:
        await proxy.close()
        worker.close()


async def ask(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def control(address: Address, method: str, *fields: str) -> tuple[int, dict[str, int]]:
    """The status of a control request, and its answer."""
    head = "\r\n".join((f"{method} /tokenwire/cut HTTP/1.1", f"Host: {address}", *fields, "", ""))
    answer = await ask(address, head.encode())
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_one_stream_is_cut_after_its_second_event(step: int) -> None:
    async def tried() -> None:
        async with behind_a_proxy(WHOLE, step) as proxy:
            assert await ask(proxy, ASKED) == WHOLE
            assert await control(proxy, "POST") == (200, {"cuts": 0})
            assert await ask(proxy, ASKED) == BEFORE_THE_CUT
            assert await control(proxy, "DELETE") == (200, {"cuts": 1})
            assert await ask(proxy, ASKED) == WHOLE

    asyncio.run(tried())


def test_a_spared_worker_is_not_cut() -> None:
    async def tried() -> None:
        async with behind_a_proxy(WHOLE, 50) as proxy:
            await control(proxy, "POST")
            assert await control(proxy, "DELETE") == (200, {"cuts": 0})
            assert await ask(proxy, ASKED) == WHOLE

    asyncio.run(tried())


def test_an_answer_without_events_is_not_cut() -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{}\n\n{}\n\n"

    async def tried() -> None:
        async with behind_a_proxy(whole, 50) as proxy:
            await control(proxy, "POST")
            assert await ask(proxy, ASKED) == whole
            assert await control(proxy, "DELETE") == (200, {"cuts": 0})

    asyncio.run(tried())


def test_a_web_page_cannot_ask_for_a_cut() -> None:
    async def tried() -> None:
        async with behind_a_proxy(WHOLE, 50) as proxy:
            status, _ = await control(proxy, "POST", "Origin: http://evil.example")
            assert status == 403
            assert await ask(proxy, ASKED) == WHOLE

    asyncio.run(tried())
