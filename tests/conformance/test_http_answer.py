"""The reader of answers takes what h11 takes, piece by piece, and refuses what h11 refuses."""

from __future__ import annotations

import string

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.wire.http_answer import AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = h11.Request(method="GET", target="/", headers=[("Host", "h")])
Parsed = tuple[int | None, bytes, bool, bool]
"""Status, body, whether it is over, and whether it is refused."""


def read(cuts: list[bytes], reader: AnswerReader) -> Parsed:
    body = b""
    try:
        for data in [*filter(None, cuts), b""]:
            for piece in reader.feed(data):
                body += piece
    except h11.RemoteProtocolError:
        return _status(reader.head), body, False, True
    return _status(reader.head), body, reader.over, False


def read_by_h11(cuts: list[bytes]) -> Parsed:
    http, body, head = h11.Connection(h11.CLIENT, max_incomplete_event_size=100 << 10), b"", None
    http.send(GET)
    over = False
    try:
        for data in [*filter(None, cuts), b""]:
            http.receive_data(data)
            while not over and (event := http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Response():
                        head = event
                    case h11.Data():
                        body += event.data
                    case h11.EndOfMessage():
                        over = True
    except h11.RemoteProtocolError:
        return _status(head), body, False, True
    return _status(head), body, over, False


def _status(head: h11.Response | None) -> int | None:
    return head.status_code if head is not None else None


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


CHUNK = st.builds(lambda data: b"%x\r\n%s\r\n" % (len(data), data), st.binary(min_size=1, max_size=30))
ODD = [
    *[b"", b"\r\n", b"\n", b"0\r\n", b"0\r\n\r\n", b"00\r\n\r\n", b"0;a\r\n\r\n", b"0\r\nA: b\r\n\r\n"],
    *[b"0\r\nbad\r\n\r\n", b"3;x=y\r\nabc\r\n", b"3 \r\nabc\r\n", b"003\r\nabc\r\n", b"A\r\n0123456789\r\n"],
    *[b"-3\r\nabc\r\n", b"0x3\r\nabc\r\n", b"+3\r\nabc\r\n", b"3\nabc\n", b"3\r\nabcd\r\n", b"3\r\nabcX\n"],
    *[
        b"3\r\nab",
        b"f" * 21 + b"\r\n",
        b"zz\r\n",
        b"3_0\r\nabc\r\n",
        b"\xd9\xa3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
    ],
    b"1" * 200_000,
]
BODY = st.lists(st.one_of(CHUNK, CHUNK, CHUNK, st.sampled_from(ODD)), max_size=6).map(b"".join)


@given(BODY, st.sampled_from([1, 2, 3, 7, 64, 1 << 20]), st.booleans())
def test_chunks_are_taken_and_refused_as_by_h11(body: bytes, size: int, ends: bool) -> None:
    answer = HEAD + body + (b"0\r\n\r\n" if ends else b"")
    if len(answer) > 10_000:
        size = max(size, 1 << 12)
    cuts = cut(answer, size)
    assert read(cuts, AnswerReader(GET)) == read_by_h11(cuts)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("answer", "status", "body", "over"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcX", 200, b"abc", True),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", 200, b"abc", True),
        (b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" + HEAD + b"3\r\nabc\r\n0\r\n\r\nX", 200, b"abc", True),
        (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\nX", 204, b"", True),
        (HEAD + b"3\r\nabc\r\n3;a\r\ndef\r\n3\r\nghi\r\n0\r\nA: b\r\n\r\nX", 200, b"abcdefghi", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", None, b"", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\nabc", None, b"", False),
        (b"HTTP/1.1 200 OK\r\nA: " + string.ascii_letters.encode() * 3000, None, b"", False),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", None, b"", False),
    ],
)
def test_all_other_answers(answer: bytes, status: int | None, body: bytes, over: bool, size: int) -> None:
    reader = AnswerReader(GET)
    assert read(cut(answer, max(size, len(answer) // 2000)), reader) == (status, body, over, not over)
    assert reader.rest == (b"X" if answer.endswith(b"X") else b"")


def test_an_answer_to_head_has_no_chunks() -> None:
    request = h11.Request(method="HEAD", target="/", headers=[("Host", "h")])
    assert read([HEAD], AnswerReader(request)) == (200, b"", True, False)


def test_each_chunk_is_a_piece_and_pieces_come_before_what_is_wrong_behind_them() -> None:
    reader = AnswerReader(GET)
    assert list(reader.feed(HEAD + b"3\r\nabc\r\n2\r\nde\r\n")) == [b"abc", b"de"]
    pieces = reader.feed(b"1\r\nf\r\nzz\r\n")
    assert next(pieces) == b"f"
    with pytest.raises(h11.RemoteProtocolError, match="illegal chunk header"):
        next(pieces)


def test_a_chunk_goes_on_over_reads() -> None:
    reader = AnswerReader(GET)
    cuts = [HEAD + b"0", b"6\r", b"\nab", b"cdef\r", b"\n", b"1\r\ng\r\n0\r\n", b"\r\nmore"]
    assert [list(reader.feed(data)) for data in cuts] == [[], [], [b"ab"], [b"cdef"], [], [b"g"], []]
    assert (reader.over, reader.rest) == (True, b"more")


def test_what_http_cannot_carry_is_not_sent() -> None:
    with pytest.raises(h11.LocalProtocolError):
        AnswerReader(h11.Request(method="GET", target="/", headers=[("Host", "h"), ("X", "a\nb")]))
