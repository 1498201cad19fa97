"""Measure the memory of answers and the time of judging, with the savings of the suite and without.

python benchmarks/memory.py [CAPTURE...] ends with a table and the ratios

Both sides run in turns in one run, on captures (by default on the recordings of one server) and on one long
cumulative stream that is made up. Memory is what Python allocated for all streams, beside the bytes of their
answers; time is that of the processor.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.replay import captures, read_run
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "sglang" / "0.5.23"
WITHOUT_SHARING = mock.patch("tokenwire.dialects.dialect.sharing", lambda value, _before: value)
WITH_THE_COLLECTOR = mock.patch("tokenwire.judging.judge.few_collections", nullcontext)


def long_stream(tokens: int) -> list[Exchange]:
    """Return a cumulative stream with a logprob for each token."""
    ids, entries, reads = [], [], []
    for token in range(tokens):
        ids.append(1000 + token)
        entries.append([-1 / (1 + token), 1000 + token, None])
        figures = {
            "id": "a",
            "prompt_tokens": 1,
            "completion_tokens": len(ids),
            "output_token_logprobs": entries,
        }
        event = {"text": "", "output_ids": ids, "meta_info": figures}
        reads.append(Read(0.01 * token, b"data: " + json.dumps(event).encode() + b"\n\n"))
    request = HttpRequest("POST", "/generate", {"input_ids": [1], "stream": True, "return_logprob": True})
    headers = (("content-type", "text/event-stream"),)
    return [Exchange("generate/long", request, "long", 200, headers, tuple(reads), Ending.COMPLETE)]


def read_all(servers: Sequence[Sequence[Exchange]]) -> list[Run]:
    """One run for each server."""
    return [read_run(exchanges, DialectResolver(exchanges), "")[0] for exchanges in servers]


def held(servers: Sequence[Sequence[Exchange]]) -> float:
    """Bytes that are held for all streams, for each byte of their answers."""
    sent = sum(len(read.data) for exchanges in servers for exchange in exchanges for read in exchange.reads)
    tracemalloc.start()
    runs = read_all(servers)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del runs
    return taken / sent


def seconds(doing: Callable[[], object]) -> float:
    """Measure the processor time for doing something once."""
    gc.collect()
    begin = time.process_time()
    doing()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("captures", nargs="*", type=Path, default=[RECORDINGS])
    parser.add_argument("--turns", type=int, default=3, help="how often both sides take turns")
    parser.add_argument(
        "--times", type=int, default=8, help="a long run is the first recording this many times"
    )
    figures = parser.parse_args()
    recorded = [exchanges for path in figures.captures for _, exchanges in captures(path)]
    long = [long_stream(400)]
    judge(read_all(recorded))  # loads what is loaded once
    many = [
        [replace(item, name=f"{item.name}-{time}") for item in recorded[0] for time in range(figures.times)]
    ]
    table = Table("", "with", "without", "ratio")
    for what, measure, without, unit in (
        ("held of recordings, per byte", lambda: held(recorded), WITHOUT_SHARING, "B"),
        ("held of a long stream, per byte", lambda: held(long), WITHOUT_SHARING, "B"),
        ("reading recordings", lambda: seconds(lambda: read_all(recorded)), WITHOUT_SHARING, "s"),
        ("judging a long run", lambda: judging(read_all(many)), WITH_THE_COLLECTOR, "s"),
    ):
        numbers: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(figures.turns):
            numbers["with"].append(measure())
            with without:
                numbers["without"].append(measure())
        with_it, without_it = (statistics.median(numbers[side]) for side in ("with", "without"))
        table.add_row(
            what, f"{with_it:.2f} {unit}", f"{without_it:.2f} {unit}", f"{without_it / with_it:.2f}"
        )
    Console().print(table)


def judging(runs: list[Run]) -> float:
    """Seconds of the processor for judging what was read."""
    return seconds(lambda: judge(runs))


if __name__ == "__main__":
    main()
