"""The parser of event streams: blind to cuts and line ends on all recordings, and of one mind with another.

`proofs/fuzz_event_stream.py` goes on with arbitrary bytes for as long as one likes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from httpx_sse._decoders import SSEDecoder, SSELineDecoder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proofs.fuzz_event_stream import examine

from tokenwire.wire.capture import read_capture
from tokenwire.wire.event_stream import EventStreamParser, ServerSentEvent, parse_event_stream

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = sorted(
    path.relative_to(FIXTURES).as_posix()
    for path in FIXTURES.glob("*/*/*.jsonl.gz")
    if not path.name.startswith("live-")  # whole runs: megabytes of streams of the same kinds
)
SHORT = 700
"""Bytes of a body that is cut in two at every place."""
BYTEWISE = 10_000
"""Bytes of a body that is fed byte by byte; longer ones are cut at random places."""
BOM = b"\xef\xbb\xbf"

Parsed = tuple[list[ServerSentEvent], bytes, int | None]


def bodies(capture: str) -> Iterator[bytes]:
    """The bodies of all streams in a capture."""
    for exchange in read_capture(FIXTURES / capture):
        if (exchange.header("content-type") or "").startswith("text/event-stream") and exchange.body:
            yield exchange.body


def fed(pieces: Iterable[bytes]) -> Parsed:
    parser = EventStreamParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.close(), parser.undecodable_at


def cut_at(body: bytes, places: Iterable[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise([0, *sorted(places), len(body)])]


def cuts_of(body: bytes) -> Iterator[list[bytes]]:
    """The body in pieces, in many ways; together they cut it behind every byte, unless it is very long."""
    if len(body) <= SHORT:
        yield from (cut_at(body, [place]) for place in range(len(body) + 1))
    if len(body) <= BYTEWISE:
        yield [body[place : place + 1] for place in range(len(body))]
    else:
        yield cut_at(body, random.Random(len(body)).sample(range(len(body)), 500))


def fields_of(events: Iterable[ServerSentEvent]) -> list[tuple[str, str, str]]:
    """What a reader is told, wherever it stood."""
    return [(event.name or "message", event.data, event.id) for event in events]


def by_the_other_parser(body: bytes) -> list[tuple[str, str, str]]:
    """What httpx-sse makes of a body, as httpx would feed it."""
    lines, decoder = SSELineDecoder(), SSEDecoder()
    text = body.decode()
    whole = lines.decode(text) if text else []
    events = (decoder.decode(line) for line in [*whole, *lines.flush()])
    return [(event.event, event.data, event.id) for event in events if event is not None]


@pytest.mark.parametrize("capture", CAPTURES)
def test_recorded_streams_are_read_alike_however_they_are_cut(capture: str) -> None:
    for body in bodies(capture):
        for variant in (body, BOM + body.replace(b"\n", b"\r\n")):
            whole = parse_event_stream(variant)
            for pieces in cuts_of(variant):
                assert fed(pieces) == whole


@pytest.mark.parametrize("capture", CAPTURES)
def test_recorded_streams_are_read_alike_with_every_line_end_and_by_another_parser(capture: str) -> None:
    for body in bodies(capture):
        assert b"\r" not in body, "a line end can only be put for another where there is one kind"
        events, rest, undecodable_at = parse_event_stream(body)
        assert undecodable_at is None
        assert fields_of(events) == by_the_other_parser(body[: len(body) - len(rest)])
        for end in (b"\r", b"\r\n"):
            other = body.replace(b"\n", end)
            assert fields_of(parse_event_stream(other)[0]) == fields_of(events)
        with_mark = parse_event_stream(BOM + body)[0]
        assert fields_of(with_mark) == fields_of(events)
        assert [event.end - len(BOM) for event in with_mark] == [event.end for event in events]


def test_there_is_something_to_cut() -> None:
    assert sum(len(list(bodies(capture))) for capture in CAPTURES) > 1000


_WORDS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0\ufeff"), max_size=12
) | st.sampled_from([" ", ":", "data: x", "  two", "{}", "[DONE]"])
_LINE = st.one_of(
    _WORDS.map("data: {}".format),
    _WORDS.map("data:{}".format),
    st.just("data"),
    _WORDS.map("event: {}".format),
    _WORDS.map("id: {}".format),
    _WORDS.map(":{}".format),
    st.integers(0, 10**9).map("retry: {}".format),
    _WORDS.filter(lambda word: word.partition(":")[0] not in {"", "data", "event", "id", "retry"}),
)
_BLOCK = st.tuples(
    st.lists(_LINE, max_size=3), _WORDS.map("data: {}".format), st.lists(_LINE, max_size=3)
).map(lambda parts: [*parts[0], parts[1], *parts[2], ""])


@given(
    blocks=st.lists(_BLOCK, max_size=5),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1, max_size=5),
    places=st.lists(st.integers(0, 200), max_size=6),
)
@settings(deadline=None, max_examples=400)
def test_both_parsers_agree_on_every_legal_stream(
    blocks: list[list[str]], ends: list[str], places: list[int]
) -> None:
    """Legal: whole characters, and every event has data. Without it the other parser dispatches too much."""
    # One line end to a block: a CR before a blank line's LF would be one line end with it.
    body = "".join(
        line + ends[number % len(ends)] for number, block in enumerate(blocks) for line in block
    ).encode()
    events, rest, undecodable_at = parse_event_stream(body)
    assert (rest, undecodable_at) == (b"", None)
    assert len(events) == len(blocks)
    assert fields_of(events) == by_the_other_parser(body)
    assert fed(cut_at(body, [min(place, len(body)) for place in places]))[0] == events


@given(
    data=st.lists(
        st.sampled_from([b"data:", b"id", b"\r", b"\n", b" ", b":", BOM, b"\xe5", b"\xa5\xbd", b"\0", b"x"])
    ).map(b"".join)
    | st.binary(max_size=300)
)
@example(b"\r")
@example(BOM[:2])
@settings(deadline=None, max_examples=400)
def test_arbitrary_bytes_are_read_without_an_exception(data: bytes) -> None:
    examine(data)


def test_what_is_held_back_is_bounded_by_the_event_under_way() -> None:
    """A parser that is fed for long keeps nothing of what it gave out."""
    parser = EventStreamParser()
    event = b": note\nevent: token\ndata: " + b"x" * 1000 + b"\n\n"
    held = set()
    for _ in range(200):
        assert len(parser.feed(event)) == 1
        held.add(sum(len(buffer) for buffer in vars(parser).values() if isinstance(buffer, bytearray | list)))
    assert held == {0}
