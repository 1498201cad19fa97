"""A fleet's captures judged by Ray tasks, beside one replay of all: the reports are the same, byte for byte.

    python benchmarks/scale.py [--servers N]      needs `pip install ray`; ends with a table

The fleet is made of the recorded servers in `fixtures/`, each several times under other names. Ray runs on
this machine, with as many tasks at once as it has cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
FORMS = ("report.json", "report.html", "report.sarif", "badge.json")


def fleet(folder: Path, servers: int) -> list[str]:
    """Make captures of a number of servers."""
    recorded = sorted((ROOT / "fixtures").rglob("*.jsonl.gz"))
    made = []
    for number, capture in enumerate(islice(cycle(recorded), servers)):
        made.append(str(folder / f"{number:04}-{capture.name}"))
        shutil.copy(capture, made[-1])
    return made


def run(folder: Path, *command: str) -> tuple[float, float, bytes]:
    """Seconds that passed, seconds of the processor, and what was printed."""
    begun, before = time.monotonic(), os.times()
    ran = subprocess.run([sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, check=False)
    if ran.returncode not in {0, 1, 4}:
        raise SystemExit(f"{' '.join(command[:4])} … ended with status {ran.returncode}")
    after = os.times()
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - begun, taken, ran.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, default=40)
    figures = parser.parse_args()
    table = Table(f"{figures.servers} servers", "passed", "processor of the caller")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        captures = fleet(folder, figures.servers)
        reports = []
        for name, command in (
            ("one replay", ("-m", "tokenwire", "replay")),
            ("tasks of Ray, merged", (str(ROOT / "examples" / "ray_replay.py"),)),
        ):
            passed, taken, printed = run(folder, *command, *captures, "--report", "report")
            reports.append([printed, *((folder / "report" / form).read_bytes() for form in FORMS)])
            table.add_row(name, f"{passed:.1f} s", f"{taken:.1f} s")
            shutil.rmtree(folder / "report")
    Console().print(table)
    if reports[0] != reports[1]:
        raise SystemExit("the reports differ")
    print("the reports are the same, byte for byte")


if __name__ == "__main__":
    main()
