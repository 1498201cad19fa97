"""Measure the cost of a streamed token with uvicorn's two parsers of HTTP: h11, and httptools (in C).

    python benchmarks/http_parsers.py                        ends with a table
    python benchmarks/http_parsers.py --checkout DIRECTORY   beside the reference of another checkout, too

All sides take turns in one run. The measure is the processor time of the server's process for each event
(`delivery.py` explains it). Needs httptools, which the reference itself does not need.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
from delivery import SERVE, TEXT, TOKENS, Case, body, cost, server

PARSERS = {"h11": "h11_impl:H11Protocol", "httptools": "httptools_impl:HttpToolsProtocol"}
PROGRAM = """
import sys
from uvicorn.importer import import_from_string
import tokenwire_reference.serve
if {parser!r}:
    tokenwire_reference.serve.AutoHTTPProtocol = import_from_string("uvicorn.protocols.http." + {parser!r})
from tokenwire_reference.cli import main
sys.argv[1:1] = {words!r}
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--checkout", type=Path, help="another checkout, measured as it is")
    asked = parser.parse_args()
    words = [*SERVE[2:], "--incremental-streaming-output"]
    with ExitStack() as servers:
        sides = {
            name: servers.enter_context(server("-c", PROGRAM.format(parser=path, words=words)))
            for name, path in PARSERS.items()
        }
        if asked.checkout:
            here = os.environ.get("PYTHONPATH", "")
            rooms = ("conformance", "reference", "")
            os.environ["PYTHONPATH"] = os.pathsep.join(str(asked.checkout / room) for room in rooms)
            sides["checkout"] = servers.enter_context(server("-c", PROGRAM.format(parser="", words=words)))
            os.environ["PYTHONPATH"] = here
        prompt = httpx.post(f"http://127.0.0.1:{sides['h11'][1]}/tokenize", json={"prompt": TEXT * 40})
        ids = prompt.json()["tokens"][:TOKENS]
        for streams, logprobs, interval in ((64, True, 1), (64, False, 1), (1, False, 1), (64, False, 8)):
            case = Case("incremental", streams, logprobs, interval)
            bodies, times = [body(ids, case)] * streams, max(1, 64 // streams)
            taken = [
                {name: cost(*side, bodies, times)[0] for name, side in sides.items()}
                for _ in range(asked.turns)
            ]
            figures = ", ".join(
                f"{name} {statistics.median(turn[name] for turn in taken):.0f} µs" for name in sides
            )
            ratios = ", ".join(
                f"{name} {statistics.median(turn['h11'] / turn[name] for turn in taken):.2f}"
                for name in list(sides)[1:]
            )
            print(f"{case}: {figures}; events beside h11: {ratios}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
