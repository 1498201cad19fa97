"""Replays of captures that are larger than memory: what they take, in one process and in several.

    python benchmarks/large_captures.py [--megabytes N...] [--jobs N...]      ends with a table

Two captures are made of each size: one server's many exchanges, those of a recording over and over, each time
under other names; and one server's incremental streams with logprobs. Each is replayed by a process of its
own for each number of jobs, one after the other: how long that took by the clock, how long that process kept
a processor and how long those that it forked off did, how much memory one of them took at most, and all of
them together (pages that several share are counted once).

Two ratios to the first number of jobs: that of the clock, and that of as many idle cores as there are jobs,
which is computed: what one process did, and its share of what all others did, beside what was done at first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
_BETWEEN_LOOKS = 0.2
_MADE_UP = re.compile(rb"((?<![0-9a-f])[0-9a-f]{8,24})[0-9a-f]{8}(?![0-9a-f])")


def many_exchanges() -> Iterator[Exchange]:
    """Yield the exchanges of a recorded run, over and over, each time an hour later and under other names."""
    recorded = list(read_capture(RECORDING))
    yield from recorded
    for again in count(1):
        for item in recorded:
            later = datetime.fromisoformat(item.started) + again * timedelta(hours=1)
            reads = tuple(_renamed(item, again))
            yield replace(item, name=f"{item.name}-{again}", started=later.isoformat(), reads=reads)


def _renamed(exchange: Exchange, again: int) -> Iterator[Read]:
    """Yield the reads of an exchange, the ids that the server made up for it changed: no two
    answers share one.
    """
    body, start = _MADE_UP.sub(lambda found: found[1] + f"{again:08x}".encode(), exchange.body), 0
    for read in exchange.reads:
        yield Read(read.time, body[start : start + len(read.data)])
        start += len(read.data)


def incremental_streams() -> Iterator[Exchange]:
    """One stream of a server made long, over and over, each time for another prompt."""
    made = stream(2000)
    for again in count():
        asked = {**made.request.body, "input_ids": [1 + again, *made.request.body["input_ids"]]}
        yield replace(made, name=f"generate/{again}", request=replace(made.request, body=asked))


CAPTURES = {"many exchanges": many_exchanges, "incremental streams": incremental_streams}


def write(exchanges: Iterator[Exchange], path: Path, size: int) -> None:
    """Write a capture of `size` bytes."""
    with path.open("wb") as file:
        writer = ExchangeWriter(file)
        while file.tell() < size:
            writer.exchange(next(exchanges))


REPLAY = """
import json, resource, sys
from tokenwire.cli import main
try:
    main()
finally:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps([[use.ru_utime + use.ru_stime, use.ru_maxrss] for use in used]), file=sys.stderr)
"""
"""A replay, and then what it and the processes that it forked off have used."""


@dataclass(frozen=True)
class Replayed:
    """Costs of a replay."""

    clock: float
    main: float
    """Seconds of a processor."""
    others: float
    """The processor seconds of forked processes."""
    most: int
    """Megabytes that one of them took at most."""
    together: int
    status: int

    def on_idle_cores(self, jobs: int) -> float:
        return self.main + self.others / jobs


def replayed(path: Path, jobs: int) -> Replayed:
    command = [sys.executable, "-c", REPLAY, "replay", str(path), "--quiet", "--jobs", str(jobs)]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    together = 0
    while process.poll() is None:
        together = max(together, memory(process.pid))
        time.sleep(_BETWEEN_LOOKS)
    clock = time.monotonic() - begin
    _, figures = process.communicate()
    (main, mine), (others, theirs) = json.loads(figures.splitlines()[-1])
    most = max(mine, theirs) * 1024 // MEGA
    return Replayed(clock, main, others, most, together // MEGA, process.returncode)


def memory(root: int) -> int:
    """Return the bytes that a process and its children have now; 0 if the system does not report them."""
    try:
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    except OSError:
        return 0
    return sum(map(_share, (root, *map(int, children))))


def _share(pid: int) -> int:
    """Return the bytes of a process, its share of those that others have, too; 0 of one that has ended."""
    with suppress(OSError):
        figures = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in figures if line.startswith("Pss:"))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=CAPTURES, help="one of the captures")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the table down for `benchmarks/page.py`"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the captures; without it, they are removed")
    figures = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = figures.keep or Path(temporary)
        for name in [figures.only] if figures.only else CAPTURES:
            for size in figures.megabytes:
                path = folder / f"{name.replace(' ', '-')}-{size}.jsonl"
                if not path.exists():
                    write(CAPTURES[name](), path, size * MEGA)
                rows += _measured(name, path, size, figures.jobs)
                if figures.keep is None:
                    path.unlink()
    table = Table(*HEADS)
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)
    print(f"load at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if figures.write is not None:
        figures.write.write_text(json.dumps([HEADS, *rows], indent=1) + "\n", "utf-8")


HEADS = (
    *("capture", "MB", "jobs", "clock", "MB/s", "own", "others", "faster", "on idle cores"),
    *("at most", "together", "status"),
)


def _measured(name: str, path: Path, size: int, several: Sequence[int]) -> Iterator[list[str]]:
    """Yield a row for each number of jobs."""
    first: tuple[Replayed, int] | None = None
    for jobs in several:
        took = replayed(path, jobs)
        beside, their_jobs = first = first or (took, jobs)
        faster = beside.on_idle_cores(their_jobs) / took.on_idle_cores(jobs)
        yield [
            *(name, f"{size}", f"{jobs}", f"{took.clock:.1f} s", f"{size / took.clock:.1f}"),
            *(f"{took.main:.1f} s", f"{took.others:.1f} s"),
            *(f"{beside.clock / took.clock:.2f}", f"{faster:.2f}"),
            *(f"{took.most} MB", f"{took.together} MB", f"{took.status}"),
        ]


if __name__ == "__main__":
    main()
