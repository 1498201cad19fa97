"""The process of the judge: exchanges come in on standard input, opinions go out on standard output.

It is a process of its own, so that judging takes no time from the traffic, and no fault of it can end there.
An exchange is a length of eight bytes and a pickle, from our own parent, that tells where in the room its
body lies; an opinion is one line of JSON.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from tokenwire.watch.exchange_assembly import ObservedExchange, redacted
from tokenwire.watch.judging import Bench, Opinion, Violation, single_answer_requirements
from tokenwire.watch.room import Room, pieces
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.exchange import Exchange

_LENGTH = struct.Struct(">Q")


def frame(heard: ObservedExchange, room: Room) -> bytes:
    """An exchange as the process reads it; its body lies in the room, which the process has too."""
    body = heard.body
    times, lengths = array("d", body.times).tobytes(), array("Q", body.lengths).tobytes()
    told = heard.exchange, times, lengths, body.blocks, room.fd, room.size
    data = pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _exchange(data: bytes) -> Exchange:
    exchange, times, lengths, blocks, fd, size = pickle.loads(data)
    return redacted(exchange, array("d", times), pieces(fd, size, blocks, array("Q", lengths)))


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
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        data = file.read(size)
        if len(data) < size:
            return
        yield _exchange(data)


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
