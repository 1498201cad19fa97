"""Near ties: a correct server whose answers differ at near ties must not fail a check.

The reference engine is started so that some greedy answers differ at near ties and all logprobs differ a
little. It is checked like any other server. No verdict may be FAIL, because the server is correct.

    python -m proofs.near_ties                          two standard runs for each model, share and dialect
    python -m proofs.near_ties --budget quick --runs 1 --share 0.2 --model builtin:parrot --shapes vllm

Each run also compares the server with itself, as if it were a gateway and its worker.

Exit status: 0 if no run has a FAIL, 1 if a run has one.
"""

from __future__ import annotations

import argparse
import itertools
import sys

from proofs.killing.serving import serve
from proofs.stability import check
from tokenwire.ask import Budget
from tokenwire.judging.verdict import Verdict

SHARES = (0.02, 0.05, 0.1, 0.2)
MODELS = ("builtin:tiny", "builtin:parrot", "builtin:tiny-moe")
"""The parrot is almost certain of each id, and its correct logprobs are known. A mixture of experts has near
ties between experts too.
"""
SHAPES = ("sglang", "vllm")
"""The dialect families of the reference. In vLLM's completions, the candidates for an id are identified by
their texts.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, action="append", metavar="P", help=f"of {SHARES}; repeatable")
    parser.add_argument("--model", action="append", metavar="NAME", help=f"of {MODELS}; repeatable")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="of each model, share and family; 2")
    parser.add_argument("--shapes", action="append", choices=SHAPES, help="both; repeatable")
    parser.add_argument("--budget", type=Budget, choices=list(Budget), default=Budget.STANDARD)
    parser.add_argument("--dialect", action="append", default=[], metavar="NAME", help="all; repeatable")
    options = parser.parse_args()
    red = runs = 0
    for share, model, shapes in itertools.product(
        options.share or SHARES, options.model or MODELS, options.shapes or SHAPES
    ):
        name = f"--near-ties {share} --model {model} --api-dialect {shapes}"
        with serve([name]) as urls:
            for _ in range(options.runs):
                judged = check(urls[name], options.budget, options.dialect, worker=urls[name])
                failed = {
                    row: judgement for row, judgement in judged.items() if judgement.verdict is Verdict.FAIL
                }
                print(f"{model}, share {share}, {shapes}: {len(failed)} of {len(judged)} FAIL", flush=True)
                for row, observation in failed.items():
                    print(f"  {row} in {observation.scenario}: {observation.message}")
                runs, red = runs + 1, red + bool(failed)
    print(f"{red} of {runs} runs with a FAIL")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
