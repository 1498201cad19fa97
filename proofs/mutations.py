"""Mutate recorded streams: the checks must find illegal edits, and legal edits must not change a verdict.

python -m proofs.mutations                  10,000 edits of each kind
python -m proofs.mutations --count 500
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from proofs.mutation.illegal import ILLEGAL
from proofs.mutation.legal import LEGAL
from proofs.mutation.source import Source, sources
from proofs.mutation.trial import Tally, try_illegal, try_legal
from tokenwire.target.tokenizer import LocalTokenizer

_T = TypeVar("_T")
Try = Callable[[Tally, Source, str, "Dice"], bool]

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = {
    "tiny-qwen2": [
        FIXTURES / "sglang/0.5.23" / f"{name}.jsonl.gz"
        for name in (
            "A_base",
            "C_incr",
            "D2_cumul_int8",
            "D_incr_int8",
            "F_mirror",
            "F2_mirror_incr",
            "I4_extra_mirror_incr",
        )
    ],
    "tiny-llama": [FIXTURES / "vllm/0.32.0-cpu" / f"{name}.jsonl.gz" for name in ("si1", "si3")],
}
"""Captures of each model, in both delivery modes, with and without the keys of samplers."""
_MOST_SEARCHED = 200


class Dice:
    """A source of choices from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, options: Sequence[_T]) -> _T:
        return self._random.choice(options)


def recorded() -> list[Source]:
    """Return all recorded streams that can be mutated."""
    return [
        source
        for model, paths in RECORDED.items()
        for source in sources(paths, LocalTokenizer(FIXTURES / "models" / model))
    ]


def run(every: Sequence[Source], names: Iterable[str], trial: Try, count: int, seed: int) -> Tally:
    """Try `count` mutations with all edits in turn. Raises ValueError if no stream can be edited in one of
    the ways.
    """
    tally, dice, names = Tally(), Dice(seed), list(names)
    for number in range(count):
        name = names[number % len(names)]
        if not any(trial(tally, dice.choose(every), name, dice) for _ in range(_MOST_SEARCHED)):
            raise ValueError(f"the edit {name!r} is not possible in any recorded stream; add a recording")
    return tally


def main() -> int:
    """Print how many edits of each kind were tried, and all problems. Return 1 if there are problems."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=10_000, metavar="N", help="edits of each kind; default 10,000"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    every = recorded()
    print(f"{len(every)} recorded streams without violations")
    illegal = run(every, ILLEGAL, try_illegal, asked.count, asked.seed)
    legal = run(every, LEGAL, try_legal, asked.count, asked.seed)
    for name, number in [*illegal.tried.items(), *legal.tried.items()]:
        print(f"{number:8}  {name}")
    for words in [*illegal.missed[:10], *legal.false_alarms[:10]]:
        print(words)
    print(
        f"{illegal.tried.total()} illegal edits, {len(illegal.missed)} missed; "
        f"{legal.tried.total()} legal edits, {len(legal.false_alarms)} false alarms; "
        f"{len(illegal.caught_by)} requirements found an illegal edit"
    )
    return 1 if illegal.missed or legal.false_alarms else 0


if __name__ == "__main__":
    sys.exit(main())
