"""The process of the judge: exchanges come in on standard input, opinions go out on standard output.

It is a process of its own, so that judging takes no time from the traffic, and no fault of it can end there.
An exchange is two lengths of eight bytes, a pickle from our own parent, and the answer's body; an opinion is
one line of JSON.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from tokenwire.watch.judging import Bench, Opinion, Violation, single_answer_requirements
from tokenwire.watch.overheard import Overheard
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.exchange import Exchange

_LENGTHS = struct.Struct(">QQ")


def frame(heard: Overheard) -> list[bytes]:
    """An exchange as the process reads it, without a copy of its body."""
    told = heard.exchange, array("d", heard.times).tobytes(), array("Q", map(len, heard.pieces)).tobytes()
    data = pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL)
    size = sum(map(len, heard.pieces))
    return [_LENGTHS.pack(len(data), size) + data, *heard.pieces]


def _overheard(data: bytes, body: bytes) -> Overheard:
    exchange, times, lengths = pickle.loads(data)
    ends = [0, *accumulate(array("Q", lengths))]
    pieces = [body[start:end] for start, end in pairwise(ends)]
    return Overheard(exchange, array("d", times), pieces)


def opinion_line(opinion: Opinion) -> bytes:
    """An opinion as the process writes it."""
    return json.dumps(asdict(opinion)).encode("ascii") + b"\n"


def read_opinion(line: bytes) -> Opinion:
    """Raises ValueError or TypeError for a line that is none."""
    told: dict[str, Any] = json.loads(line)
    violations = tuple(Violation(**one) for one in told.pop("violations"))
    return Opinion(**{**told, "violations": violations, "crashed": tuple(told["crashed"])})


def exchanges(file: BinaryIO) -> Iterator[Exchange]:
    """All that were written to a file, without credentials, up to one that was cut off: then the watcher is
    gone.
    """
    while len(head := file.read(_LENGTHS.size)) == _LENGTHS.size:
        first, second = _LENGTHS.unpack(head)
        data, body = file.read(first), file.read(second)
        if len(data) < first or len(body) < second:
            return
        yield _overheard(data, body).redacted()


def _kept(opinion: Opinion, exchange: Exchange, folder: ViolationFolder | None) -> Opinion:
    """The opinion, with what became of the capture."""
    if folder is None or not opinion.violations:
        return opinion
    try:
        size = folder.keep(opinion.violations[0].requirement, exchange)
    except OSError as error:
        return replace(opinion, unrecorded=f"{type(error).__name__}: {error}")
    return replace(opinion, recorded=size, unrecorded="" if size else "it is larger than the cap")


def main(folder: str, cap: str, *profiles: str) -> None:
    """folder: where violations are kept; empty for nowhere. cap: in bytes. profiles: none for all."""
    kept = ViolationFolder(Path(folder), int(cap)) if folder else None
    bench = Bench(single_answer_requirements(profiles))
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but opinions may stand there
    for exchange in exchanges(sys.stdin.buffer):
        opinion = replace(bench.hear(exchange), path=exchange.request.path)
        out.write(opinion_line(_kept(opinion, exchange, kept)))
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
