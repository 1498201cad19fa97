"""Stability: repeated checks of one server must return the same verdict for each requirement.

The reference engine is checked in both delivery modes and in the dialects of both families, first on an idle
machine and then on a machine whose cores are all busy. If the verdict of a requirement differs between two
runs against one server, it depends on the clock and not on the server. A check that depends on timing must
cause the situation that it needs, or be INCONCLUSIVE in every run.

    python -m proofs.stability                                          five standard runs of each kind
    python -m proofs.stability --budget quick --runs 3 --mode incremental --load busy

Exit status: 0 if no requirement differs, 1 if at least one differs.
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
"""Cumulative and incremental delivery in SGLang's dialects. Streams of vLLM's dialects are always
incremental.
"""
IDLE, BUSY = "idle", "busy"
_TIMEOUT_S = 300
"""The time limit of one exchange. It is long, because a busy machine is slow without an error of
the server.
"""

Run = Mapping[str, Judgement]
"""For each requirement, the judgement that has the report's verdict over all scenarios."""


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """Keep a number of cores busy while this context is open."""
    with contextlib.ExitStack() as burners:
        for _ in range(processes):
            burner = burners.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            burners.callback(burner.terminate)
        yield


def check(url: str, budget: Budget, dialects: Sequence[str], *, worker: str = "") -> Run:
    """Check a server once. Raises RuntimeError if the check does not reach its end."""
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
    """Return the requirements whose verdicts differ between runs against one server. Each has a line for each
    verdict, with the loads under which it occurred.
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
    """Print all requirements that differ, by the server's delivery mode."""
    table = Table("row", "server", "verdicts", box=None, header_style="bold", pad_edge=False)
    for mode, rows in differences.items():
        for row, lines in rows.items():
            table.add_row(row, mode, "\n".join(lines))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, print the requirements that differ, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each kind; default 5")
    parser.add_argument("--budget", type=Budget, default=Budget.STANDARD, choices=list(Budget))
    parser.add_argument("--dialect", action="append", default=[], metavar="NAME", help="default all")
    parser.add_argument("--mode", action="append", choices=MODES, help="default all")
    parser.add_argument("--load", action="append", choices=(IDLE, BUSY), help="default both")
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
