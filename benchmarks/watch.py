"""Measure the cost of `tokenwire watch` beside a proxy that only forwards bytes.

    python benchmarks/watch.py                    ends with tables
    python benchmarks/watch.py --write FILE       and writes them down for `benchmarks/page.py`

A server of our own sends one event on each of 64 streams at once, tick after tick, small ones or large, as a
conforming server would. It waits until its reader has all of them before it sends the next, so that a proxy
does not read two at once. They are read straight from it, through the bare proxy and the watcher, in turns in
one run. The cost of an event is the processor time of the proxy's process until all is judged, the least of
all turns. The judge has its own process; its cost is measured separately, on streams of a real server.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import selectors
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from judging import stream
from recorder import Arrivals, lateness
from rich.console import Console
from rich.table import Table

from tokenwire.wire.address import Address
from tokenwire.wire.exchange import Exchange
from tokenwire_live.watch.exchange_assembly import Budget
from tokenwire_live.watch.judge_process import Follower, Reporter, follow
from tokenwire_live.watch.judging import ExchangeJudge
from tokenwire_live.watch.spool import Kind, Spool, SpoolReader
from tokenwire_live.watch.watcher import Watcher, WatchPlan

STREAMS = 64
SIZES = {"small": (b"", 0.01, 200), "large": (b"x" * 65536, 0.05, 60)}
"""The filler of an event, the seconds between two, and the number of events in a stream."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_WARM = 2
"""Turns that do not count: memory that is new to a process is paid for page by page."""


def asking(ticks: int) -> bytes:
    """Make a request for `ticks` tokens."""
    body = b'{"input_ids":[1],"sampling_params":{"max_new_tokens":%d},"stream":true}' % ticks
    return b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def event(tick: int, ticks: int, padding: bytes) -> bytes:
    """Make the chunk of one event of a conforming stream; it contains the time when it was sent."""
    finish = b'{"type":"length","length":%d}' % ticks if tick == ticks - 1 else b"null"
    meta = b'"id":"a","sent":%d,"finish_reason":%s,"prompt_tokens":1,"completion_tokens":%d,"cached_tokens":0'
    figures = meta % (time.monotonic_ns(), finish, tick + 1)
    data = b'data: {"text":" word%s","output_ids":[%d],"meta_info":{%s}}\n\n' % (padding, tick, figures)
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(ticks: int, tick_s: float, padding: bytes, figures: Connection) -> None:
    """Wait until all streams have asked, send them their events, one each tick, and begin again.

    A tick begins when its time has come and the reader has reported all events of the one before.
    """
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.StreamWriter] = []
    read, sending = asyncio.Semaphore(0), set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        waiting.append(writer)
        if len(waiting) == STREAMS:
            ready, waiting[:] = list(waiting), []
            sending.add(asyncio.create_task(send(ready)))

    async def send(ready: list[asyncio.StreamWriter]) -> None:
        due = loop.time()
        for tick in range(ticks):
            due = max(due, loop.time())
            await asyncio.sleep(due - loop.time())
            due += tick_s
            for writer in ready:
                writer.write(event(tick, ticks, padding))
            await read.acquire()
        for writer in ready:
            writer.write(END)
            writer.close()

    def have_read() -> None:
        figures.recv_bytes()
        read.release()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=256)
    figures.send(server.sockets[0].getsockname()[1])
    loop.add_reader(figures.fileno(), have_read)
    async with server:
        await server.serve_forever()


def serving(ticks: int, tick_s: float, padding: bytes, figures: Connection) -> None:
    asyncio.run(serve(ticks, tick_s, padding, figures))


def read_in_step(port: int, ticks: int, server: Connection) -> Arrivals:
    """Read all streams up to the end of each event, note the time, and notify the server of each
    whole tick.
    """
    selector, arrived = selectors.DefaultSelector(), []
    begun: dict[int, bytes] = {}
    events = 0
    for _ in range(STREAMS):
        opened = socket.create_connection(("127.0.0.1", port))
        opened.sendall(asking(ticks))
        opened.setblocking(False)
        selector.register(opened, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 18)
            now = time.monotonic()
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                continue
            data = begun.pop(key.fd, b"") + data
            if not data.endswith((b"\n\n\r\n", b"0\r\n\r\n")):
                begun[key.fd] = data
                continue
            arrived.append((now, data))
            events += data.count(b'"sent":')
            if events == STREAMS:
                events = 0
                server.send_bytes(b"read")
    selector.close()
    return arrived


class _Forward(asyncio.Protocol):
    """Half of a proxy that forwards, holds back, and does nothing else."""

    def __init__(self, other: _Forward | None, target: int) -> None:
        self.other = other
        self.target = target
        self.transport: asyncio.Transport | None = None
        self.early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.other is None:
            loop = asyncio.get_running_loop()
            opening = loop.create_connection(lambda: _Forward(self, 0), "127.0.0.1", self.target)
            self.opening = asyncio.ensure_future(opening)
        else:
            self.other.other = self
            self.transport.write(bytes(self.other.early))

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def forward(target: int, figures: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Forward(None, target), "127.0.0.1", 0, backlog=256
    )
    figures.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def watch(target: int, figures: Connection) -> None:
    plan = WatchPlan(Address("127.0.0.1", 0), Address("127.0.0.1", target))
    async with Watcher(plan) as watcher:
        figures.send(watcher.listening.port)
        before, counts = 0, watcher.counts
        while True:
            await asyncio.sleep(0.5)
            if (now := counts.total.judged + counts.gaps.total()) != before:
                before = now
                figures.send((counts.total.judged, dict(counts.gaps)))


def bare(target: int, figures: Connection) -> None:
    asyncio.run(forward(target, figures))


def watching(target: int, figures: Connection) -> None:
    asyncio.run(watch(target, figures))


@dataclass
class Side:
    """A process to read from, and what came of it over all turns."""

    port: int
    of: multiprocessing.process.BaseProcess
    pipe: Connection
    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    judged: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def started(cls, main: Callable[..., None], *words: object) -> Side:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=main, args=(*words, theirs))
        child.start()
        return cls(int(ours.recv()), child, ours)

    def processor(self) -> float:
        """Seconds that its process computed so far."""
        return time.clock_gettime((~cast(int, self.of.pid) << 3) | 2)

    def turn(self, server: Side, ticks: int, *, judged: int, counts: bool) -> None:
        """Run one turn.

        `judged`: the exchanges that have to be judged or skipped by its end. They are a part of its cost, and
        would disturb the next turn.
        """
        began, events = self.processor(), STREAMS * ticks
        late = lateness(read_in_step(self.port, ticks, server.pipe), events)
        while self.judged + sum(self.skipped.values()) < judged:
            self.judged, self.skipped = self.pipe.recv()
        if not counts:
            return
        self.cpu.append((self.processor() - began) / events * 1e6)
        self.p50.append(late[len(late) // 2] * 1e6)
        self.p99.append(late[len(late) * 99 // 100] * 1e6)


def measure(size: str, turns: int) -> list[dict[str, Any]]:
    padding, tick_s, ticks = SIZES[size]
    server = Side.started(serving, ticks, tick_s, padding)
    sides = {"straight": server}
    try:
        sides |= {"bare proxy": Side.started(bare, server.port), "watch": Side.started(watching, server.port)}
        for turn in range(_WARM + turns):
            for name, side in sides.items():
                judged = (turn + 1) * STREAMS if name == "watch" else 0
                side.turn(server, ticks, judged=judged, counts=turn >= _WARM)
    finally:
        for side in sides.values():
            side.of.terminate()
    p50, p99 = (statistics.median(item) for item in (server.p50, server.p99))
    return [
        {
            "events": size,
            "side": name,
            "cpu": min(side.cpu),
            "p50": statistics.median(side.p50) - p50,
            "p99": statistics.median(side.p99) - p99,
            "judged": side.judged if name == "watch" else None,
            "skipped": side.skipped if name == "watch" else None,
        }
        for name, side in sides.items()
        if side is not server
    ]


def append(spool: Spool, connection: int, answer: Exchange) -> None:
    """Append the records of a connection on which the answer of a real server passed."""
    body = json.dumps(answer.request.body).encode()
    asked = b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    spool.append(connection, Kind.OPENED)
    spool.append_request(connection, asked)
    chunks = [b"%x\r\n%s\r\n" % (len(read.data), read.data) for read in answer.reads]
    for data in (HEAD, *chunks, b"0\r\n\r\n"):
        spool.append(connection, Kind.RECEIVED, data)
    spool.append(connection, Kind.CLOSED)


def judge(turns: int) -> float:
    """Return events that the process of the judge hears in a second of one core, reading and
    answering included.
    """
    spool, together = Spool(16 << 20), 8
    for connection in range(together):
        append(spool, connection, stream(256))
    spool.publish()
    figures = [json.dumps([batch.start, batch.end, batch.position, []]).encode() for batch in spool.batches]
    reporter = Reporter(ExchangeJudge(), None, io.StringIO())
    taken = []
    for _ in range(turns):
        began = time.process_time()
        reader = SpoolReader(spool.fd, spool.size)
        follow(figures, Follower(reader, reporter, Budget(256 << 20, 64 << 20)), reporter)
        taken.append(together * 256 / (time.process_time() - began))
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often the sides take turns")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was measured")
    asked = parser.parse_args()
    figures = [row for size in SIZES for row in measure(size, asked.turns)]
    beside = {row["events"]: row["cpu"] for row in figures if row["side"] == "bare proxy"}
    table = Table(
        "events", "side", "CPU an event", "throughput beside bare", "added p50", "added p99", "judged"
    )
    for row in figures:
        row["throughput"] = beside[row["events"]] / row["cpu"]
        skipped = ", ".join(f"{count} {reason}" for reason, count in (row["skipped"] or {}).items())
        judged = "" if row["judged"] is None else f"{row['judged']}; gaps: {skipped or 'none'}"
        table.add_row(
            *(row["events"], row["side"], f"{row['cpu']:.1f} µs", f"{row['throughput']:.2f}"),
            *(f"{row['p50']:.0f} µs", f"{row['p99']:.0f} µs", judged),
        )
    console, judged_events = Console(), judge(asked.turns)
    console.print(table)
    console.print(f"the judge hears {judged_events:,.0f} events in a second of one core")
    if asked.write is not None:
        asked.write.write_text(
            json.dumps({"sides": figures, "judge": judged_events}, indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
