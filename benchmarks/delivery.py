"""Measure the cost of a streamed token over HTTP, beside the same bytes from a bare uvicorn application.

    python benchmarks/delivery.py                      ends with two tables
    python benchmarks/delivery.py --write DIRECTORY    keeps the numbers there, for the documentation

The scripted model spells tokens without computing them. Only their way is left: the engine's step, the
streamer, the record, JSON and HTTP. The bare application holds finished events and only sends them, one by
one, a stream after the other. Both take turns in one run. The measure is the processor time of the server's
process for each event, which other programs on the machine change little. Needs Linux, where one process can
read the clock of another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from rich.console import Console
from rich.table import Table

STREAMS = (1, 16, 64, 256)
TOKENS = 128
"""The tokens of one stream."""
POLL_SECONDS = 0.005
EVENTS = 8192
"""The least events of one side of a case, one for each token; fewer streams are requested several times."""
LENGTHS = (1024, 4096, 16384, 32768)
TEXT = "What was sent is never changed; what is finished stays finished. A stream may be cut anywhere. "


@dataclass(frozen=True)
class Case:
    mode: str
    streams: int
    logprobs: bool
    interval: int


@dataclass(frozen=True)
class Measured:
    """Processor time for each event, in microseconds."""

    case: Case
    tokenwire: float
    bare: float

    @property
    def ratio(self) -> float:
        """The number of events that the reference sends while the bare application sends one."""
        return self.bare / self.tokenwire


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process; Linux numbers the clock of another process in this way."""
    return time.clock_gettime(~pid << 3 | 2)


@contextmanager
def server(*command: str) -> Iterator[tuple[int, int]]:
    """Yield a server that says its address on stdout; its process id and its port."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            yield process.pid, port
        finally:
            process.terminate()


def ask(ports: Sequence[int], bodies: Sequence[bytes], path: str = "/generate") -> list[bytes]:
    """Send requests at the same time, in turn to each port; their answers, up to the end of a chunked one.

    The client looks every few milliseconds and never waits for bytes: to wake a reader for each event costs a
    server about as much as the event, and nothing where events come so fast that no reader falls asleep.
    """
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: "
    waiting: list[tuple[int, socket.socket]] = []
    answers = [bytearray() for _ in bodies]
    for number, body in enumerate(bodies):
        connection = socket.create_connection(("127.0.0.1", ports[number % len(ports)]))
        connection.sendall(head.encode() + b"%d\r\n\r\n" % len(body) + body)
        connection.setblocking(False)
        waiting.append((number, connection))
    while waiting:
        time.sleep(POLL_SECONDS)
        waiting = [
            (number, connection) for number, connection in waiting if not _ended(connection, answers[number])
        ]
    return [bytes(answer) for answer in answers]


def _ended(connection: socket.socket, answer: bytearray) -> bool:
    """Read what is there; whether the answer has ended."""
    try:
        while not answer.endswith(b"0\r\n\r\n"):
            if not (data := connection.recv(1 << 20)):
                raise ConnectionError(f"the answer was cut: {bytes(answer[-300:])!r}")
            answer += data
    except BlockingIOError:
        return False
    connection.close()
    return True


def events_of(answer: bytes) -> list[bytes]:
    """Return the events of a chunked answer, as they were framed."""
    body, rest = [], answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return [event + b"\n\n" for event in b"".join(body).split(b"\n\n")[:-1]]


def body(ids: Sequence[int], case: Case) -> bytes:
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": len(ids),
        "stream_interval": case.interval,
        "custom_params": {"script": [[token_id] for token_id in ids]},
    }
    asked = {
        "input_ids": [70, 71],
        "sampling_params": sampling,
        "stream": True,
        "return_logprob": case.logprobs,
    }
    return json.dumps(asked).encode()


def cost(pid: int, port: int, bodies: Sequence[bytes], times: int) -> tuple[float, bytes]:
    """Microseconds of the processor for each event, and one of the answers."""
    begun, events, answers = processor_seconds(pid), 0, [b""]
    for _ in range(times):
        answers = ask([port], bodies)
        events += sum(answer.count(b"data: ") for answer in answers)
    return 1e6 * (processor_seconds(pid) - begun) / events, answers[0]


def measure(
    case: Case, ids: Sequence[int], ours: tuple[int, int], bare: tuple[int, int], turns: int
) -> Measured:
    bodies = [body(ids, case)] * case.streams
    times = max(1, EVENTS // (TOKENS * case.streams))
    (answer,) = ask([ours[1]], bodies[:1])
    frames = json.dumps([event.decode() for event in events_of(answer)]).encode()
    ask([bare[1]], [frames], "/frames")
    taken = [
        (cost(*ours, bodies, times)[0], cost(*bare, [b"{}"] * case.streams, times)[0]) for _ in range(turns)
    ]
    tokenwire, uvicorn_alone = (statistics.median(side) for side in zip(*taken, strict=True))
    return Measured(case, tokenwire, uvicorn_alone)


async def _bare(scope: Any, receive: Any, send: Any, frames: list[bytes] = []) -> None:  # noqa: B006 - the state
    """`/frames` takes events; everything else sends them."""
    asked, more = b"", True
    while more:
        message = await receive()
        asked, more = asked + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/frames":
        frames[:] = [frame.encode() for frame in json.loads(asked)]
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] != "/frames":
        for frame in frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            await asyncio.sleep(0)  # tokens do not come in a row: the other streams have their turn
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Bare(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--write", type=Path, help="a directory for delivery.json")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.bare:
        config = uvicorn.Config(_bare, port=0, http="h11", lifespan="off", log_config=None, access_log=False)
        _Bare(config).run()
        return
    measured, lengths = [], []
    with server(__file__, "--bare") as bare:
        for mode, flag in (("cumulative", ()), ("incremental", ("--incremental-streaming-output",))):
            with server(*SERVE, *flag) as ours:
                prompt = httpx.post(f"http://127.0.0.1:{ours[1]}/tokenize", json={"prompt": TEXT * 40})
                ids = prompt.json()["tokens"]
                for streams in asked.streams:
                    for logprobs in (False, True):
                        for interval in (1, 8):
                            case = Case(mode, streams, logprobs, interval)
                            measured.append(measure(case, ids[:TOKENS], ours, bare, asked.turns))
                if flag:
                    lengths = flatness(ids, ours, asked.turns)
    show(measured, lengths)
    if asked.write:
        figures = {"cases": [asdict(item) for item in measured], "lengths": lengths}
        (asked.write / "delivery.json").write_text(json.dumps(figures, indent=1) + "\n")


SERVE = (
    *("-m", "tokenwire_reference", "serve", "--model", "builtin:scripted", "--port", "0"),
    *("--context-length", "40000", "--max-running-requests", "256"),
)


def flatness(ids: Sequence[int], ours: tuple[int, int], turns: int) -> list[tuple[int, float]]:
    """Microseconds for each token of one incremental stream, by how long it is."""
    case = Case("incremental", 1, logprobs=False, interval=1)
    lengths = []
    for length in LENGTHS:
        long = (list(ids) * (length // len(ids) + 1))[:length]
        taken = [cost(*ours, [body(long, case)], 1)[0] for _ in range(turns)]
        lengths.append((length, statistics.median(taken)))
    return lengths


def show(measured: Sequence[Measured], lengths: Sequence[tuple[int, float]]) -> None:
    table = Table(title="processor time for each event", title_justify="left")
    for column in (
        "mode",
        "streams",
        "logprobs",
        "interval",
        "tokenwire",
        "bare uvicorn",
        "ratio",
        "events/s",
    ):
        table.add_column(column, justify="right")
    for item in measured:
        case = item.case
        table.add_row(
            *(case.mode, str(case.streams), "yes" if case.logprobs else "no", str(case.interval)),
            *(f"{item.tokenwire:.0f} µs", f"{item.bare:.0f} µs", f"{item.ratio:.2f}"),
            f"{1e6 / item.tokenwire:,.0f}",
        )
    console = Console()
    console.print(table)
    table = Table(title="one incremental stream", title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column("for each", justify="right")
    for length, microseconds in lengths:
        table.add_row(f"{length:,}", f"{microseconds:.0f} µs")
    console.print(table)


if __name__ == "__main__":
    main()
