"""Requests and answers end where h11 says that they end, and are refused where it refuses them."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenwire.watch.framing import AnswerFollower, RequestFollower, read_request
from tokenwire.wire.http_answer import AnswerReader

Told = tuple[bool, int, bool, bytes]
"""Whether the head came, bytes of body, whether it is over, and what is behind it."""
REFUSED = "refused"


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def follow_request(cuts: list[bytes]) -> Told | str:
    asked, size = RequestFollower(), 0
    try:
        for data in cuts:
            size += asked.feed(data)
    except h11.ProtocolError:
        return REFUSED
    if asked.over:
        head, body = read_request(b"".join(asked.raw))
        assert len(body) == size
        assert head == asked.head()
    assert b"".join(asked.raw) + asked.rest == b"".join(cuts) or not asked.over
    return asked.begun, size, asked.over, asked.rest


def request_by_h11(cuts: list[bytes]) -> Told | str:
    http, begun, size, over = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), False, 0, False
    try:
        for data in cuts:
            http.receive_data(data)
            while not over and (event := http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    begun = True
                    AnswerReader(event)
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                else:
                    over = True
    except h11.ProtocolError:
        return REFUSED
    return begun, size, over, http.trailing_data[0] if over else b""


def follow_answer(cuts: list[bytes], request: bytes) -> Told | str:
    asked, size = RequestFollower(), 0
    asked.feed(request)
    answer = AnswerFollower(asked)
    try:
        for data in cuts:
            size += answer.feed(data)
        if not answer.over:
            size += answer.feed(b"")
    except h11.ProtocolError:
        return REFUSED
    return answer.begun, size, answer.over, answer.rest


def answer_by_reader(cuts: list[bytes], request: bytes) -> Told | str:
    reader, size = AnswerReader(read_request(request)[0]), 0
    try:
        for data in cuts:
            size += sum(map(len, reader.feed(data)))
        if not reader.over:
            size += sum(map(len, reader.feed(b"")))
    except h11.ProtocolError:
        return REFUSED
    return reader.head is not None, size, reader.over, reader.rest


FIELD = st.sampled_from(
    [
        *[
            b"Host: h",
            b"Host: h",
            b"Content-Length: 3",
            b"content-length:3",
            b"Content-Length: 0",
            b"A: b c\td ",
        ],
        *[b"Content-Length: 3, 3", b"Content-Length: 3, 4", b"Content-Length: x", b"Content-Length:", b"A:"],
        *[b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked ", b"Transfer-Encoding: gzip"],
        *[
            b"Transfer-Encoding: gzip, chunked",
            b"Expect: 100-continue",
            b"Upgrade: h2c",
            b"Connection: close",
        ],
        *[
            b": x",
            b"A b: c",
            b"A : b",
            b" folded",
            b"A: \xe4",
            b"A: \x00",
            b"A: \x7f",
            b"X-Content-Length: 9",
        ],
        *[b"content-length: 1 ", b"Content-Length: +1", b"Content-Length: 1_0", b"Content-Length:\t3"],
    ]
)
HEAD = st.lists(FIELD, max_size=4).map(lambda fields: b"".join(field + b"\r\n" for field in fields) + b"\r\n")
BODY = st.sampled_from(
    [b"", b"abc", b"abcdef", b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\nrest", b"0\r\n\r\n", b"zz\r\n"]
)
FIRST = st.sampled_from(
    [
        *[b"POST / HTTP/1.1", b"GET /a?b=%20 HTTP/1.1", b"HEAD / HTTP/1.1", b"CONNECT h:1 HTTP/1.1"],
        *[
            b"GET / HTTP/1.0",
            b"GET /\xe4 HTTP/1.1",
            b"GET  / HTTP/1.1",
            b"get / HTTP/1.1",
            b"\r\nGET / HTTP/1.1",
        ],
    ]
)
STATUS = st.sampled_from(
    [
        *[b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 204 No", b"HTTP/1.1 304 Same"],
        *[
            b"HTTP/1.0 200 OK",
            b"HTTP/1.1 100 Go",
            b"HTTP/1.1 101 Up",
            b"HTTP/1.1 404 \xe4",
            b"HTTP/1.1 600 X",
        ],
        *[b"HTTP/1.1  200 OK", b"HTTP/2 200 OK", b"200 OK", b"HTTP/1.1 99 X"],
    ]
)
CUT = st.sampled_from([1, 7, 40, 1 << 20])


@given(FIRST, HEAD, BODY, CUT)
@example(b"POST / HTTP/1.1", b"Host: h\r\nContent-Length: 3\r\n\r\n", b"abcdef", 1 << 20)
def test_requests_end_where_h11_says(first: bytes, head: bytes, body: bytes, size: int) -> None:
    cuts = cut(first + b"\r\n" + head + body, size)
    assert follow_request(cuts) == request_by_h11(cuts)


@given(st.sampled_from([b"GET", b"HEAD", b"POST"]), STATUS, HEAD, BODY, CUT)
@example(b"GET", b"HTTP/1.1 200 OK", b"Content-Length: 3\r\n\r\n", b"ab", 1 << 20)
@example(b"HEAD", b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip\r\n\r\n", b"", 1 << 20)
@example(b"GET", b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\nrest", 7)
def test_answers_end_where_our_reader_says(
    method: bytes, status: bytes, head: bytes, body: bytes, size: int
) -> None:
    request = method + b" / HTTP/1.1\r\nHost: h\r\n\r\n"
    cuts = cut(status + b"\r\n" + head + body, size)
    assert follow_answer(cuts, request) == answer_by_reader(cuts, request)
    views = [memoryview(data) for data in cuts]
    assert follow_answer(views, request) == answer_by_reader(cuts, request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"Content-Length: 3\r\n\r\nab",
            "without sending complete message body (received 2 bytes, expected 3)",
        ),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nab", "(incomplete chunked read)"),
    ],
)
def test_an_answer_that_is_cut_off_is_refused_in_the_words_of_h11(answer: bytes, words: str) -> None:
    said = []
    for follow in (follow_words, reader_words):
        with pytest.raises(h11.RemoteProtocolError) as refused:
            follow(b"HTTP/1.1 200 OK\r\n" + answer)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert words in said[0]


def follow_words(answer: bytes) -> None:
    asked = RequestFollower()
    asked.feed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    follower = AnswerFollower(asked)
    follower.feed(answer)
    follower.feed(b"")


def reader_words(answer: bytes) -> None:
    reader = AnswerReader(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    for data in (answer, b""):
        list(reader.feed(data))


def test_reads_that_are_whole_chunks_are_passed_over_and_no_others() -> None:
    whole = [b"3\r\nabc\r\n", b"00A\r\n0123456789\r\n", b"3\r\nabc\r\n"]
    assert AnswerReader(None).pass_over(whole) == 16
    for odd in (
        b"3\r\nab",
        b"0\r\n\r\n",
        b"3\r\nabc\r\n1\r\na\r\n",
        b"zz\r\nabc\r\n",
        b"3;x\r\nabc\r\n",
        b"3",
    ):
        assert AnswerReader(None).pass_over([*whole, odd]) is None
    begun = AnswerReader(None)
    assert list(begun.feed(b"5\r\nab")) == [b"ab"]
    assert begun.pass_over(whole) is None
