"""Measure processor time and memory of a replay, beside another checkout, with the ratio.

    python benchmarks/replay.py --beside ../before recorded/

Both replays run at once, so that other work on the machine slows both. A checkout that knows fewer
requirements looks at less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def begin(directory: Path, captures: list[str]) -> subprocess.Popen[bytes]:
    """Start a replay by the code of a checkout."""
    code = os.pathsep.join(str(directory / name) for name in ("conformance", "reference"))
    command = [sys.executable, "-m", "tokenwire", "replay", *captures]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": code}, **quiet)


def end(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Seconds of the processor, and MB at most. Raises RuntimeError for a replay that could not judge."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # conforms, or does not
        raise RuntimeError(f"a replay ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 // 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("captures", nargs="+", metavar="CAPTURE")
    parser.add_argument("--beside", type=Path, required=True, help="a checkout to compare with")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    asked = parser.parse_args()
    sides = {"before": asked.beside.resolve(), "now": ROOT}
    used: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
    for _ in range(asked.turns):
        begun = {side: begin(directory, asked.captures) for side, directory in sides.items()}
        for side, process in begun.items():
            used[side].append(end(process))
    table = Table("side", "processor", "at most", "ratio", box=None, header_style="bold", pad_edge=False)
    for side, turns in used.items():
        ratio = statistics.median(
            ours / before for (ours, _), (before, _) in zip(turns, used["before"], strict=True)
        )
        seconds, megabytes = statistics.median(cost for cost, _ in turns), max(cost for _, cost in turns)
        table.add_row(side, f"{seconds:.1f} s", f"{megabytes} MB", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
