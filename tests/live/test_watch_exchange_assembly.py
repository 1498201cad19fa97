"""Exchanges assembled from two streams of bytes, however these were cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tokenwire.wire.exchange import Ending, Exchange
from tokenwire.wire.redaction import REDACTED
from tokenwire_live.watch.exchange_assembly import Budget, ConnectionReader
from tokenwire_live.watch.spool import Kind, Record

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


BUDGET = Budget(most=1 << 20, largest=1000)


class Receiver:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gaps: list[str] = []
        self.positions: list[int] = []

    def finished(self, position: int, exchange: Exchange) -> None:
        self.positions.append(position)
        self.exchanges.append(exchange)

    def missed(self, position: int, reason: str, *, exchange: bool) -> None:
        self.positions.append(position)
        self.gaps.append(reason)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


class listen:  # noqa: N801  # read like a function
    """A connection whose records come a second after one another."""

    def __init__(self, receiver: Receiver, budget: Budget | None = None, *, lost: bool = False) -> None:
        self.budget = budget or replace(BUDGET)
        self._reader = ConnectionReader(receiver, self.budget, lost=lost)
        self._now = 100.0
        self._position = 0
        self.end = self._reader.end

    def _take(self, kind: Kind, data: bytes = b"") -> None:
        self._now += 1.0
        self._reader.take(Record(self._position, 7, kind, self._now, data))
        self._position += 17 + len(data)

    def sent(self, data: bytes) -> None:
        self._take(Kind.REQUEST if data[:4] in {b"POST", b"GET "} else Kind.SENT, data)

    def received(self, data: bytes) -> None:
        self._take(Kind.RECEIVED, memoryview(data))  # type: ignore[arg-type]  # as it lies in the spool

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self._take(Kind[name.upper()])


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_an_exchange_however_it_is_cut(receiver: Receiver, size: int) -> None:
    observer = listen(receiver)
    for data, hear in ((ASKED, observer.sent), (ANSWERED, observer.received)):
        for start in range(0, len(data), size):
            hear(data[start : start + size])
    (exchange,) = receiver.exchanges
    assert (exchange.status, exchange.ending) == (200, Ending.COMPLETE)
    assert exchange.body == b"data: {}\n\ndat"
    assert exchange.request.raw_body == b'{ "text":"a"}'
    assert exchange.request.headers[:2] == (("hOST", "h"), ("Authorization", REDACTED))
    assert exchange.request.path == f"/generate?api_key={REDACTED}"
    assert ("Set-Cookie", REDACTED) in exchange.headers
    times = [read.time for read in exchange.reads]
    assert times == sorted(times)
    assert times[0] > 0
    assert exchange.duration >= times[-1]
    assert (observer.budget.taken, observer.budget.exchanges) == (0, 0)
    assert not receiver.gaps


def test_one_connection_many_exchanges(receiver: Receiver) -> None:
    observer = listen(receiver)
    for _ in range(3):
        observer.sent(ASKED)
        observer.received(ANSWERED)
    observer.closed()
    assert len(receiver.exchanges) == 3
    assert len(set(receiver.positions)) == len({exchange.name for exchange in receiver.exchanges}) == 3
    assert not receiver.gaps


def test_requests_may_come_before_the_answers(receiver: Receiver) -> None:
    observer = listen(receiver)
    observer.sent(ASKED + GET + GET)
    small = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    observer.received(ANSWERED + small + b"1" + small + b"2")
    assert [exchange.body for exchange in receiver.exchanges] == [b"data: {}\n\ndat", b"1", b"2"]
    assert len(set(receiver.positions)) == 3


def test_the_words_before_an_answer_are_none(receiver: Receiver) -> None:
    observer = listen(receiver)
    observer.sent(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    observer.received(b"HTTP/1.1 100 Continue\r\n\r\n")
    observer.sent(b"hi")
    observer.received(b"HTTP/1.1 204 No Content\r\n\r\n")
    (exchange,) = receiver.exchanges
    assert (exchange.status, exchange.request.raw_body) == (204, b"hi")


def test_an_answer_to_head_has_no_body(receiver: Receiver) -> None:
    observer = listen(receiver)
    for _ in range(2):
        observer.sent(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
    assert [exchange.body for exchange in receiver.exchanges] == [b"", b""]


def test_an_answer_may_come_before_the_request_is_over(receiver: Receiver) -> None:
    observer = listen(receiver)
    observer.sent(ASKED[:-3])
    observer.received(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
    assert receiver.exchanges == []
    observer.sent(ASKED[-3:])
    assert [exchange.status for exchange in receiver.exchanges] == [413]


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
    receiver: Receiver, answered: bytes, left_first: bool, ending: Ending
) -> None:
    observer = listen(receiver)
    observer.sent(ASKED)
    observer.received(answered) if answered else None
    if left_first:
        observer.client_ended()
    observer.target_ended()
    observer.closed()
    (exchange,) = receiver.exchanges
    assert exchange.ending is ending
    assert exchange.detail or ending is Ending.COMPLETE
    assert observer.budget.exchanges == 0
    assert not receiver.gaps


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
    receiver: Receiver, asked: bytes, answered: bytes, gap: str
) -> None:
    observer = listen(receiver)
    observer.sent(asked)
    observer.received(answered)
    for _ in range(3):
        observer.sent(b"more of it \x00")
        observer.received(b"more of it \x00")
    observer.target_ended()
    observer.closed()
    assert receiver.gaps == [gap]
    assert receiver.exchanges == []
    assert observer.budget.exchanges == 0


def test_an_exchange_beyond_the_size_is_a_gap_and_the_next_is_not(receiver: Receiver) -> None:
    observer = listen(receiver, Budget(1 << 20, 25))
    observer.sent(ASKED)
    observer.received(ANSWERED)
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert receiver.gaps == ["too-large"]
    assert [exchange.body for exchange in receiver.exchanges] == [b"{}"]
    assert observer.budget.exchanges == 0


def test_an_exchange_of_exactly_the_size_is_heard(receiver: Receiver) -> None:
    size = len(b'{ "text":"a"}') + len(b"data: {}\n\ndat")
    for largest in (size, size - 1):
        observer = listen(receiver, Budget(1 << 20, largest))
        observer.sent(ASKED)
        observer.received(ANSWERED)
    assert [exchange.body for exchange in receiver.exchanges] == [b"data: {}\n\ndat"]
    assert receiver.gaps == ["too-large"]


def test_beyond_the_budget_an_exchange_is_read_to_its_end_and_not_kept(receiver: Receiver) -> None:
    observer = listen(receiver)
    observer.budget.taken = observer.budget.most
    observer.sent(ASKED)
    observer.received(ANSWERED[:-20])
    assert observer.budget.taken == observer.budget.most
    observer.budget.taken = 0
    observer.received(ANSWERED[-20:])
    assert (receiver.exchanges, receiver.gaps) == ([], ["judge-too-slow"])
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert [exchange.body for exchange in receiver.exchanges] == [b"{}"]
    observer.sent(ASKED)
    assert observer.budget.taken > 0
    observer.received(b"\r\nnonsense\r\n\r\n")
    assert (observer.budget.taken, observer.budget.exchanges) == (0, 0)


@pytest.mark.parametrize(("most", "gaps"), [(600_000, []), (200_000, ["judge-too-slow"])])
def test_what_is_under_way_takes_of_the_budget_until_there_is_no_more(
    receiver: Receiver, most: int, gaps: list[str]
) -> None:
    body = bytes(range(250)) * 2000
    observer = listen(receiver, Budget(most, 1 << 30))
    observer.sent(GET)
    observer.received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    taken = 0
    for start in range(0, len(body), 10_000):
        observer.received(b"%x\r\n%s\r\n" % (10_000, body[start : start + 10_000]))
        taken = max(taken, observer.budget.taken)
    assert min(most, len(body)) * 0.9 < taken <= most
    observer.received(b"0\r\n\r\n")
    assert [exchange.body == body for exchange in receiver.exchanges] == [True] * (not gaps)
    assert (receiver.gaps, observer.budget.taken) == (gaps, 0)


def test_where_bytes_are_lost_the_exchange_is_a_gap_and_the_next_request_is_read(
    receiver: Receiver,
) -> None:
    observer = listen(receiver)
    observer.sent(ASKED)
    observer.received(ANSWERED[:-20])
    observer.lost()
    observer.received(ANSWERED[-7:])
    observer.sent(b'{"rest": "of a body"}')
    observer.target_ended()
    assert (receiver.exchanges, receiver.gaps) == ([], ["judge-too-slow"])
    observer.sent(ASKED)
    observer.received(ANSWERED)
    assert [exchange.body for exchange in receiver.exchanges] == [b"data: {}\n\ndat"]
    observer.lost()
    observer.closed()
    assert (len(receiver.gaps), observer.budget.taken, observer.budget.exchanges) == (1, 0, 0)


def test_a_connection_whose_beginning_is_not_known_is_read_from_its_next_request_on(
    receiver: Receiver,
) -> None:
    observer = listen(receiver, lost=True)
    observer.received(ANSWERED[-30:])
    observer.sent(ASKED)
    observer.received(ANSWERED)
    observer.closed()
    assert [exchange.body for exchange in receiver.exchanges] == [b"data: {}\n\ndat"]
    assert not receiver.gaps


@pytest.mark.parametrize("side", ["sent", "received"])
def test_what_comes_before_its_time_is_bounded(receiver: Receiver, side: str) -> None:
    """A client may send more than the server answers, and a server answer more than it was asked."""
    observer = listen(receiver)
    observer.sent(ASKED[:-1] if side == "received" else ASKED)
    if side == "received":
        observer.received(ANSWERED)
    for _ in range(9):
        getattr(observer, side)(b"x" * 200)
    assert receiver.gaps == ["too-large"]
    assert observer.budget.exchanges == 0


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"00;x\r\n\r\n"])
def test_the_end_of_a_stream_is_seen_at_once_however_it_is_cut(receiver: Receiver, end: bytes) -> None:
    for size in range(1, len(end) + 1):
        receiver.exchanges.clear()
        observer = listen(receiver)
        observer.sent(ASKED)
        observer.received(ANSWERED.removesuffix(b"0\r\n\r\n"))
        for start in range(0, len(end), size):
            assert not receiver.exchanges
            observer.received(end[start : start + size])
        assert [exchange.body for exchange in receiver.exchanges] == [b"data: {}\n\ndat"]
    assert not receiver.gaps


def test_an_answer_to_half_a_request_is_a_gap(receiver: Receiver) -> None:
    """A server may refuse before it has read all; what it was asked is then not known."""
    observer = listen(receiver)
    observer.sent(ASKED[:-5])
    observer.received(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
    observer.target_ended()
    observer.closed()
    assert (receiver.exchanges, receiver.gaps) == ([], ["request-cut-off"])
    assert observer.budget.exchanges == 0


def test_what_is_open_when_the_watcher_ends_is_a_gap(receiver: Receiver) -> None:
    idle, busy = listen(receiver), listen(receiver)
    busy.sent(ASKED)
    for observer in (idle, busy):
        observer.end()
        assert observer.budget.exchanges == 0
    assert receiver.gaps == ["watch-ended"]


def test_an_answer_without_a_request_keeps_no_memory(receiver: Receiver) -> None:
    """A server or a proxy may say that an idle connection has timed out, before it closes it."""
    observer = listen(receiver)
    observer.received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nidle")
    assert observer.budget.taken > 0
    observer.target_ended()
    observer.closed()
    assert observer.budget.taken == 0
    assert (receiver.exchanges, receiver.gaps) == ([], [])


def test_a_fault_of_our_own_is_a_gap_and_reaches_nobody(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, __: int) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(ConnectionReader, "_charge", broken)
    observer = listen(receiver, Budget(1 << 20, 1))
    observer.sent(ASKED)
    observer.received(ANSWERED)
    assert receiver.gaps == ["reader-crashed"]


def test_a_fault_of_the_judge_is_not_taken_for_one_of_the_reader(receiver: Receiver) -> None:
    """The process dies of it, and the supervisor counts that."""
    observer = listen(receiver)
    observer.sent(ASKED)
    receiver.exchanges = None  # type: ignore[assignment]  # whatever goes wrong behind the reader
    with pytest.raises(AttributeError):
        observer.received(ANSWERED)
    assert not receiver.gaps


def test_keys_in_what_a_server_tells_of_itself_go_no_further(receiver: Receiver) -> None:
    observer = listen(receiver)
    observer.sent(GET)
    observer.received(b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"api_key":"sesame"}')
    assert b"sesame" not in receiver.exchanges[0].body
