"""What `tokenwire watch` costs beside a proxy that does nothing but forward bytes.

    python benchmarks/watch.py                    ends with tables
    python benchmarks/watch.py --write FILE       and writes them down for `benchmarks/page.py`

A server of our own sends one event on each of 64 streams at once, tick after tick, small ones or large ones.
They are read straight from it, through the bare proxy and through the watcher, in turns in one run. What an
event costs is the processor time of the proxy's process, the least of all turns; the judge works in a
process of its own meanwhile, and what it costs is told by itself, on streams of a real server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from judging import stream
from recorder import PADDING, by_raw_socket, lateness, process
from rich.console import Console
from rich.table import Table

from tokenwire.watch.judging import Bench
from tokenwire.watch.proxy import Address
from tokenwire.watch.watcher import Watcher, WatchPlan

STREAMS = 64
SIZES = {"small": (PADDING, 0.01, 200), "large": (PADDING + b',"text":"%s"' % (b"x" * 65536), 0.05, 60)}
"""What fills an event, the seconds between two, and how many of them a stream has."""


_WARM = 2
"""Turns that do not count: memory that is new to a process is paid for page by page."""


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


async def forward(target: int, told: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Forward(None, target), "127.0.0.1", 0, backlog=256
    )
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def watch(target: int, told: Connection) -> None:
    plan = WatchPlan(Address("127.0.0.1", 0), Address("127.0.0.1", target))
    async with Watcher(plan) as watcher:
        told.send(watcher.listening.port)
        while True:
            await asyncio.sleep(0.5)
            told.send((watcher.tally.judged, dict(watcher.tally.gaps)))


def bare(target: int, told: Connection) -> None:
    asyncio.run(forward(target, told))


def watching(target: int, told: Connection) -> None:
    asyncio.run(watch(target, told))


@dataclass
class Side:
    """A process to read from, and what came of it over all turns."""

    port: int
    of: multiprocessing.process.BaseProcess
    pipe: Connection
    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    @classmethod
    def started(cls, main: Callable[..., None], *words: object, more: tuple[object, ...] = ()) -> Side:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=main, args=(*words, theirs, *more))
        child.start()
        return cls(int(ours.recv()), child, ours)

    def processor(self) -> float:
        """Seconds that its process computed so far."""
        return time.clock_gettime((~cast(int, self.of.pid) << 3) | 2)

    def turn(self, ticks: int, *, counts: bool) -> None:
        began, events = self.processor(), STREAMS * ticks
        late = lateness(by_raw_socket(self.port, STREAMS, whole=True), events)
        if not counts:
            return
        self.cpu.append((self.processor() - began) / events * 1e6)
        self.p50.append(late[len(late) // 2] * 1e6)
        self.p99.append(late[len(late) * 99 // 100] * 1e6)


def measure(size: str, turns: int) -> list[dict[str, Any]]:
    padding, tick_s, ticks = SIZES[size]
    server = Side.started(process, STREAMS, ticks, more=(tick_s, padding))
    sides = {"straight": server}
    try:
        sides |= {"bare proxy": Side.started(bare, server.port), "watch": Side.started(watching, server.port)}
        for turn in range(_WARM + turns):
            for side in sides.values():
                side.turn(ticks, counts=turn >= _WARM)
        judged, gaps = 0, {}
        while sides["watch"].pipe.poll():
            judged, gaps = sides["watch"].pipe.recv()
    finally:
        for side in sides.values():
            side.of.terminate()
    p50, p99 = (statistics.median(each) for each in (server.p50, server.p99))
    return [
        {
            "events": size,
            "side": name,
            "cpu": min(side.cpu),
            "p50": statistics.median(side.p50) - p50,
            "p99": statistics.median(side.p99) - p99,
            "judged": judged if name == "watch" else None,
            "skipped": gaps if name == "watch" else None,
        }
        for name, side in sides.items()
        if side is not server
    ]


def judge(turns: int) -> float:
    """Events that the judge of the watcher hears in a second of one core."""
    bench, answer = Bench(), stream(256)
    taken = []
    for _ in range(turns):
        began = time.process_time()
        for _ in range(8):
            bench.hear(answer)
        taken.append(8 * 256 / (time.process_time() - began))
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often the sides take turns")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was measured")
    asked = parser.parse_args()
    told = [row for size in SIZES for row in measure(size, asked.turns)]
    beside = {row["events"]: row["cpu"] for row in told if row["side"] == "bare proxy"}
    table = Table(
        "events", "side", "CPU an event", "throughput beside bare", "added p50", "added p99", "judged"
    )
    for row in told:
        row["throughput"] = beside[row["events"]] / row["cpu"]
        skipped = ", ".join(f"{count} {reason}" for reason, count in (row["skipped"] or {}).items())
        judged = "" if row["judged"] is None else f"{row['judged']}; gaps: {skipped or 'none'}"
        table.add_row(
            *(row["events"], row["side"], f"{row['cpu']:.1f} µs", f"{row['throughput']:.2f}"),
            *(f"{row['p50']:.0f} µs", f"{row['p99']:.0f} µs", judged),
        )
    console, hears = Console(), judge(asked.turns)
    console.print(table)
    console.print(f"the judge hears {hears:,.0f} events in a second of one core")
    if asked.write is not None:
        asked.write.write_text(json.dumps({"sides": told, "judge": hears}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
