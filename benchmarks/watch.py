"""What `tokenwire watch` costs: streams straight from a server, and the same streams through the watcher.

    python benchmarks/watch.py                    ends with a table and the ratios

The server is our own and writes canned events, so that nothing but the way is measured. Both sides run in
turns in one run. Two questions: how long until a small event is back (one event at a time, each waiting for
the client's word), and how many bytes go through in a second. The judge works in its own process meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

from rich.console import Console
from rich.table import Table

from tokenwire.watch.proxy import Address
from tokenwire.watch.watcher import Watcher, WatchPlan

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
ASKED = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 9}, "stream": True}).encode()
REQUEST = (
    b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(ASKED), ASKED)
)


def chunk(size: int) -> bytes:
    """One event of about so many bytes, as a chunk."""
    event = b'data: {"text":"%s"}\n\n' % (b"x" * size)
    return b"%x\r\n%s\r\n" % (len(event), event)


async def serve(told: Connection) -> None:
    """After a request: for each `p` of the client a small event, for `m` many large ones to the end."""
    small, large = chunk(60), chunk(64 << 10)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(ASKED))
        writer.write(HEAD)
        while order := await reader.read(1):
            if order == b"p":
                writer.write(small)
            else:
                for _ in range(1000):
                    writer.write(large)
                    await writer.drain()
                writer.write(END)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


async def watch(target: int, told: Connection) -> None:
    """The watcher, with its judge, in front of the server."""
    plan = WatchPlan(Address("127.0.0.1", 0), Address("127.0.0.1", target))
    async with Watcher(plan) as watcher:
        told.send(watcher.listening.port)
        await asyncio.Event().wait()


def run(main: Callable[..., Awaitable[None]], *words: object) -> None:
    """What a child process does."""
    asyncio.run(main(*words))  # type: ignore[arg-type]  # every such function is a coroutine function


def started(main: Callable[..., Awaitable[None]], *words: object) -> int:
    """Start a process; the port that it listens at. It ends with us."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=(main, *words, theirs), daemon=False
    )
    process.start()
    PROCESSES.append(process)
    return int(ours.recv())


PROCESSES: list[multiprocessing.process.BaseProcess] = []


async def ping_pong(port: int, rounds: int) -> float:
    """Median seconds from a client's word to the event that answers it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    await reader.readexactly(len(HEAD))
    size, took = len(chunk(60)), []
    for _ in range(rounds):
        begin = time.perf_counter()
        writer.write(b"p")
        await reader.readexactly(size)
        took.append(time.perf_counter() - begin)
    writer.transport.abort()
    return statistics.median(took)


async def bulk(port: int) -> float:
    """Bytes in a second of one long stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(REQUEST + b"m")
    begin, total, last = time.perf_counter(), 0, b""
    while not last.endswith(END):
        data = await reader.read(1 << 20)
        total += len(data)
        last = (last + data)[-len(END) :]
    seconds = time.perf_counter() - begin
    writer.transport.abort()
    return total / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often both sides take turns")
    turns = parser.parse_args().turns
    direct = started(serve)
    through = started(watch, direct)
    latency: dict[str, list[float]] = {"direct": [], "watched": []}
    speed: dict[str, list[float]] = {"direct": [], "watched": []}
    try:
        for _ in range(turns):
            for side, port in (("direct", direct), ("watched", through)):
                latency[side].append(asyncio.run(ping_pong(port, 1000)))
                speed[side].append(asyncio.run(bulk(port)))
    finally:
        for process in PROCESSES:
            process.terminate()
    table = Table("", "direct", "watched", "ratio")
    for what, numbers, unit, scale in (
        ("one small event there and back", latency, "µs", 1e6),
        ("one stream of large events", speed, "MB/s", 1e-6),
    ):
        one, other = (statistics.median(numbers[side]) for side in ("direct", "watched"))
        table.add_row(what, f"{one * scale:.0f} {unit}", f"{other * scale:.0f} {unit}", f"{other / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
