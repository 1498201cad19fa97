"""The soak: a server under load for a long time, and the suite with hostile servers.

A reference server gets many short requests, and then mixed load with every kind of request. One request in
ten is aborted, and the client of one in ten disconnects. After a warm-up, the server's memory grows by less
than 5 %, and each request keeps less than 500 bytes, as counted by its allocator. The largest legal value of
every published field does not fail, and other requests are answered meanwhile. No request hangs, and the log
is empty. No page of the KV cache leaks: at the end, a request that needs all pages still runs. The server's
responses are then bit for bit those of a fresh server.

Slow readers delay fast readers by a factor of less than 1.3 at the 99th percentile. Two servers get the same
requests and streams at the same time. The streams of one server are read slowly, and those of the other
immediately. The result is the median of several rounds.

The suite also checks hostile servers that are generated from seeds. It always writes a report, within bounded
memory and time.

    python -m proofs.soak                      3,000 short requests, 40 s of mixed load, 50 hostile servers
    python -m proofs.soak --long               100,000 short requests, 30 minutes of mixed load
    python -m proofs.soak --only hostile --hostile 500
    python -m proofs.soak --long --write docs  also write the page of the documentation

The exit status is 0 if all limits are kept, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proofs.soaking.figures import Figures
from proofs.soaking.hostile import hostile
from proofs.soaking.load import soak
from proofs.soaking.page import write
from proofs.soaking.slow_readers import slow_readers


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="100,000 requests and 30 minutes; hours in all")
    parser.add_argument("--requests", type=int, help="the number of short requests")
    parser.add_argument("--seconds", type=float, help="the duration of the mixed load")
    parser.add_argument("--pairs", type=int, help="the number of measurements with slow and fast readers")
    parser.add_argument("--hostile", type=int, default=50, metavar="N", help="hostile servers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("soak", "slow-readers", "hostile"), action="append")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write robustness.md and its pictures")
    options = parser.parse_args()
    requests = options.requests or (100_000 if options.long else 3_000)
    seconds = options.seconds or (1800.0 if options.long else 40.0)
    pairs = options.pairs or (15 if options.long else 5)
    figures = Figures()

    async def run() -> None:
        parts = options.only or ("soak", "slow-readers", "hostile")
        if "soak" in parts:
            await soak(figures, requests, seconds, options.seed)
        if "slow-readers" in parts:
            await slow_readers(figures, pairs, 400 if options.long else 200)
        if "hostile" in parts:
            await hostile(figures, options.hostile, options.seed)

    asyncio.run(run())
    table = Table("", "demanded", "measured")
    for row in figures.rows:
        table.add_row(*row)
    Console().print(table)
    if options.write is not None:
        curves = {
            part: [(seconds, megabytes) for seconds, what, megabytes in figures.memory if what == part]
            for part in dict.fromkeys(what for _, what, _ in figures.memory)
        }
        machine = f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[2]:.0f}"
        write(
            options.write,
            introduction=(__doc__ or "").partition("\n\n")[2].partition("\n\n    python")[0],
            measured_by=f"`python -m proofs.soak {' '.join(sys.argv[1:])}` on {machine}",
            rows=figures.rows,
            memory=curves,
            latencies={f"others read {side}": values for side, values in figures.latencies.items()},
        )
    print(f"{len(figures.broken)} of {len(figures.rows)} do not hold")
    return 1 if figures.broken else 0


if __name__ == "__main__":
    sys.exit(main())
