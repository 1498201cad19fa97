"""The kill matrix: every fault of the reference engine against every requirement of the specification.

A suite is worthless if it accepts a broken server, or blames a server for the wrong thing. So each fault is
enabled in every delivery mode in which it can show, and all requirements are judged. A fault must be killed
by a requirement that names it in `spec/requirements`. A requirement must kill the faults that it names, and
at least one fault. A requirement that fails without naming the fault is an unexpected kill, unless
`killing/consequences.yaml` lists it, because a lost event violates several requirements. Which of several
related requirements a fault violates depends on how streams are divided. So `killing/families.yaml` lists
related requirements. A new kill of a requirement that is related to a known kill is reported, but is not a
complaint.

    python -m proofs.kill_matrix                            the whole matrix
    python -m proofs.kill_matrix --fault event-dropped      one fault; repeatable
    python -m proofs.kill_matrix --html matrix.html --json matrix.json

Exit status: 0 without complaints, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from proofs.killing.asking import CORE, try_all
from proofs.killing.learnt import consequences, families, learn
from proofs.killing.matrix import Matrix, Trial
from proofs.killing.page import page
from proofs.killing.serving import serve, servers_for
from proofs.killing.telling import as_json, print_matrix
from tokenwire.requirement import load_requirements
from tokenwire_faults.catalogue import load_faults


def kill_matrix(names: Sequence[str] = (), *, quiet: bool = True, flags: Sequence[str] = ()) -> Matrix:
    """Try the named faults, or all: start the servers that they need, send requests, judge, and stop the
    servers.

    All servers get `flags` in addition to their own.
    """
    faults = {name: fault for name, fault in load_faults().items() if not names or name in names}
    pairs = [(fault, server) for fault in faults.values() for server in servers_for(fault)]
    done = 0

    def report(trial: Trial) -> None:
        nonlocal done
        done += 1
        print(
            f"{done}/{len(pairs)}  {trial.fault} on {trial.server}: {len(trial.kills)} red", file=sys.stderr
        )

    with serve(dict.fromkeys(server for _, server in pairs), flags) as urls:
        trials = try_all(pairs, urls, (lambda _: None) if quiet else report)
    return Matrix(load_requirements(), faults, trials, consequences(), families(), whole=not names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults, print the report, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", action="append", default=[], choices=load_faults(), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the matrix as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the matrix as one page")
    parser.add_argument("--learn", action="store_true", help="write down what showed, and what else broke")
    parser.add_argument(
        "--near-ties", type=float, metavar="P", help="on a server that does not repeat itself: structure only"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not tell each trial")
    asked = parser.parse_args(arguments)
    begun = time.monotonic()
    flags = ["--near-ties", str(asked.near_ties)] if asked.near_ties else []
    matrix = kill_matrix(asked.fault, quiet=asked.quiet, flags=flags)
    print_matrix(Console(), matrix, time.monotonic() - begun)
    if asked.json:
        asked.json.write_text(as_json(matrix), "utf-8")
    if asked.html:
        asked.html.write_text(page(matrix), "utf-8")
    if asked.learn:
        learn(matrix, CORE)
    return 1 if matrix.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
