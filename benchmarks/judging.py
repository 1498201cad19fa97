"""Reading and judging answers by all requirements, beside the straightforward judge; and of any length.

    python benchmarks/judging.py                      ends with a table for each claim
    python benchmarks/judging.py --write DIRECTORY    keeps the numbers there, for the documentation

The straightforward judge does for each event what a careful script does: it splits the lines, parses the JSON
with `json`, and validates it with `jsonschema`. It looks at no requirement. Both sides take turns on the same
streams: those that a real server sent (`fixtures/`), made longer. Time is that of the processor, on one core.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
from rich.console import Console
from rich.table import Table

from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.collector import few_collections
from tokenwire.judging.judge import judge
from tokenwire.replay import read_run
from tokenwire.spec_files import load_schema
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Exchange, HttpRequest, Read

CAPTURE = Path(__file__).parents[1] / "fixtures" / "sglang" / "0.5.23" / "C_incr.jsonl.gz"
STREAM = "d_lp_stream"
"""An incremental stream whose every event has logprobs, the two likeliest and three chosen ids."""
VALIDATOR = jsonschema.Draft202012Validator(load_schema("generate-event"))
MEGA = 1e6


def recorded() -> tuple[Exchange, list[dict[str, Any]]]:
    """Return the stream of a real server that all are made from, and its events, each of which has one id."""
    exchange = next(item for item in read_capture(CAPTURE) if item.name == STREAM)
    figures = exchange.body.decode().removeprefix("data: ").split("\n\ndata: ")
    return exchange, [json.loads(event) for event in figures[:-1]]


def stream(tokens: int, *, cumulative: int = 0, whole: bool = False, name: str = "long") -> Exchange:
    """Make an answer of `tokens` tokens as that server sends it: a token in each event, `cumulative` events
    with all tokens so far, or one whole answer.

    Values that vary there from token to token do so here: text, id, counters, every logprob, the ids and
    texts of the likeliest. The first event has the time when it was sent, the last the time that all took.
    """
    exchange, (first, usual, *_, last) = recorded()
    series = [key for key, value in usual["meta_info"].items() if key.startswith("output_") and value]
    series = [key for key in series if isinstance(usual["meta_info"][key], list)]
    ids = [(7 * place + place // 50) % 2000 for place in range(tokens)]
    chosen = {"output_token_ids_logprobs"}  # the ids that were asked for, at each position
    values = {
        key: [_of(usual["meta_info"][key][0], token, own_id=key not in chosen) for token in ids]
        for key in series
    }
    spans = [{**span, "end": tokens} for span in last["meta_info"]["weight_versions"]]
    ending = {"finish_reason": {"type": "length", "length": tokens}, "weight_versions": spans}
    events: list[str] = []
    cuts = 1 if whole else cumulative or tokens
    for count in (tokens * cut // cuts for cut in range(1, cuts + 1)):
        new = slice(0 if whole or cumulative else count - 1, count)
        figures = deepcopy(last if count == tokens else usual if events else first)
        figures["output_ids"], figures["text"] = ids[new], "".join(map(_text, ids[new]))
        figures["meta_info"] |= {key: values[key][new] for key in series} | {"completion_tokens": count}
        figures["meta_info"] |= {"output_token_logprobs_length": count} | (ending if count == tokens else {})
        events.append(json.dumps(figures, separators=(",", ":")))
    asked = {**exchange.request.body, "return_text_in_logprobs": True}
    asked["sampling_params"] = {**asked["sampling_params"], "max_new_tokens": tokens}
    if whole:
        asked["stream"] = False
        reads, headers = [events[0].encode()], (("content-type", "application/json"),)
    else:
        reads = [f"data: {event}\n\n".encode() for event in (*events, "[DONE]")]
        headers = exchange.headers
    timed = tuple(Read(0.01 * number, data) for number, data in enumerate(reads))
    request = HttpRequest("POST", exchange.request.path, asked)
    server = replace(exchange.server, flags=()) if cumulative else exchange.server
    made = {"request": request, "headers": headers, "reads": timed, "server": server}
    return replace(exchange, name=f"generate/{name}", **made)


def _text(token: int) -> str:
    return f" {token:x}"


def _of(position: list[Any], token: int, *, own_id: bool) -> list[Any]:
    """Return the values of an event at one position, for another token: with another logprob, and
    its own id.
    """
    if position and isinstance(position[0], list):
        return [_of(entry, token + rank, own_id=own_id) for rank, entry in enumerate(position)]
    logprob, id_, _ = position
    token_told = token if own_id else id_
    return [logprob - 1 / (10 + token), token_told, _text(token_told)]


@few_collections()
def ours(exchanges: Sequence[Exchange]) -> None:
    """Read and judge answers by all requirements."""
    run, _ = read_run(exchanges, DialectResolver(exchanges), "")
    judge([run])


def _events(body: str) -> Iterator[str]:
    """Yield the data of the events of a body, as the clients of servers decode it."""
    data: list[str] = []
    for line in body.splitlines():
        field, _, value = line.partition(":")
        if not line and data:
            yield "\n".join(data)
            data.clear()
        elif field == "data":
            data.append(value.removeprefix(" "))


def straightforward(exchanges: Sequence[Exchange]) -> None:
    """Split, parse and validate each event, and look at nothing else."""
    for exchange in exchanges:
        for data in _events(exchange.body.decode()):
            if data != "[DONE]":
                VALIDATOR.validate(json.loads(data))


def seconds(doing: Callable[[], object], turns: int) -> float:
    """Measure the processor time for doing something once: the median of some turns."""
    taken = []
    for _ in range(turns):
        gc.collect()
        begin = time.process_time()
        doing()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def _size(exchanges: Sequence[Exchange]) -> int:
    return sum(len(exchange.body) for exchange in exchanges)


Rows = list[list[str]]
SPEED = ["incremental, with logprobs", "events", "µs each", "MB/s", "straightforward", "ratio"]


def beside_the_straightforward_judge(turns: int) -> Rows:
    """Measure the speed of both sides on incremental streams with logprobs, short and long."""
    rows: Rows = []
    for count, tokens in ((200, 50), (10, 1000), (1, 10_000)):
        exchanges = [stream(tokens, name=f"{tokens}/{number}") for number in range(count)]
        ratios, fast, slow = [], 0.0, 0.0
        for _ in range(turns):
            fast, slow = (seconds(partial(side, exchanges), 1) for side in (ours, straightforward))
            ratios.append(slow / fast)
        size, events = _size(exchanges) / MEGA, count * tokens
        rows.append(
            [
                f"{count} streams of {tokens} tokens",
                f"{events}",
                f"{fast / events * MEGA:.1f}",
                f"{size / fast:.1f}",
                f"{size / slow:.1f} MB/s",
                f"{statistics.median(ratios):.1f}",
            ]
        )
    return rows


def of_any_length(turns: int, sizes: Sequence[int]) -> Rows:
    """Measure the cost of an event in streams of different lengths, and of a byte where events grow with the
    stream.
    """
    rows: Rows = []
    modes: tuple[tuple[str, Callable[[int], Exchange], str], ...] = (
        ("incremental", stream, "µs an event"),
        ("cumulative, 32 events", lambda size: stream(size, cumulative=32), "ns a byte"),
        ("whole", lambda size: stream(size, whole=True), "ns a byte"),
    )
    for name, made, unit in modes:
        costs = []
        for size in sizes:
            exchange = made(size)
            scale = size / MEGA if unit == "µs an event" else len(exchange.body) / 1e9
            costs.append(seconds(partial(ours, [exchange]), turns) / scale)
        rows.append([name, unit, *(f"{cost:.1f}" for cost in costs), f"{costs[-1] / costs[0]:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--longest", type=int, default=100_000, help="tokens of the longest stream")
    parser.add_argument("--write", type=Path, help="a directory for judging.json")
    figures = parser.parse_args()
    ours([stream(64)])  # loads what is loaded once
    sizes = [size for size in (1000, 10_000, 100_000) if size <= figures.longest]
    lengths = ["answer", "unit", *(f"{size} tokens" for size in sizes), "ratio"]
    tables = {
        "speed": [SPEED, *beside_the_straightforward_judge(figures.turns)],
        "length": [lengths, *of_any_length(figures.turns, sizes)],
    }
    for title, (heads, *rows) in tables.items():
        table = Table(*heads, title=title)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    if figures.write:
        (figures.write / "judging.json").write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
