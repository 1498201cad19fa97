"""The event-stream parser: WHATWG to the letter, and blind to how the network cuts."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.wire.event_stream import EventStreamParser, ServerSentEvent, _plain_events, parse_event_stream


def data_of(body: bytes) -> list[str]:
    events, _, _ = parse_event_stream(body)
    return [event.data for event in events]


def fed_in_pieces(pieces: list[bytes]) -> tuple[list[ServerSentEvent], bytes, int | None]:
    parser = EventStreamParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.close(), parser.undecodable_at


@pytest.mark.parametrize(
    ("body", "data"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", ["a", "b"], id="lf"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"], id="crlf"),
        pytest.param(b"data: a\r\rdata: b\r\r", ["a", "b"], id="cr"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", ["a", "b"], id="mixed-line-ends"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", ["a"], id="byte-order-mark"),
        pytest.param(b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"], id="only-the-first-byte-order-mark"),
        pytest.param(b": hello\n\ndata: a\n: between\n\n", ["a"], id="comments"),
        pytest.param(b"data: a\ndata:  b\ndata\n\n", ["a\n b\n"], id="data-of-several-lines"),
        pytest.param(b"data:a\n\n", ["a"], id="no-space"),
        pytest.param(b"data\n\n", [""], id="field-without-colon"),
        pytest.param(b"event: only\n\nid: 1\n\n", [], id="no-data-no-event"),
        pytest.param(b"Data: a\n\ndata : b\n\n", [], id="names-are-exact"),
        pytest.param(b"\n\n\ndata: a\n\n\n\n", ["a"], id="idle-blank-lines"),
        pytest.param(
            "data: \u2028\u0085\x0b\x0c\n\n".encode(), ["\u2028\u0085\x0b\x0c"], id="no-other-line-ends"
        ),
        pytest.param(b"data: a", [], id="unterminated-line"),
        pytest.param(b"data: a\n", [], id="unterminated-event"),
    ],
)
def test_what_is_dispatched(body: bytes, data: list[str]) -> None:
    assert data_of(body) == data


def test_fields_other_than_data() -> None:
    body = b"event: token\nid: 7\nretry: 250\ndata: a\n\nid: 8\0\nretry: 1x\ndata: b\n\nid\ndata: c\n\n"
    first, second, third = parse_event_stream(body)[0]
    assert (first.name, first.id, first.retry) == ("token", "7", 250)
    assert (second.name, second.id, second.retry) == ("", "7", 250), "a NUL or a letter spoils the line alone"
    assert third.id == ""


def test_offsets_bound_each_event() -> None:
    body = b"data: a\n\n: note\ndata: b\r\n\r\n\ndata: c\n\n"
    events, _, _ = parse_event_stream(body)
    assert [body[event.start : event.end] for event in events] == [
        b"data: a\n\n",
        b": note\ndata: b\r\n\r",
        b"data: c\n\n",
    ]


@pytest.mark.parametrize(
    ("tail", "rest"),
    [
        (b"data: b", b"data: b"),
        (b"data: b\n", b"data: b\n"),
        (b": note\ndata: b\r\n", b": note\ndata: b\r\n"),
        (b": a comment is no event\n", b""),
        (b": cut com", b""),
        (b"", b""),
    ],
)
def test_an_unterminated_event_is_reported_and_not_dispatched(tail: bytes, rest: bytes) -> None:
    events, unterminated, _ = parse_event_stream(b"data: a\n\n" + tail)
    assert ([event.data for event in events], unterminated) == (["a"], rest)


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"data: ok\n\n", None),
        (b"data: \xff\n\ndata: \xfe\n\n", 6),
        (b"data: ok\n\n: \xc3\n\n", 12),
        (b"\xef\xbb\xbfdata: \xff\n\n", 9),
        (b"data: \xe5\xa5", 6),
    ],
)
def test_the_first_byte_that_is_not_utf8(body: bytes, offset: int | None) -> None:
    assert parse_event_stream(body)[2] == offset


def test_undecodable_data_is_dispatched_with_replacement() -> None:
    assert data_of(b"data: a\xffb\n\n") == ["a\ufffdb"]


def test_a_character_that_a_broken_connection_cut_is_no_fault_of_its_own() -> None:
    assert parse_event_stream(b"data: \xe5\xa5", cut_off=True)[2] is None
    assert parse_event_stream(b"data: \xe5\xa5x", cut_off=True)[2] == 6


_RECUT = [
    "data: 好😀\r\n\r\nevent: x\rid: 1\rdata: a\rdata: b\r\rdata: c\n\n: ping\n\ndata: cut".encode(),
    b"\xef\xbb\xbf\r\n\r\ndata: \xff\xc3\r\n\r\n\ndata:\n\n",
]


@pytest.mark.parametrize("body", _RECUT)
def test_events_do_not_depend_on_the_cut(body: bytes) -> None:
    whole = fed_in_pieces([body])
    for cut in range(len(body) + 1):
        assert fed_in_pieces([body[:cut], body[cut:]]) == whole, f"cut at {cut}"
    assert fed_in_pieces([body[i : i + 1] for i in range(len(body))]) == whole


@given(
    body=st.binary() | st.text("dat: \r\n\x00e好", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60)),
)
@settings(deadline=None)
def test_arbitrary_bytes_in_arbitrary_pieces(body: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(borders)]
    assert fed_in_pieces(pieces) == fed_in_pieces([body])


_LINE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0\ufeff"), max_size=8)


@given(
    events=st.lists(st.tuples(st.lists(_LINE, min_size=1, max_size=3), _LINE), max_size=5),
    line_ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_what_was_written_is_read(events: list[tuple[list[str], str]], line_ends: list[str]) -> None:
    body = ""
    for position, (data, name) in enumerate(events):
        end = line_ends[position % len(line_ends)]
        body += end.join([f"event: {name}", *(f"data: {part}" for part in data), "", ""])
    read = parse_event_stream(body.encode())[0]
    assert [(event.data, event.name) for event in read] == [("\n".join(data), name) for data, name in events]


@given(data=st.lists(_LINE, max_size=6))
@settings(deadline=None)
def test_line_ends_change_nothing_but_offsets(data: list[str]) -> None:
    lines = [line for item in data for line in (f"data: {item}", "")]
    read = [
        [
            replace(event, start=0, end=0)
            for event in parse_event_stream("".join(x + end for x in lines).encode())[0]
        ]
        for end in ("\n", "\r\n", "\r")
    ]
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == len(data)


_BLOCKS = [
    *("data: a\n\n", "data: \n\n", "data: 好 {}\n\n", "data: data: x\n\n", "data:a\n\n", ": ping\n\n", "\n"),
    *(
        "data: a\nid: 1\n\n",
        "data: a\r\n\r\n",
        "data: a",
        "event: x\n",
        "\ufeff",
        "retry: 1\n\n",
        "data: \x85\u2028\n\n",
    ),
]


@given(st.lists(st.sampled_from(_BLOCKS), max_size=6).map(lambda some: "".join(some).encode()) | st.binary())
@settings(deadline=None)
def test_the_fast_path_reads_what_the_parser_reads(body: bytes) -> None:
    assert parse_event_stream(body) == fed_in_pieces([body])


def test_what_servers_write_takes_the_fast_path() -> None:
    body = 'data: {"text": "好"}\n\ndata: [DONE]\n\n'.encode()
    events = _plain_events(body)
    assert events is not None
    assert [event.data for event in events] == ['{"text": "好"}', "[DONE]"]
    assert parse_event_stream(body) == fed_in_pieces([body])


@pytest.mark.parametrize(
    "body", [b"", b"\n\n", b"data: a\n\n\n", b"data: \xff\n\n", b"data: a\n", b"data: a\r\n\n"]
)
def test_what_needs_the_parser_does_not_take_the_fast_path(body: bytes) -> None:
    assert _plain_events(body) is None
