"""Measure the processor time of an engine's step, by its contents; beside another checkout, with the ratio.

    python benchmarks/steps.py
    python benchmarks/steps.py --beside ../before     in turns with the code of another directory

The models are so small that only the host's work is left: packing, launching operations, sampling, records.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
STEPS = 200
CASES: dict[str, dict[str, Any]] = {
    "tiny, 1 row": {"rows": 1},
    "tiny, 1 row, logprobs": {"rows": 1, "return_logprob": True, "top_logprobs_num": 2},
    "tiny, 16 rows": {"rows": 16},
    "tiny, 16 rows of mixed lengths": {"rows": 16, "apart": 24},
    "tiny, 16 rows, seeded, logprobs": {
        **{"rows": 16, "temperature": 0.8, "top_p": 0.9},
        **{"return_logprob": True, "top_logprobs_num": 2},
    },
    "tiny, 16 short prompts": {"rows": 16, "new": 1},
    "script, 1 row": {"model": "builtin:scripted", "rows": 1},
    "script, 64 rows": {"model": "builtin:scripted", "rows": 64},
    "script, 64 rows, logprobs": {"model": "builtin:scripted", "rows": 64, "return_logprob": True},
}


def microseconds(asked: dict[str, Any], models: dict[str, Any]) -> float:
    """For each step, over all steps of some requests."""
    from tokenwire_reference.assembly import make_engine
    from tokenwire_reference.core.engine import EngineArgs
    from tokenwire_reference.core.request import Request, SamplingParams
    from tokenwire_reference.loading import load_model

    figures = dict(asked)
    name, rows, apart, new = (
        figures.pop(key, default)
        for key, default in (("model", "builtin:tiny"), ("rows", 1), ("apart", 0), ("new", STEPS))
    )
    model = models.setdefault(name, None) or load_model(name)
    models[name] = model
    sampling = {key: figures.pop(key) for key in ("temperature", "top_p") if key in figures}
    script = {"script": [[100 + place % 300] for place in range(new)]} if name == "builtin:scripted" else None
    params = SamplingParams(
        **{"temperature": 0.0, **sampling},
        sampling_seed=1,
        max_new_tokens=new,
        ignore_eos=True,
        custom_params=script,
    )
    engine = make_engine(model, EngineArgs(prefix_caching=False))

    def run() -> tuple[float, int]:
        prompts = [range(20 + row, 30 + row + apart * row) for row in range(rows)]
        for row, prompt in enumerate(prompts):
            engine.add(Request(f"r{row}", tuple(prompt), params, **figures))
        begun, steps = time.process_time(), 0
        while not engine.idle:
            engine.step()
            steps += 1
        return time.process_time() - begun, steps

    run()
    spent, steps = 0.0, 0
    while steps < STEPS:
        seconds, more = run()
        spent, steps = spent + seconds, steps + more
    return 1e6 * spent / steps


def work() -> None:
    """Measure each case whose name comes by stdin."""
    import torch

    torch.set_num_threads(1)
    models: dict[str, Any] = {}
    for line in sys.stdin:
        print(microseconds(CASES[line.strip()], models), flush=True)


def worker(stack: ExitStack, directory: Path) -> Callable[[str], float]:
    """Start a process with the code of a directory, which measures the cases that it gets."""
    path = os.pathsep.join(str(directory / part) for part in ("conformance", "reference"))
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )

    def measured(case: str) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{case}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return measured


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, help="a checkout to compare with")
    parser.add_argument("--turns", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.work:
        work()
        return
    table = Table("", "a step", *(["before", "ratio"] if asked.beside else []))
    with ExitStack() as stack:
        sides = [worker(stack, directory) for directory in (ROOT, asked.beside) if directory]
        for case in CASES:
            if asked.only not in case:
                continue
            taken = [[side(case) for side in sides] for _ in range(asked.turns)]
            medians = [statistics.median(side) for side in zip(*taken, strict=True)]
            ratio = [f"{medians[1] / medians[0]:.2f}"] if asked.beside else []
            table.add_row(case, *(f"{median:.0f} µs" for median in medians), *ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
