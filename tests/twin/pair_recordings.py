"""Shorten two captures of one plan: `python tests/twin/pair_recordings.py ONE OTHER INTO`.

Two captures of one plan are compared by the exchanges that both have. Those stay. Of an endpoint that only
one side answers, the first exchanges stay: they show that it does. Captures that people asked by hand are
copied as they are, with `--whole`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenwire.replay import captures
from tokenwire.wire.capture import exchange_lines
from tokenwire.wire.exchange import ExchangeHead

FOLDER = Path(__file__).parent / "recordings"
_OF_AN_ENDPOINT = 3
"""Exchanges of an endpoint that stay without a partner."""


def _exchanges(path: Path) -> Sequence[ExchangeHead]:
    [(_, exchanges)] = captures(path)
    return exchanges


def _kept(exchanges: Sequence[ExchangeHead], shared: frozenset[str]) -> list[ExchangeHead]:
    alone: Counter[str] = Counter()
    kept = []
    for exchange in exchanges:
        dialect = exchange.name.partition("/")[0]
        alone[dialect] += exchange.name not in shared
        if exchange.name in shared or alone[dialect] <= _OF_AN_ENDPOINT:
            kept.append(exchange)
    return kept


def _write(path: Path, exchanges: Sequence[ExchangeHead]) -> None:
    lines = (line for exchange in exchanges for line in exchange_lines(exchange.load()))
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode("ascii"), 9, mtime=0))


def main(one: str, other: str, *names: str) -> None:
    whole = "--whole" in names
    sides = [_exchanges(Path(path)) for path in (one, other)]
    shared = frozenset.intersection(*(frozenset(exchange.name for exchange in side) for side in sides))
    for side, name in zip(sides, (name for name in names if name != "--whole"), strict=True):
        _write(FOLDER / f"{name}.jsonl.gz", side if whole else _kept(side, shared))


if __name__ == "__main__":
    main(*sys.argv[1:])
