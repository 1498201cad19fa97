"""Exchanges assembled from two streams of bytes, however these were cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenwire.watch.exchange_assembly import ExchangeAssembler, ObservedExchange, read_exchange
from tokenwire.watch.room import BLOCK, Intake, Room, reads_in
from tokenwire.wire.exchange import Ending, Exchange
from tokenwire.wire.redaction import REDACTED

ASKED = (
    b"POST /generate?api_key=sesame HTTP/1.1\r\nhOST: h\r\nAuthorization: Bearer sesame\r\n"
    b"Content-Length: 13\r\n\r\n"
    b'{ "text":"a"}'
)
ANSWERED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: sesame\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b"a\r\ndata: {}\n\n\r\n3\r\ndat\r\n0\r\n\r\n"
)
GET = b"GET /server_info HTTP/1.1\r\nHost: h\r\n\r\n"


BLOCKS = 4
ROOM = Room(BLOCKS * BLOCK)


class _Audience:
    def __init__(self) -> None:
        self.open = 0
        self.exchanges: list[Exchange] = []
        self.gaps: list[str] = []

    def name(self) -> str:
        return f"n/{len(self.exchanges)}"

    def began(self) -> None:
        self.open += 1

    def over(self, heard: ObservedExchange | None) -> None:
        self.open -= 1
        if heard is not None:
            kept = heard.kept
            told = reads_in(ROOM.fd, ROOM.size, kept.stretches, kept.lengths)
            self.exchanges.append(read_exchange(heard.passed, kept.times, told))
            kept.give_back()

    def missed(self, reason: str) -> None:
        self.gaps.append(reason)


@pytest.fixture
def audience() -> _Audience:
    return _Audience()


class _Listening:
    """An observer, told each thing a second after the one before."""

    def __init__(self, audience: _Audience, *, largest: int = 1000) -> None:
        self._observer = ExchangeAssembler(audience, ROOM, Intake(ROOM), largest=largest)
        self._now = 0.0

    def __getattr__(self, name: str) -> Callable[..., None]:
        def told(data: bytes = b"") -> None:
            self._now += 1.0
            if name != "received" or not self._observer.gathered(self._now, data):
                getattr(self._observer, name)(self._now, data)

        return told


listen = _Listening


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_an_exchange_however_it_is_cut(audience: _Audience, size: int) -> None:
    observer = listen(audience)
    for data, hear in ((ASKED, observer.sent), (ANSWERED, observer.received)):
        for start in range(0, len(data), size):
            hear(data[start : start + size])
    (exchange,) = audience.exchanges
    assert (exchange.status, exchange.ending, audience.open) == (200, Ending.COMPLETE, 0)
    assert exchange.body == b"data: {}\n\ndat"
    assert exchange.request.raw_body == b'{ "text":"a"}'
    assert exchange.request.headers[:2] == (("hOST", "h"), ("Authorization", REDACTED))
    assert exchange.request.path == f"/generate?api_key={REDACTED}"
    assert ("Set-Cookie", REDACTED) in exchange.headers
    times = [read.time for read in exchange.reads]
    assert times == sorted(times)
    assert times[0] > 0
    assert ROOM.taken == 0, "what was borrowed is given back"
    assert not audience.gaps


def test_one_connection_many_exchanges(audience: _Audience) -> None:
    observer = listen(audience)
    for _ in range(3):
        observer.sent(ASKED)
        observer.received(ANSWERED)
    observer.closed()
    assert len(audience.exchanges) == 3
    assert not audience.gaps


def test_requests_may_come_before_the_answers(audience: _Audience) -> None:
    observer = listen(audience)
    observer.sent(ASKED + GET + GET)
    small = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    observer.received(ANSWERED + small + b"1" + small + b"2")
    assert [exchange.body for exchange in audience.exchanges] == [b"data: {}\n\ndat", b"1", b"2"]


def test_the_words_before_an_answer_are_none(audience: _Audience) -> None:
    observer = listen(audience)
    observer.sent(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    observer.received(b"HTTP/1.1 100 Continue\r\n\r\n")
    observer.sent(b"hi")
    observer.received(b"HTTP/1.1 204 No Content\r\n\r\n")
    (exchange,) = audience.exchanges
    assert (exchange.status, exchange.request.raw_body) == (204, b"hi")


def test_an_answer_to_head_has_no_body(audience: _Audience) -> None:
    observer = listen(audience)
    for _ in range(2):
        observer.sent(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
    assert [exchange.body for exchange in audience.exchanges] == [b"", b""]


def test_an_answer_may_come_before_the_request_is_over(audience: _Audience) -> None:
    observer = listen(audience)
    observer.sent(ASKED[:-3])
    observer.received(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
    assert audience.exchanges == []
    observer.sent(ASKED[-3:])
    assert [exchange.status for exchange in audience.exchanges] == [413]


@pytest.mark.parametrize(
    ("answered", "left_first", "ending"),
    [
        (b"", False, Ending.UNREACHABLE),
        (b"", True, Ending.HUNG_UP),
        (ANSWERED[:-5], False, Ending.TRUNCATED),
        (ANSWERED[:-5], True, Ending.HUNG_UP),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", False, Ending.COMPLETE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", False, Ending.TRUNCATED),
    ],
)
def test_who_left_first_decides_the_ending(
    audience: _Audience, answered: bytes, left_first: bool, ending: Ending
) -> None:
    observer = listen(audience)
    observer.sent(ASKED)
    observer.received(answered) if answered else None
    if left_first:
        observer.client_ended()
    observer.target_ended()
    observer.closed()
    (exchange,) = audience.exchanges
    assert exchange.ending is ending
    assert audience.open == 0
    assert not audience.gaps


@pytest.mark.parametrize(
    ("asked", "answered", "gap"),
    [
        (b"\x16\x03\x01 not HTTP\r\n\r\n", b"", "unreadable"),
        (ASKED, b"\r\nhello\r\n\r\n", "unreadable"),
        (ASKED, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "unreadable"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
         b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x00", "upgraded"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_gap_and_no_end(
    audience: _Audience, asked: bytes, answered: bytes, gap: str
) -> None:
    observer = listen(audience)
    observer.sent(asked)
    observer.received(answered)
    for _ in range(3):
        observer.sent(b"more of it \x00")
        observer.received(b"more of it \x00")
    observer.target_ended()
    observer.closed()
    assert audience.gaps == [gap]
    assert audience.exchanges == []
    assert audience.open == 0


def test_an_exchange_beyond_the_size_is_a_gap_and_the_next_is_not(audience: _Audience) -> None:
    observer = listen(audience, largest=25)
    observer.sent(ASKED)
    observer.received(ANSWERED)
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert audience.gaps == ["too-large"]
    assert [exchange.body for exchange in audience.exchanges] == [b"{}"]
    assert audience.open == 0


def test_an_exchange_of_exactly_the_size_is_heard(audience: _Audience) -> None:
    size = len(b'{ "text":"a"}') + len(b"data: {}\n\ndat")
    for largest in (size, size - 1):
        observer = listen(audience, largest=largest)
        observer.sent(ASKED)
        observer.received(ANSWERED)
    assert [exchange.body for exchange in audience.exchanges] == [b"data: {}\n\ndat"]
    assert audience.gaps == ["too-large"]


def test_where_no_room_is_left_an_exchange_is_followed_and_not_kept(audience: _Audience) -> None:
    observer = listen(audience)
    others = [block for _ in range(BLOCKS) if (block := ROOM.borrow()) is not None]
    assert ROOM.taken == ROOM.size
    observer.sent(ASKED)
    observer.received(ANSWERED[:-20])
    ROOM.give_back(others)
    observer.received(ANSWERED[-20:])
    assert (audience.exchanges, audience.gaps, audience.open) == ([], ["judge-too-slow"], 0)
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert [exchange.body for exchange in audience.exchanges] == [b"{}"]
    observer.sent(ASKED)
    assert ROOM.taken > 0
    observer.received(b"\r\nnonsense\r\n\r\n")
    assert ROOM.taken == 0


@pytest.mark.parametrize(("size", "gaps"), [(ROOM.size // 2, []), (ROOM.size, ["judge-too-slow"])])
def test_what_is_gathered_takes_of_the_room_until_there_is_no_more(
    audience: _Audience, size: int, gaps: list[str]
) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    observer = listen(audience, largest=1 << 30)
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    most = 0
    for start in range(0, size, 10_007):
        piece = body[start : start + 10_007]
        observer.received(b"%x\r\n%s\r\n" % (len(piece), piece))
        most = max(most, ROOM.taken)
    assert ROOM.size // 4 < most <= ROOM.size
    observer.received(b"0\r\n\r\n")
    assert [exchange.body == body for exchange in audience.exchanges] == [True] * (not gaps)
    assert (audience.gaps, ROOM.taken) == (gaps, 0)


def test_most_reads_of_a_stream_are_put_aside_and_keep_their_times(audience: _Audience) -> None:
    observer = ExchangeAssembler(audience, ROOM, Intake(ROOM), largest=1 << 20)
    observer.sent(0.0, ASKED)
    observer.received(1.0, ANSWERED[: ANSWERED.index(b"a\r\n")])
    for at in range(2, 200):
        assert observer.gathered(at, b"4\r\n%04d\r\n" % at)
    assert not observer.gathered(200.0, b"0\r\n\r\n")
    observer.received(200.0, b"0\r\n\r\n")
    (exchange,) = audience.exchanges
    assert [(read.time, read.data) for read in exchange.reads] == [(at, b"%04d" % at) for at in range(2, 200)]


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"00;x\r\n\r\n"])
def test_the_end_of_a_stream_is_seen_at_once_however_it_is_cut(audience: _Audience, end: bytes) -> None:
    for size in range(1, len(end) + 1):
        audience.exchanges.clear()
        observer = listen(audience)
        observer.sent(ASKED)
        observer.received(ANSWERED.removesuffix(b"0\r\n\r\n"))
        for start in range(0, len(end), size):
            assert not audience.exchanges
            observer.received(end[start : start + size])
        assert [exchange.body for exchange in audience.exchanges] == [b"data: {}\n\ndat"]
    assert not audience.gaps


def test_an_answer_to_half_a_request_is_a_gap(audience: _Audience) -> None:
    """A server may refuse before it has read all; what it was asked is then not known."""
    observer = listen(audience)
    observer.sent(ASKED[:-5])
    observer.received(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
    observer.target_ended()
    observer.closed()
    assert (audience.exchanges, audience.gaps, audience.open) == ([], ["request-cut-off"], 0)


def test_what_is_open_when_the_watcher_ends_is_a_gap(audience: _Audience) -> None:
    idle, busy = listen(audience), listen(audience)
    busy.sent(ASKED)
    for observer in (idle, busy):
        observer.interrupt()
        observer.closed()
    assert audience.gaps == ["watch-ended"]
    assert audience.open == 0


def test_an_answer_without_a_request_keeps_no_memory(audience: _Audience) -> None:
    """A server or a proxy may say that an idle connection has timed out, before it closes it."""
    observer = listen(audience)
    observer.received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nidle")
    assert ROOM.taken > 0
    observer.target_ended()
    observer.closed()
    assert ROOM.taken == 0
    assert (audience.exchanges, audience.gaps, audience.open) == ([], [], 0)


def test_a_fault_of_our_own_is_a_gap_and_reaches_nobody(
    audience: _Audience, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, __: str) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(ExchangeAssembler, "_keep_back", broken)
    observer = listen(audience, largest=1)
    observer.sent(ASKED)
    observer.received(ANSWERED)
    assert audience.gaps == ["reader-crashed"]


def test_keys_in_what_a_server_tells_of_itself_go_no_further(audience: _Audience) -> None:
    observer = listen(audience)
    observer.sent(GET)
    observer.received(b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"api_key":"sesame"}')
    assert b"sesame" not in audience.exchanges[0].body
