"""Replicas of the reference behind a gateway: what the gateway costs, and what replicas bring.

    python -m benchmarks.scale_out                      ends with a table
    python -m benchmarks.scale_out --write DIRECTORY    keeps the numbers there, for the documentation

1, 2 and 4 replicas of the scripted model answer the same streams, asked directly and through a gateway, in
turns. On a machine with fewer cores than processes, all of them share the cores: events for each second of
the clock then say what the machine does, and not what replicas would do on machines of their own. What a core
has to do for an event says more: processor time of replicas, and of the gateway. Needs the gateways
(`pip install -c constraints/interop.txt sglang-router smg`) and Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
from benchmarks.delivery import SERVE, ask, processor_seconds, server
from rich.console import Console
from rich.table import Table

from tokenwire.local_server import free_port

GATEWAYS = {"sglang_router": "sglang-router", "smg": "smg"}
"""Modules that are run, and the packages that bring them."""
REPLICAS = (1, 2, 4)
STREAMS = 64
TOKENS = 128
ROUNDS = 4
STARTS_WITHIN_SECONDS = 240.0


@dataclass(frozen=True)
class Measured:
    """One way to some replicas."""

    replicas: int
    way: str
    """`direct`, or a gateway with its version."""
    events_per_second: float
    """Events per second of wall-clock time."""
    replica: float
    """Microseconds of the processor for each event, of all replicas."""
    gateway: float
    """The same of the gateway."""


@contextmanager
def gateway(module: str, workers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield a gateway before workers; its process id and its port."""
    port = free_port()
    command = [sys.executable, "-m", module, "launch", "--policy", "round_robin"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command += ["--worker-urls", *(f"http://127.0.0.1:{worker}" for worker in workers)]
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(
            command, stdout=words, stderr=subprocess.STDOUT, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        ) as process,
    ):
        try:
            begun = time.monotonic()
            while not _ready(port, len(workers)):
                if process.poll() is not None or time.monotonic() - begun > STARTS_WITHIN_SECONDS:
                    words.seek(0)
                    raise RuntimeError(f"{module} did not become ready:\n{words.read()[-2000:]}")
                time.sleep(0.1)
            yield process.pid, port
        finally:
            process.terminate()


def _ready(port: int, workers: int) -> bool:
    """True if a gateway has found all its workers."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/readiness")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json().get("healthy_workers") == workers


def body(ids: Sequence[int]) -> bytes:
    """Without a script, the scripted model gives the prompt back; a gateway would drop a script."""
    sampling = {"temperature": 0.0, "max_new_tokens": len(ids)}
    return json.dumps({"input_ids": ids, "sampling_params": sampling, "stream": True}).encode()


def once(
    ports: Sequence[int], replicas: Sequence[int], through: int | None, asked: Sequence[bytes]
) -> tuple[float, float, float]:
    """Return events for each second, and what an event costs replicas and gateway, in microseconds."""
    processes = [*replicas, *([] if through is None else [through])]
    before, begun = [processor_seconds(pid) for pid in processes], time.monotonic()
    events = sum(answer.count(b"data: ") for _ in range(ROUNDS) for answer in ask(ports, asked))
    seconds = time.monotonic() - begun
    spent = [processor_seconds(pid) - start for pid, start in zip(processes, before, strict=True)]
    if events < ROUNDS * len(asked) * TOKENS:
        raise RuntimeError(f"{events} events came for {ROUNDS * len(asked)} streams of {TOKENS} tokens")
    of_replicas = sum(spent[: len(replicas)])
    return events / seconds, 1e6 * of_replicas / events, 1e6 * sum(spent[len(replicas) :]) / events


def measure(replicas: int, modules: Sequence[str], turns: int) -> list[Measured]:
    with ExitStack() as stack:
        serve = (*SERVE, "--incremental-streaming-output")
        workers = [stack.enter_context(server(*serve)) for _ in range(replicas)]
        pids, ports = [pid for pid, _ in workers], [port for _, port in workers]
        ways: list[tuple[str, int | None, Sequence[int]]] = [("direct", None, ports)]
        for module in modules:
            pid, port = stack.enter_context(gateway(module, ports))
            ways.append((f"{GATEWAYS[module]} {version(GATEWAYS[module])}", pid, [port]))
        asked = [
            body([100 + (7 * place + stream) % 150 for place in range(TOKENS)]) for stream in range(STREAMS)
        ]
        for _, pid, where in ways:
            once(where, pids, pid, asked)
        taken = [[once(where, pids, pid, asked) for _, pid, where in ways] for _ in range(turns)]
    medians = [
        [statistics.median(column) for column in zip(*side, strict=True)] for side in zip(*taken, strict=True)
    ]
    return [Measured(replicas, way, *median) for (way, *_), median in zip(ways, medians, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gateway", choices=GATEWAYS, nargs="+", default=list(GATEWAYS))
    parser.add_argument("--replicas", type=int, nargs="+", default=REPLICAS)
    parser.add_argument("--turns", type=int, default=3, help="how often all ways take turns")
    parser.add_argument("--write", type=Path, help="a directory for scale_out.json")
    asked = parser.parse_args()
    measured = [item for count in asked.replicas for item in measure(count, asked.gateway, asked.turns)]
    table = Table(title=f"{STREAMS} streams, {os.cpu_count()} cores", title_justify="left")
    for column in ("replicas", "way", "events/s", "replica, an event", "gateway, an event"):
        table.add_column(column, justify="right")
    for item in measured:
        table.add_row(
            *(str(item.replicas), item.way, f"{item.events_per_second:,.0f}"),
            *(f"{item.replica:.0f} µs", f"{item.gateway:.0f} µs" if item.gateway else ""),
        )
    Console().print(table)
    if asked.write:
        figures = {"cores": os.cpu_count(), "streams": STREAMS, "ways": [asdict(item) for item in measured]}
        (asked.write / "scale_out.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
