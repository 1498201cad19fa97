"""Mutants of our own code: a small error in a line of the judge or of the engine, which a test must detect.

Each mutant of a fixed sample is tried with the tests that run its line, the fastest first, until one fails.
(`proofs.mutations` changes streams, and so tests the checks. This program changes the code, and so tests the
tests.)

    python -m proofs.mutants                     300 mutants, half of the judge, half of the engine
    python -m proofs.mutants --sample 40 --seed 1
    python -m proofs.mutants --only conformance/tokenwire/checks/usage.py --sample 1000
    python -m proofs.mutants --again OUTPUT      only the survivors in the output of an earlier run

The judge and the engine are tried at the same time, each in its own process. Exit status: 0 if tests kill at
least 90 %, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import yaml

from proofs.code_mutation.covering import gather
from proofs.code_mutation.forking import import_others
from proofs.code_mutation.making import Mutant, mutants_of, sampled
from proofs.code_mutation.trial import Outcome, try_mutant

ROOT = Path(__file__).parents[1]
_REFERENCE = "reference/tokenwire_reference"
CODE = {
    "the judge": [
        f"conformance/tokenwire/{name}" for name in ("checks", "dialects", "judging", "target", "wire")
    ],
    "the engine": [f"{_REFERENCE}/{name}" for name in ("core", "extras")],
}
TESTS = {"the judge": "tests/conformance", "the engine": "tests/reference"}
"""The tests for each part. They do not run our programs in other processes, which have no mutants."""
EQUIVALENT = Path(__file__).parent / "code_mutation" / "equivalent.yaml"
ANY = "any"
"""The entry for all mutations of a line, in the file of equivalent mutants."""
REQUIRED = 0.9
_TOLD_EVERY = 25


@dataclass(frozen=True)
class Asked:
    """The mutants of one part to try, and the tests to use."""

    part: str
    paths: Sequence[Path]
    count: int
    seed: int
    again: str
    """The output of an earlier run. Only the mutants that it names are tried; if it is empty, all are."""
    tests: Sequence[Path]


def run(asked: Asked) -> Counter[Outcome]:
    """Try a sample of the mutants of some files, and print each survivor."""
    part = asked.part
    every = [mutant for path in asked.paths for mutant in _mutants(path)]
    covering = gather(ROOT, asked.tests, _files(CODE[part]), ROOT / ".nox" / "mutants")
    tally: Counter[Outcome] = Counter()
    start = time.monotonic()
    for mutant in sampled(every, asked.count, asked.seed):
        if asked.again and str(mutant) not in asked.again:
            continue
        outcome = try_mutant(ROOT, mutant, covering)
        tally[outcome] += 1
        if not outcome.killed:
            print(f"{outcome}: {mutant}", flush=True)
        if tally.total() % _TOLD_EVERY == 0:
            print(f"{part}, so far: {_summary(tally)}", flush=True)
    seconds = time.monotonic() - start
    print(f"{part}: {_summary(tally)}, of {len(every)} mutants; {seconds:.0f} s", flush=True)
    return tally


def main() -> int:
    """Print each survivor, and the share of killed mutants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="mutants in all; default 300")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sample; default 0")
    parser.add_argument(
        "--only", type=Path, action="append", default=[], metavar="PATH", help="a file or folder; repeatable"
    )
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="output of an earlier run: only those that it names"
    )
    parser.add_argument(
        "--tests", type=Path, action="append", default=[], metavar="FILE", help="only these; repeatable"
    )
    options = parser.parse_args()
    only = [path.resolve() for path in options.only] or [ROOT]
    parts = {
        part: [path for path in _files(folders) if any(map(path.is_relative_to, only))]
        for part, folders in CODE.items()
    }
    trying = {part: _tests(part, [path.resolve() for path in options.tests]) for part in CODE}
    meant = {part: paths for part, paths in parts.items() if paths and trying[part]}
    if not meant:
        parser.error(f"--only names none of the code that is mutated ({CODE}), or --tests no test ({TESTS})")
    again = options.again.read_text("utf-8") if options.again else ""
    os.chdir(ROOT)  # tests are named by their paths in this folder
    import_others()
    asked = [
        Asked(part, paths, options.sample // len(meant), options.seed, again, trying[part])
        for part, paths in meant.items()
    ]
    with ProcessPoolExecutor(len(asked), get_context("fork")) as beside:
        tallies = list(beside.map(run, asked))
    total = sum(tallies, Counter[Outcome]())
    print(f"all: {_summary(total)}")
    return 0 if _score(total) >= REQUIRED else 1


def _mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a file, without those that are known to behave like the original code."""
    name = str(path.relative_to(ROOT))
    known = yaml.safe_load(EQUIVALENT.read_text("utf-8"))
    equivalent = {(item["line"], item["mutation"]) for item in known if item["file"] == name}
    every = mutants_of(name, path.read_bytes())
    return [mutant for mutant in every if not {(mutant.text, mutant.change), (mutant.text, ANY)} & equivalent]


def _files(folders: Sequence[str]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _tests(part: str, chosen: Sequence[Path]) -> list[Path]:
    every = sorted((ROOT / TESTS[part]).rglob("test_*.py"))
    return [path for path in every if not chosen or path in chosen]


def _score(tally: Counter[Outcome]) -> float:
    return sum(count for outcome, count in tally.items() if outcome.killed) / (tally.total() or 1)


def _summary(tally: Counter[Outcome]) -> str:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(tally.items()))
    return f"{_score(tally):.0%} killed ({counts})"


if __name__ == "__main__":
    sys.exit(main())
