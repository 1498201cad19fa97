"""Fuzz the parsers of server output: captures through replay and reports, and connections through watch.

Recorded answers are damaged. Values are replaced, and bytes are lost, doubled and changed: in a body, in the
lines of a capture, or on a connection. The result is parsed, judged and reported. There must be no traceback,
and no check may crash.

    python -m proofs.fuzz_answers                    200,000 inputs of each kind
    python -m proofs.fuzz_answers --inputs 1000 --seed 7
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import replay
from tokenwire.report.badge import badge
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json, document
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.page import page
from tokenwire.report.sarif import sarif
from tokenwire.report.terminal import print_report
from tokenwire.report.trace import trace
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import ExchangeWriter, read_capture
from tokenwire.wire.exchange import Exchange, Read
from tokenwire.wire.json_lines import CaptureError
from tokenwire_live.watch.exchange_assembly import Budget, ConnectionReader
from tokenwire_live.watch.judging import ExchangeJudge
from tokenwire_live.watch.spool import Kind, Record

FIXTURES = Path(__file__).parents[1] / "fixtures"
_LARGEST_SEED = 6000
"""The maximum size of the answers in one seed, in bytes. Small answers are judged fast, and damage has more
effect.
"""
_LARGEST_FILE = 50_000
_MOST_OF_A_KIND = 2
_TOLD_IN_FULL = 50
_BATCH = 2000
"""The number of inputs in one run of hypothesis, which keeps all of them in memory."""
INTERRUPTED_BY_NOTHING = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)

_TOKEN = re.compile(rb'-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*"|true|false|null|[][{},:]|\r?\n|[A-Za-z-]+')
_INSTEAD = (
    *(b"null", b"true", b"false", b"0", b"-1", b"1", b"-0.0", b"0.5", b"1e400", b"NaN", b"-Infinity"),
    *(
        b"1e308",
        b"2147483648",
        b"9223372036854775808",
        b"18446744073709551616",
        b"9" * 5000,
        b"1" + b"0" * 30,
    ),
    *(b'""', b'"x"', b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"data"', b'"stop"', b'"0"', b'"\xe2\x80\xa8"'),
    *(
        b"[]",
        b"{}",
        b"[null]",
        b"[[]]",
        b"[{}]",
        b'{"":0}',
        b"[-1]",
        b"[[0,1,null]]",
        b"[" * 300,
        b'{"a":' * 300,
    ),
    *(b"", b",", b":", b"]", b"}", b'"', b"\\", b"\n", b"\r", b"\n\n", b"\x00", b"\x80", b"\xef\xbb\xbf"),
    *(b"data: ", b"data: [DONE]\n\n", b"event: error\n", b": ping\n\n", b"id: 1\n", b"retry: 9\n"),
    *(b'"output_ids"', b'"meta_info"', b'"choices"', b'"index"', b'"error"', b'"usage"', b'"token_ids"'),
)
_MOST_EDITS = 4


@dataclass(frozen=True)
class Damage:
    """One change of some bytes. Its place is a fraction, so that it applies to data of any length."""

    kind: str
    place: float
    size: int
    instead: bytes

    def done_to(self, data: bytes) -> bytes:
        if self.kind == "value":
            tokens = list(_TOKEN.finditer(data))
            if not tokens:
                return data + self.instead
            found = tokens[min(int(self.place * len(tokens)), len(tokens) - 1)]
            return data[: found.start()] + self.instead + data[found.end() :]
        offset = min(int(self.place * len(data)), len(data))
        match self.kind:
            case "insert":
                return data[:offset] + self.instead + data[offset:]
            case "lose":
                return data[:offset] + data[offset + self.size :]
            case "double":
                return data[: offset + self.size] + data[offset:]
            case _:  # the kind "flip" changes one bit
                return (
                    data[:offset]
                    + bytes(byte ^ 1 << self.size % 8 for byte in data[offset : offset + 1])
                    + data[offset + 1 :]
                )


EDITS = st.lists(
    st.builds(
        Damage,
        st.sampled_from(["value", "value", "value", "insert", "lose", "double", "flip"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 64),
        st.sampled_from(_INSTEAD),
    ),
    min_size=1,
    max_size=_MOST_EDITS,
)


def damaged(data: bytes, edits: Sequence[Damage]) -> bytes:
    for edit in edits:
        data = edit.done_to(data)
    return data


@cache
def seeds() -> tuple[tuple[Exchange, ...], ...]:
    """Return small answers from the fixtures. A seed has answers of one server to similar requests."""
    found: dict[tuple[str, ...], list[tuple[Exchange, ...]]] = {}
    for path in sorted(FIXTURES.glob("*/*/*.jsonl.gz")):
        if path.stat().st_size > _LARGEST_FILE:
            continue
        by_path: dict[tuple[str, str], list[Exchange]] = {}
        for exchange in read_capture(path):
            key = exchange.request.path, exchange.scenario
            by_path.setdefault(key, []).append(exchange)
        for (endpoint, _), exchanges in by_path.items():
            small: list[Exchange] = []
            for exchange in sorted(exchanges, key=lambda other: len(other.body)):
                if sum(len(other.body) for other in (*small, exchange)) <= _LARGEST_SEED and len(small) < 3:
                    small.append(exchange)
            kind = (path.parts[-3], endpoint, *sorted({str(other.status) for other in small}))
            if small and len(found.setdefault(kind, [])) < _MOST_OF_A_KIND:
                found[kind].append(tuple(small))
    return tuple(seed for kind in found.values() for seed in kind)


def written(exchanges: Sequence[Exchange]) -> bytes:
    """Return the bytes of a capture with these exchanges."""
    file = io.BytesIO()
    writer = ExchangeWriter(file)
    for exchange in exchanges:
        writer.exchange(exchange)
    return file.getvalue()


def written_by_others(exchanges: Sequence[Exchange]) -> bytes:
    """Return the bytes of a capture with these exchanges in the format of other recorders."""
    lines = [
        {
            "name": exchange.name,
            "server": {"name": exchange.server.name, "version": exchange.server.version, "flags": []},
            "request": {
                "method": exchange.request.method,
                "path": exchange.request.path,
                "body": exchange.request.body,
            },
            "response": {
                "status": exchange.status,
                "headers": dict(exchange.headers),
                "complete": True,
                "http_chunk_sizes": [len(exchange.body)],
                "recv_s_len": [[exchange.duration, len(exchange.body)]],
                "body": {"base64": base64.b64encode(exchange.body).decode()},
            },
        }
        for exchange in exchanges
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def with_body(exchange: Exchange, body: bytes) -> Exchange:
    return replace(exchange, reads=(Read(0.1, body),))


def examine_capture(data: bytes) -> None:
    """Replay a capture, judge it, and report its violations. Raises AssertionError or the exception that
    occurred.

    Only a few inputs are reported in all formats, because a page takes a hundred times as long as judging.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.jsonl")
        path.write_bytes(data)
        try:
            subject = replay([path])
        except (CaptureError, UsageError):
            return
    judgements = judge(subject.runs)
    crashed = [judgement for judgement in judgements if judgement.verdict is Verdict.HARNESS_ERROR]
    assert not crashed, crashed[0].message
    violated = [judgement for judgement in judgements if judgement.violations]
    report = document(subject, violated, 0)
    as_json(report)
    if crc32(data) % _TOLD_IN_FULL == 0:
        for form in (sarif, badge, step_summary, workflow_commands):
            form(report)
        page(report, violated)
        trace("damaged", violated)
        console = make_console()
        console.file = io.StringIO()
        print_report(console, report, verbosity=1)


class _Receiver:
    """Collects the observed exchanges. An exception raised here would look like one of the reader."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gaps: list[str] = []

    def finished(self, _: int, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def missed(self, _: int, reason: str, *, exchange: bool) -> None:  # noqa: ARG002
        self.gaps.append(reason)


def connection(exchange: Exchange) -> tuple[bytes, bytes]:
    """Return the bytes that a client and a server send on a connection for one exchange."""
    line = next(iter(written([exchange]).splitlines()))
    asked = re.search(rb'"body":(.*)}$', line)
    question = asked[1] if asked else b""
    request = exchange.request
    head = f"{request.method} {request.path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(question)}\r\n\r\n"
    kind = exchange.header("content-type") or "text/plain"
    status = f"HTTP/1.1 {exchange.status or 200} Said\r\nContent-Type: {kind}\r\n"
    size = f"Transfer-Encoding: chunked\r\n\r\n{len(exchange.body):x}\r\n"
    return head.encode() + question, status.encode() + size.encode() + exchange.body + b"\r\n0\r\n\r\n"


def examine_connection(asked: bytes, answered: bytes, cut: float) -> None:
    """Observe a connection, with two pieces in each direction, and judge the exchanges. Raises
    AssertionError.
    """
    receiver, budget = _Receiver(), Budget(most=2 << 20, largest=1 << 20)
    reader = ConnectionReader(receiver, budget)
    position = 0
    for data, kind in ((asked, Kind.SENT), (answered, Kind.RECEIVED)):
        offset = int(cut * len(data))
        for piece in filter(None, (data[:offset], data[offset:])):
            reader.take(Record(position, 0, kind, 0.0, piece))
            position += 17 + len(piece)
    for kind in (Kind.TARGET_ENDED, Kind.CLOSED):
        reader.take(Record(position, 0, kind, 0.0, b""))
    assert budget.taken == budget.exchanges == 0
    assert "reader-crashed" not in receiver.gaps
    bench = ExchangeJudge()
    for exchange in receiver.exchanges:
        opinion = bench.judge(exchange)
        assert not opinion.crashed, opinion.crashed


SEEDS = st.deferred(lambda: st.sampled_from(seeds()))


def a_damaged_body_is_judged(seed: tuple[Exchange, ...], edits: list[Damage], which: int) -> None:
    hurt = seed[which % len(seed)]
    body = damaged(hurt.body, edits)
    examine_capture(written([with_body(item, body) if item is hurt else item for item in seed]))


def a_damaged_capture_is_judged_or_refused(
    seed: tuple[Exchange, ...], edits: list[Damage], write: Callable[[Sequence[Exchange]], bytes]
) -> None:
    examine_capture(damaged(write(seed), edits))


def a_damaged_connection_is_observed(
    seed: tuple[Exchange, ...], edits: list[Damage], asked: list[Damage], cut: float, which: int
) -> None:
    question, answer = connection(seed[which % len(seed)])
    examine_connection(question if cut < 0.5 else damaged(question, asked), damaged(answer, edits), cut)


PROPERTIES: dict[Callable[..., None], dict[str, st.SearchStrategy[Any]]] = {
    a_damaged_body_is_judged: {"which": st.integers(0, 2)},
    a_damaged_capture_is_judged_or_refused: {"write": st.sampled_from([written, written_by_others])},
    a_damaged_connection_is_observed: {
        "asked": EDITS,
        "cut": st.floats(0, 1),
        "which": st.integers(0, 2),
    },
}
"""Each property, with its further arguments besides a seed and edits."""


def examine(examined: Callable[..., None], number: int, inputs: int) -> None:
    """Test a property with inputs that hypothesis draws from `number`. Equal numbers draw equal inputs."""
    drawn = given(seed=SEEDS, edits=EDITS, **PROPERTIES[examined])(examined)
    seed(number)(settings(INTERRUPTED_BY_NOTHING, max_examples=inputs)(drawn))()


def batches(inputs: int, first_seed: int) -> Iterator[tuple[int, int]]:
    """Yield the seed and the size of each batch."""
    for number, start in enumerate(range(0, inputs, _BATCH)):
        yield first_seed + number, min(_BATCH, inputs - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=200_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    words = parser.parse_args()
    for examined in PROPERTIES:
        began = time.monotonic()
        for number, size in batches(words.inputs, words.seed):
            examine(examined, number, size)
        print(f"{examined.__name__}: {words.inputs} inputs, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
