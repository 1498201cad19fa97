"""The recorder beside httpx and a raw socket: what an event costs, and how true its arrival time is.

    python benchmarks/recorder.py                    ends with a table
    python benchmarks/recorder.py --write FILE       and writes it down for `benchmarks/page.py`

A server of our own sends one event on every stream each 10 ms, all at once, as an engine does after a step.
Each event holds the time at which it was sent, on the clock that all processes of a machine share. All sides
take turns in one run. The lateness of an event is when a side says that it arrived, less when it was sent. A
raw socket, read in a loop that does nothing else, shows what of it is the machine's: the rest is the side's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import httpx
from rich.console import Console
from rich.table import Table

from tokenwire.asking import recorder as recording
from tokenwire.asking.recorder import Recorder
from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import HttpRequest

TICK_S = 0.01
STREAMS = (1, 16, 64)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"text":" word","output_ids":[%d],"meta_info":{"id":"a","sent":%d,"finish_reason":null%s}}\n\n'
)
PADDING = b',"output_token_logprobs":[[-0.25,1,null]],"prompt_tokens":7'
ASKED = b'{"input_ids":[1],"sampling_params":{"max_new_tokens":9},"stream":true}'
ASK = b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(ASKED), ASKED)
SENT = re.compile(rb'"sent":(\d+)')
SIDES = ("raw socket", "httpx", "recorder", "recorder, to disk")


async def serve(streams: int, ticks: int, figures: Connection, tick_s: float, padding: bytes) -> None:
    """Wait until all streams have asked, send them all their events, one each tick, and begin again."""
    waiting: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        waiting.append(writer)
        if len(waiting) == streams:
            ready, waiting[:] = list(waiting), []
            sending.append(asyncio.create_task(send(ready)))

    async def send(ready: list[asyncio.StreamWriter]) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for tick in range(ticks):
            await asyncio.sleep(begin + tick * tick_s - loop.time())
            for writer in ready:
                event = EVENT % (tick, time.monotonic_ns(), padding)
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        for writer in ready:
            writer.write(b"0\r\n\r\n")
            writer.close()

    sending: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=256)
    figures.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def process(
    streams: int, ticks: int, figures: Connection, tick_s: float = TICK_S, padding: bytes = PADDING
) -> None:
    """Run a server in its own process; it sends its port."""
    asyncio.run(serve(streams, ticks, figures, tick_s, padding))


Arrivals = list[tuple[float, bytes]]


def by_raw_socket(port: int, streams: int, *, whole: bool = False) -> Arrivals:
    """Receive, note the time, and keep the bytes; `whole`: up to the end of each event."""
    selector, arrived = selectors.DefaultSelector(), []
    begun: dict[int, bytes] = {}
    for _ in range(streams):
        opened = socket.create_connection(("127.0.0.1", port))
        opened.sendall(ASK)
        opened.setblocking(False)
        selector.register(opened, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 18)
            now = time.monotonic()
            if whole and data:
                data = begun.pop(key.fd, b"") + data
                if not data.endswith(b"\n\n\r\n") and not data.endswith(b"0\r\n\r\n"):
                    begun[key.fd] = data
                    continue
            arrived.append((now, data))
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    selector.close()
    return arrived


def by_httpx(port: int, streams: int) -> Arrivals:
    """Read as httpx users do, and note what it yields and when."""
    arrived: Arrivals = []

    async def single(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", f"http://127.0.0.1:{port}/", content=b"{}") as response:
            async for data in response.aiter_raw():
                arrived.append((time.monotonic(), data))

    async def every() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(single(client) for _ in range(streams)))

    asyncio.run(every())
    return arrived


class _Noted(recording._Recording):
    """A recording that notes when its times begin to count."""

    began: ClassVar[list[float]] = []

    def __init__(self, *words: object, **named: object) -> None:
        super().__init__(*words, **named)  # type: ignore[arg-type]
        self.began.append(self._sent)


def by_recorder(port: int, streams: int, capture: CaptureWriter | None = None) -> Arrivals:
    async def every() -> Arrivals:
        recorder = Recorder(f"http://127.0.0.1:{port}", max_concurrency=streams, capture=capture)
        names = [f"{time.monotonic_ns()}-{number}" for number in range(streams)]
        asked = (recorder.send(name, "s", HttpRequest("POST", "/", {})) for name in names)
        exchanges = await asyncio.gather(*asked)
        return [
            (began + read.time, read.data)
            for began, exchange in zip(_Noted.began, exchanges, strict=True)
            for read in exchange.reads
        ]

    _Noted.began.clear()
    return asyncio.run(every())


def to_disk(port: int, streams: int) -> Arrivals:
    with tempfile.TemporaryDirectory() as folder:
        return by_recorder(port, streams, CaptureWriter(Path(folder)))


def lateness(arrived: Arrivals, events: int) -> list[float]:
    """Return how late each event is, in order of lateness."""
    late = sorted(arrival - int(found[1]) / 1e9 for arrival, data in arrived for found in SENT.finditer(data))
    if len(late) != events:
        raise SystemExit(f"{len(late)} of {events} events arrived whole")
    return late


@dataclass
class Seen:
    """Costs of one side, over all turns."""

    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    def add(self, arrived: Arrivals, cpu: float, events: int) -> None:
        late = lateness(arrived, events)
        self.cpu.append(cpu / events)
        self.p50.append(late[len(late) // 2])
        self.p99.append(late[len(late) * 99 // 100])

    def figures(self) -> tuple[float, float, float]:
        """Medians of all turns, in microseconds."""
        cpu, p50, p99 = (statistics.median(item) * 1e6 for item in (self.cpu, self.p50, self.p99))
        return cpu, p50, p99


def measure(streams: int, ticks: int, turns: int) -> dict[str, tuple[float, float, float]]:
    ways: dict[str, Callable[[int, int], Arrivals]] = dict(
        zip(SIDES, (by_raw_socket, by_httpx, by_recorder, to_disk), strict=True)
    )
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=process, args=(streams, ticks, theirs))
    server.start()
    try:
        port = int(ours.recv())
        seen = {side: Seen() for side in SIDES}
        for _ in range(turns):
            for side, way in ways.items():
                began = time.process_time()
                arrived = way(port, streams)
                seen[side].add(arrived, time.process_time() - began, streams * ticks)
    finally:
        server.terminate()
        server.join()
    return {side: item.figures() for side, item in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often the sides take turns")
    parser.add_argument("--ticks", type=int, default=200, help="events of each stream")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what was measured")
    asked = parser.parse_args()
    recording._Recording = _Noted  # type: ignore[misc]
    table = Table("streams", "side", "CPU an event", "beside httpx", "p50 later", "p99 later")
    figures = []
    for streams in STREAMS:
        measured = measure(streams, asked.ticks, asked.turns)
        raw = measured[SIDES[0]]
        for side, (cpu, p50, p99) in measured.items():
            row = {"streams": streams, "side": side, "cpu": cpu, "p50": p50 - raw[1], "p99": p99 - raw[2]}
            figures.append({**row, "beside_httpx": cpu / measured["httpx"][0]})
            table.add_row(
                *(str(streams), side, f"{cpu:.1f} µs", f"{cpu / measured['httpx'][0]:.2f}"),
                *(f"{p50 - raw[1]:.0f} µs", f"{p99 - raw[2]:.0f} µs"),
            )
    Console().print(table)
    if asked.write is not None:
        asked.write.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
