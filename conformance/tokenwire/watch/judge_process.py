"""The process of the judge: exchanges come in on standard input, opinions go out on standard output.

It is a process of its own, so that judging takes no time from the traffic, and no fault of it can end there.
A few exchanges together are a length of eight bytes and a pickle, from our own parent, that tells where in
the room their answers lie, or holds them; an opinion is one line of JSON.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import h11

from tokenwire.watch.exchange_assembly import ObservedExchange, read_exchange
from tokenwire.watch.judging import Bench, Opinion, Violation, single_answer_requirements
from tokenwire.watch.room import Room, reads_in
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.exchange import Exchange

_LENGTH = struct.Struct(">Q")


def frame(together: Sequence[ObservedExchange], room: Room) -> bytes:
    """Exchanges as the process reads them; what of them lies in the room stays there, for it has that too."""
    told = [
        (heard.passed, array("d", kept.times).tobytes(), array("Q", kept.lengths).tobytes(), kept.stretches)
        for heard in together
        for kept in (heard.kept,)
    ]
    data = pickle.dumps((told, room.fd, room.size), protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def opinion_line(opinion: Opinion) -> bytes:
    """An opinion as the process writes it."""
    return json.dumps(asdict(opinion)).encode("ascii") + b"\n"


@lru_cache(maxsize=64)
def read_opinion(line: bytes) -> Opinion:
    """Most are alike. Raises ValueError or TypeError for a line that is none."""
    told: dict[str, Any] = json.loads(line)
    violations = tuple(Violation(**one) for one in told.pop("violations"))
    return Opinion(**{**told, "violations": violations, "crashed": tuple(told["crashed"])})


def exchanges(file: BinaryIO) -> Iterator[Exchange | None]:
    """All that were written to a file, without credentials, up to some that were cut off: then the watcher is
    gone. None for one that cannot be read.
    """
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        data = file.read(size)
        if len(data) < size:
            return
        told, fd, room = pickle.loads(data)
        for passed, times, lengths, stretches in told:
            reads = reads_in(fd, room, stretches, array("Q", lengths))
            try:
                yield read_exchange(passed, array("d", times), reads)
            except h11.ProtocolError:
                yield None


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
        if exchange is None:
            opinion = Opinion(gap="unreadable")
        else:
            opinion = replace(bench.hear(exchange), path=exchange.request.path)
            opinion = _kept(opinion, exchange, kept)
        out.write(opinion_line(opinion))
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
