"""Stability: one server, checked again and again, gets the same verdict on every row.

The reference engine is checked in both delivery modes and in the shapes of both families, on a machine
that is otherwise idle and on one whose cores are all busy. A row whose verdict differs between two runs
against one server says something of the clock, not of the server. What depends on timing has to be provoked
until it occurs, or is INCONCLUSIVE in every run.

    python -m proofs.stability                                          five standard runs of each kind
    python -m proofs.stability --budget quick --runs 3 --mode incremental --load busy

Exit status: 0 no row differs, 1 some do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from proofs.killing.serving import serve
from tokenwire.ask import Budget
from tokenwire.asking.run import Plan, Progress, Unreached, interrogate
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.verdict import overall
from tokenwire.settings import Settings
from tokenwire_faults.catalogue import CUMULATIVE, INCREMENTAL

VLLM = "--api-dialect vllm"
MODES = (CUMULATIVE, INCREMENTAL, VLLM)
"""In SGLang's shapes cumulative and incremental; in vLLM's, whose streams are incremental."""
IDLE, BUSY = "idle", "busy"
_TIMEOUT_S = 300
"""The time limit of one exchange: a busy machine is slow, which is not the server's fault."""

Run = Mapping[str, Judgement]
"""The judgement of each row that has the report's verdict over all scenarios."""


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """Keep a number of cores busy while this is open."""
    with contextlib.ExitStack() as burners:
        for _ in range(processes):
            burner = burners.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            burners.callback(burner.terminate)
        yield


def check(url: str, budget: Budget, dialects: Sequence[str], *, worker: str = "") -> Run:
    """Ask and judge once. Raises RuntimeError where the server does not answer to the end."""
    plan = Plan(
        Settings(target=url, timeout=_TIMEOUT_S, budget=budget, dialect=tuple(dialects), worker=worker)
    )
    subject = asyncio.run(interrogate(plan, Progress()))
    if isinstance(subject, Unreached) or subject.broken_off:
        why = subject.diagnosis if isinstance(subject, Unreached) else subject.broken_off
        raise RuntimeError(f"the reference engine at {url} was not checked to the end: {why}")
    rows: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in judge(subject.runs):
        rows[judgement.requirement.id].append(judgement)
    shown = {row: overall(judgement.verdict for judgement in every) for row, every in rows.items()}
    return {
        row: next(judgement for judgement in rows[row] if judgement.verdict is shown[row]) for row in rows
    }


def differing(runs: Sequence[tuple[str, Run]]) -> dict[str, list[str]]:
    """Return the rows on which runs against one server disagree: a line for each verdict, and under
    which load.
    """
    differences: dict[str, list[str]] = {}
    for row in runs[0][1]:
        seen: dict[str, list[tuple[str, Judgement]]] = defaultdict(list)
        for load, run in runs:
            seen[run[row].verdict.value].append((load, run[row]))
        if len(seen) > 1:
            differences[row] = [
                f"{verdict} in {len(item)} ({', '.join(sorted({load for load, _ in item}))}), "
                f"{item[0][1].scenario}: {item[0][1].message}"
                for verdict, item in seen.items()
            ]
    return differences


def print_differences(console: Console, differences: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """All rows that differ, by the server's delivery mode."""
    table = Table("row", "server", "verdicts", box=None, header_style="bold", pad_edge=False)
    for mode, rows in differences.items():
        for row, lines in rows.items():
            table.add_row(row, mode, "\n".join(lines))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, report the rows that differ, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="of each kind; 5 where not given")
    parser.add_argument("--budget", type=Budget, default=Budget.STANDARD, choices=list(Budget))
    parser.add_argument("--dialect", action="append", default=[], metavar="NAME", help="all where not given")
    parser.add_argument("--mode", action="append", choices=MODES, help="all where not given")
    parser.add_argument("--load", action="append", choices=(IDLE, BUSY), help="both where not given")
    asked = parser.parse_args(arguments)
    differences: dict[str, dict[str, list[str]]] = {}
    with serve(asked.mode or MODES) as urls:
        for mode, url in urls.items():
            runs: list[tuple[str, Run]] = []
            for load in asked.load or (IDLE, BUSY):
                with burning((os.cpu_count() or 1) if load == BUSY else 0):
                    for number in range(asked.runs):
                        begun = time.monotonic()
                        runs.append((load, check(url, asked.budget, asked.dialect)))
                        counts = Counter(judgement.verdict for judgement in runs[-1][1].values())
                        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
                        took = time.monotonic() - begun
                        print(f"{mode}, {load}, run {number + 1}: {words}; {took:.0f} s", file=sys.stderr)
            differences[mode] = differing(runs)
    count = sum(map(len, differences.values()))
    if count:
        print_differences(Console(), differences)
    print(f"{count} rows differ between runs against one server")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
