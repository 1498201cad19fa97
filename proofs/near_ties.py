"""Near ties: a correct server that does not repeat itself fails nothing.

The reference engine is started so that a share of its greedy answers go another way at a near tie and that
its logprobs move a little, and is checked as any server. No row may be a FAIL: nothing is at fault.

    python -m proofs.near_ties                                      eight standard runs at each of four shares
    python -m proofs.near_ties --budget quick --runs 1 --share 0.2

Exit status: 0 no FAIL in any run, 1 some.
"""

from __future__ import annotations

import argparse
import sys

from proofs.killing.serving import serve
from proofs.stability import check
from tokenwire.asking.scenario import Budget
from tokenwire.judging.verdict import Verdict

SHARES = (0.02, 0.05, 0.1, 0.2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, action="append", metavar="P", help=f"of {SHARES}; repeatable")
    parser.add_argument("--runs", type=int, default=8, metavar="N", help="at each share; 8")
    parser.add_argument("--budget", type=Budget, choices=list(Budget), default=Budget.STANDARD)
    parser.add_argument("--dialect", action="append", default=[], metavar="NAME", help="all; repeatable")
    options = parser.parse_args()
    red = runs = 0
    for share in options.share or SHARES:
        name = f"--near-ties {share}"
        with serve([name]) as urls:
            for _ in range(options.runs):
                judged = check(urls[name], options.budget, options.dialect)
                failed = {row: each for row, each in judged.items() if each.verdict is Verdict.FAIL}
                print(f"share {share}: {len(failed)} of {len(judged)} rows FAIL", flush=True)
                for row, each in failed.items():
                    print(f"  {row} in {each.scenario}: {each.message}")
                runs, red = runs + 1, red + bool(failed)
    print(f"{red} of {runs} runs with a FAIL")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
