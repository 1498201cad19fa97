"""Replays of captures that are larger than memory: what they take at most, and per byte.

    python benchmarks/large_captures.py [--megabytes N...]      ends with a table

Two captures are made of each size: one server's many exchanges, those of a recording over and over, each time
under other names; and one server's incremental streams with logprobs. Each is replayed
by a process of its own, which says how much memory it took at most, and how long it kept the processor.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

from judging import stream  # the benchmark beside this one
from rich.console import Console
from rich.table import Table

from tokenwire.wire.capture import ExchangeWriter, read_capture
from tokenwire.wire.exchange import Exchange, Read

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDING = FIXTURES / "vllm" / "0.32.0-cpu" / "live-interval-1.jsonl.gz"
MEGA = 1_000_000
_MADE_UP = re.compile(rb"((?<![0-9a-f])[0-9a-f]{8,24})[0-9a-f]{8}(?![0-9a-f])")


def many_exchanges() -> Iterator[Exchange]:
    """Those of a recorded run, over and over, each time an hour later and under other names."""
    recorded = list(read_capture(RECORDING))
    yield from recorded
    for time in count(1):
        for one in recorded:
            later = datetime.fromisoformat(one.started) + time * timedelta(hours=1)
            reads = tuple(_renamed(one, time))
            yield replace(one, name=f"{one.name}-{time}", started=later.isoformat(), reads=reads)


def _renamed(exchange: Exchange, time: int) -> Iterator[Read]:
    """The reads of an exchange, the ids that the server made up for it changed: no two answers share one."""
    body, at = _MADE_UP.sub(lambda found: found[1] + f"{time:08x}".encode(), exchange.body), 0
    for read in exchange.reads:
        yield Read(read.time, body[at : at + len(read.data)])
        at += len(read.data)


def incremental_streams() -> Iterator[Exchange]:
    """One stream of a server made long, over and over, each time for another prompt."""
    made = stream(2000)
    for time in count():
        asked = {**made.request.body, "input_ids": [1 + time, *made.request.body["input_ids"]]}
        yield replace(made, name=f"generate/{time}", request=replace(made.request, body=asked))


def write(exchanges: Iterator[Exchange], path: Path, size: int) -> None:
    """A capture of so many bytes."""
    with path.open("wb") as file:
        writer = ExchangeWriter(file)
        while file.tell() < size:
            writer.exchange(next(exchanges))


def replayed(path: Path, *options: str) -> tuple[int, float, int]:
    """Megabytes that a replay took at most, its seconds of the processor, and its exit status."""
    command = [sys.executable, "-m", "tokenwire", "replay", str(path), "--quiet", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, taken = os.wait4(process.pid, 0)
    return taken.ru_maxrss * 1024 // MEGA, taken.ru_utime + taken.ru_stime, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--keep", type=Path, help="a folder for the captures; without it, they are removed")
    told = parser.parse_args()
    table = Table("capture", "MB", "at most", "processor", "MB/s", "status")
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = told.keep or Path(temporary)
        for name, made in (("many exchanges", many_exchanges), ("incremental streams", incremental_streams)):
            for size in told.megabytes:
                path = folder / f"{name.replace(' ', '-')}-{size}.jsonl"
                if not path.exists():
                    write(made(), path, size * MEGA)
                most, seconds, status = replayed(path)
                table.add_row(
                    name, f"{size}", f"{most} MB", f"{seconds:.0f} s", f"{size / seconds:.1f}", f"{status}"
                )
                if told.keep is None:
                    path.unlink()
    Console().print(table)


if __name__ == "__main__":
    main()
