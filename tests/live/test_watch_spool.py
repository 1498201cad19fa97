"""The spool of the watcher: answers are received where they are kept, and that memory is not written again
before all of it was judged and sent; what it has no room for is told.

The transports here send only what they are told to, and hold on to what they were given, as those of asyncio
do from Python 3.12 on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.wire.address import Address
from tokenwire.wire.exchange import Ending, Exchange
from tokenwire_live.watch.exchange_assembly import Budget
from tokenwire_live.watch.judge_process import Follower
from tokenwire_live.watch.proxy import sides
from tokenwire_live.watch.spool import SEGMENT, Kind, Spool, SpoolReader
from tokenwire_live.watch.watcher import Watcher, WatchPlan

ASKED = b"POST /generate HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
LARGE = 16 << 10


class _Transport(asyncio.Transport):
    """Takes all, and sends what it is told to."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        self.waiting: deque[memoryview] = deque()
        self.open_to = 0
        """Bytes that the other side still takes at once."""
        self.paused = False
        self.reading = True
        self.closed = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: Any) -> None:
        self.waiting.append(memoryview(data))
        self._send()
        if self.waiting and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def _send(self) -> None:
        while self.waiting and self.open_to:
            data = self.waiting.popleft()
            now, later = data[: self.open_to], data[self.open_to :]
            self.sent += now
            self.open_to -= len(now)
            if later:
                self.waiting.appendleft(later)

    def take(self, size: int) -> None:
        self.open_to += size
        self._send()
        if not self.waiting and self.paused:
            self.paused = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.waiting.clear()
            self.protocol.connection_lost(None)

    abort = close

    def arrive(self, data: bytes) -> bytes:
        """Have one read of so many bytes; what was not taken."""
        assert self.reading
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return b""
        place = self.protocol.get_buffer(-1)
        size = min(len(place), len(data))
        place[:size] = data[:size]
        self.protocol.buffer_updated(size)
        return data[size:]


class _Watched:
    """A watcher without a network, whose spool is read here and not in another process."""

    def __init__(self, segments: int, sample: float = 1.0) -> None:
        size = segments * SEGMENT
        self.watcher = Watcher(WatchPlan(Address("h", 1), Address("h", 2), sample=sample, most_waiting=size))
        self.spool: Spool = self.watcher.spool
        self.counts = self.watcher.counts
        self.bodies: list[bytes] = []
        self.hung_up = 0
        self.budget = Budget(1 << 30, 1 << 30)
        self._follower = Follower(SpoolReader(self.spool.fd, self.spool.size), self, self.budget)

    def finished(self, _: int, exchange: Exchange) -> None:
        self.counts.exchanges += 1
        if exchange.ending is Ending.COMPLETE:
            self.bodies.append(exchange.body)
        else:
            self.hung_up += 1

    def missed(self, _: int, reason: str, *, exchange: bool) -> None:
        self.counts.missed(reason, int(exchange))

    def judge(self) -> None:
        """Read the oldest batch, which is done with then."""
        self.spool.publish()
        if self.spool.batches:
            batch = self.spool.batches[0]
            self._follower.read(batch.start, batch.end, batch.position)
            self.spool.release()

    def judge_all(self) -> None:
        self.spool.publish()
        while self.spool.batches:
            self.judge()
            self.spool.publish()

    def connect(self) -> _Pair:
        return _Pair(self)


class _Pair:
    """A connection of a client, and of the target."""

    def __init__(self, watched: _Watched) -> None:
        observer = watched.watcher.observe()
        client, target = sides(observer)
        self.client, self.target = _Transport(client), _Transport(target)
        client.connection_made(self.client)
        target.connection_made(self.target)
        client.on_both_lost = observer.closed  # the target's is lost first
        self.target.open_to = 1 << 40
        self.due = b""
        self.written = b""

    def ask(self) -> None:
        self.client.arrive(ASKED)

    def answer(self, data: bytes) -> None:
        """The target sends."""
        self.due += data
        self.written += data

    def read(self, size: int) -> None:
        """So many bytes of it arrive in one read, unless it is held back."""
        if self.target.reading and self.due:
            data, self.due = self.due[:size], self.due[size:]
            self.due = self.target.arrive(data) + self.due

    def read_all(self) -> None:
        while self.due:
            self.client.take(1 << 30)
            self.read(1 << 20)
        self.client.take(1 << 30)


def test_a_sample_is_spread_over_the_traffic_and_its_exchanges_are_whole() -> None:
    """Two kinds of requests in turn are both in a half; the bytes of the others only go through."""

    def scene() -> None:
        watched = _Watched(8, sample=0.5)
        connection = watched.connect()
        for number in range(100):
            connection.ask()
            connection.answer(HEAD + chunk(body(number % 2, 300)) + END)
            connection.read_all()
        connection.client.arrive(b"GET /server_info HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.answer(HEAD + chunk(b"what a server says of itself") + END)
        connection.read_all()
        watched.judge_all()
        kinds = Counter(watched.bodies)
        assert kinds.pop(b"what a server says of itself") == 1
        assert sorted(kinds) == sorted({body(0, 300), body(1, 300)})
        assert all(20 <= number <= 30 for number in kinds.values())
        assert watched.counts.unsampled == 100 - sum(kinds.values())
        assert (watched.counts.gaps, bytes(connection.client.sent)) == (Counter(), connection.written)

    in_loop(scene)


def in_loop(scene: Callable[[], None]) -> None:
    async def run() -> None:
        scene()

    asyncio.run(run())


def body(letter: int, size: int) -> bytes:
    return bytes((letter + place * 7) % 251 for place in range(256)) * (size // 256) + b"." * (size % 256)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_memory_is_not_written_again_before_it_was_sent() -> None:
    """The client of the first takes nothing while the judge is done and the answer of the second arrives."""

    def scene() -> None:
        watched = _Watched(2)
        first, second = watched.connect(), watched.connect()
        answers = [chunk(body(letter, 3 * LARGE)) for letter in (1, 2)]
        first.ask()
        first.client.open_to = len(HEAD + answers[0])
        first.answer(HEAD + answers[0])
        first.read(1 << 20)
        first.answer(answers[0] + END)
        first.read(1 << 20)
        assert first.client.waiting, "all of the second event waits, and lies in the spool"
        watched.judge_all()
        second.ask()
        second.client.open_to = 1 << 30
        second.answer(HEAD + answers[1] * 60 + END)
        while second.due:
            second.read(2 * LARGE)
            watched.judge_all()
        first.read_all()
        assert bytes(first.client.sent) == first.written
        assert bytes(second.client.sent) == second.written
        watched.judge_all()
        assert watched.bodies == [body(1, 3 * LARGE) * 2, body(2, 3 * LARGE) * 60]
        assert watched.spool.waiting == 0

    in_loop(scene)


def test_what_waits_to_be_sent_is_kept_also_where_the_spool_is_full() -> None:
    def scene() -> None:
        watched = _Watched(2)
        pairs = [watched.connect() for _ in range(3)]
        fill(watched)
        for letter, pair in enumerate(pairs):
            pair.answer(body(letter, LARGE))
            pair.read(LARGE)
            assert pair.client.waiting
        for pair in pairs:
            pair.read_all()
            assert bytes(pair.client.sent) == pair.written

    in_loop(scene)


def test_what_is_not_spooled_is_not_overwritten_before_it_was_sent() -> None:
    """The answer of the first is dropped, as its request was, and its client reads slowly."""

    def scene() -> None:
        watched = _Watched(4)
        first, second = watched.connect(), watched.connect()
        fill(watched)
        first.ask()
        watched.judge_all()
        assert watched.counts.gaps == {"judge-too-slow": 1}
        first.answer(body(1, LARGE))
        first.read(LARGE)
        assert first.client.waiting
        second.ask()
        second.answer(HEAD + chunk(body(2, LARGE)) + END)
        second.read_all()
        first.read_all()
        assert bytes(first.client.sent) == first.written
        assert bytes(second.client.sent) == second.written
        watched.judge_all()
        assert watched.bodies == [body(2, LARGE)]

    in_loop(scene)


def test_a_client_that_leaves_in_the_middle_takes_no_memory_with_it() -> None:
    def scene() -> None:
        watched = _Watched(2)
        for _ in range(40):
            pair = watched.connect()
            pair.ask()
            pair.client.open_to = len(HEAD) + 3 * LARGE
            pair.answer(HEAD + chunk(body(1, 2 * LARGE)) + chunk(body(2, 2 * LARGE)))
            for _ in range(3):
                pair.read(2 * LARGE)
            assert pair.client.waiting
            pair.client.close()
            assert pair.target.closed
            watched.judge_all()
        assert watched.hung_up == 40
        assert not watched.spool.crowded
        assert (watched.counts.open_connections, watched.budget.exchanges, watched.budget.taken) == (0, 0, 0)
        assert not watched.counts.gaps

    in_loop(scene)


def fill(watched: _Watched) -> None:
    """Append what nobody reads, until no more is taken."""
    while watched.spool.append(1 << 20, Kind.RECEIVED, bytes(SEGMENT // 4)):
        pass


def test_a_judge_that_falls_behind_costs_gaps_and_no_traffic() -> None:
    def scene() -> None:
        watched = _Watched(8)
        event = chunk(body(5, 5 * LARGE))
        for _ in range(24):
            pair = watched.connect()
            pair.client.open_to = 1 << 30
            pair.ask()
            pair.answer(HEAD + event * 4 + END)
            while pair.due:
                pair.read(len(event))
            assert bytes(pair.client.sent) == pair.written
            assert watched.spool.waiting <= watched.spool.size
            pair.client.close()
        skipped = watched.counts.gaps["judge-too-slow"]
        assert 0 < skipped < 24
        watched.judge_all()
        assert watched.bodies == [body(5, 5 * LARGE) * 4] * (24 - skipped)
        assert watched.counts.gaps == {"judge-too-slow": skipped}
        pair = watched.connect()
        pair.ask()
        pair.answer(HEAD + event + END)
        pair.read_all()
        watched.judge_all()
        assert watched.bodies[-1] == body(5, 5 * LARGE)

    in_loop(scene)


def test_an_exchange_that_outgrows_the_spool_is_a_gap_and_the_next_of_its_connection_is_judged() -> None:
    def scene() -> None:
        watched = _Watched(2)
        pair = watched.connect()
        pair.ask()
        pair.answer(HEAD + chunk(body(1, LARGE)) * 300 + END)
        pair.read_all()
        pair.ask()
        assert watched.counts.gaps == {"judge-too-slow": 1}, "the second, for which there was no room"
        watched.judge_all()
        pair.answer(HEAD + END)
        pair.read_all()
        watched.judge_all()
        assert watched.counts.gaps == {"judge-too-slow": 2}
        pair.ask()
        pair.answer(HEAD + chunk(b"word") + END)
        pair.read_all()
        pair.client.close()
        watched.judge_all()
        assert (watched.bodies, watched.counts.gaps) == ([b"word"], {"judge-too-slow": 2})
        assert watched.budget.exchanges == 0

    in_loop(scene)


def test_connections_that_end_while_the_spool_is_full_are_forgotten_once_it_is_not() -> None:
    def scene() -> None:
        watched = _Watched(2)
        pairs = [watched.connect() for _ in range(3)]
        for pair in pairs:
            pair.ask()
        fill(watched)
        for pair in pairs:
            pair.client.close()
        watched.connect().client.close()
        watched.judge_all()
        assert watched.hung_up + watched.counts.gaps["judge-too-slow"] == 3
        assert watched.budget.exchanges == 0
        assert not watched._follower._connections.keys() - {1 << 20}

    in_loop(scene)


SIZE = st.one_of(
    st.integers(1, 300), st.integers(LARGE - 40, LARGE + 40), st.integers(1, 5 * LARGE), st.just(SEGMENT // 3)
)
STEP = st.one_of(
    st.tuples(st.just("answer"), SIZE),
    st.tuples(st.just("read"), SIZE),
    st.tuples(st.just("read"), SIZE),
    st.tuples(st.just("take"), SIZE),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("judge"), st.just(0)),
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 2), STEP), max_size=60), st.sampled_from([2, 4, 200]), st.integers(0, 2)
)
def test_bytes_and_bodies_are_the_same_however_they_come(
    steps: list[tuple[int, tuple[str, int]]], segments: int, leaves: int
) -> None:
    """Three connections, on which answers come in any pieces to clients that take what they like."""

    def scene() -> None:
        watched = _Watched(segments)
        pairs = [watched.connect() for _ in range(3)]
        bodies: list[list[bytes]] = [[b""] for _ in pairs]
        for pair in pairs:
            pair.ask()
            pair.answer(HEAD)
        for number, (step, (what, size)) in enumerate(steps):
            pair = pairs[step]
            if what == "answer":
                data = body(number, size)
                bodies[step][-1] += data
                pair.answer(chunk(data))
            elif what == "read":
                pair.read(size)
            elif what == "take":
                pair.client.take(size)
            elif what == "judge":
                watched.judge()
            else:
                pair.answer(END)
                pair.read_all()
                pair.ask()
                pair.answer(HEAD)
                bodies[step].append(b"")
        for index, pair in enumerate(pairs):
            if index == leaves:
                bodies[index].pop()
                pair.client.close()
            else:
                pair.answer(END)
                pair.read_all()
                pair.client.close()
            assert pair.written.startswith(bytes(pair.client.sent))
            if index != leaves:
                assert bytes(pair.client.sent) == pair.written
        watched.judge_all()
        assert watched.hung_up <= 1
        expected = sorted(item for item in bodies for item in item)
        gaps = watched.counts.gaps
        if segments == 200:
            assert sorted(watched.bodies) == expected
            assert watched.hung_up == 1
        assert not set(watched.bodies) - set(expected)
        assert len(watched.bodies) + gaps["judge-too-slow"] + watched.hung_up == len(expected) + 1
        assert gaps.keys() <= {"judge-too-slow"}
        assert watched.counts.exchanges == len(expected) + 1
        assert (watched.spool.waiting, watched.budget.exchanges, watched.budget.taken) == (0, 0, 0)
        assert watched.counts.open_connections == 0

    in_loop(scene)


def test_clients_that_read_slowly_get_every_byte_from_real_transports() -> None:
    """All have asked before any reads, and each reads a little in turn."""

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            letter = int((await reader.readuntil(b"\r\n\r\n")).split()[1][1:])
            writer.write(HEAD)
            for number in range(12):
                writer.write(chunk(body(letter + number, 4 * LARGE + letter)))
            writer.write(END)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        plan = WatchPlan(
            Address("127.0.0.1", 0),
            Address(*server.sockets[0].getsockname()),
            most_waiting=6 * SEGMENT,
        )
        async with server, Watcher(plan) as watcher:
            clients = []
            for letter in range(8):
                reader, writer = await asyncio.open_connection(
                    *str(watcher.listening).split(":"), limit=LARGE
                )
                writer.write(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % letter)
                clients.append((letter, reader, writer, bytearray()))
            reading = list(clients)
            while reading:
                for client in list(reading):
                    letter, reader, _, got = client
                    data = await reader.read(LARGE * (letter + 1))
                    got += data
                    if not data:
                        reading.remove(client)
            for letter, _, writer, got in clients:
                answer = b"".join(chunk(body(letter + number, 4 * LARGE + letter)) for number in range(12))
                assert bytes(got) == HEAD + answer + END
                writer.close()
        counts = watcher.counts
        assert (
            counts.total.judged + counts.not_spoken + counts.gaps["judge-too-slow"] == counts.exchanges == 8
        )
        assert counts.not_spoken > 0

    asyncio.run(asyncio.wait_for(scene(), 60))


def records(spool: Spool) -> list[tuple[int, Kind, bytes]]:
    """All that was appended and not released."""
    spool.publish()
    reader = SpoolReader(spool.fd, spool.size)
    return [
        (record.connection, record.kind, bytes(record.data))
        for batch in spool.batches
        for record in reader.records(batch.start, batch.end, batch.position)
    ]


def test_records_keep_their_order_and_positions_name_them_once() -> None:
    spool = Spool(8 * SEGMENT)
    data = [body(number, number * 9_001) for number in range(40)]
    for number, item in enumerate(data):
        assert spool.append(number, Kind.SENT, item)
    assert records(spool) == [(number, Kind.SENT, item) for number, item in enumerate(data)]
    reader = SpoolReader(spool.fd, spool.size)
    found = [record for batch in spool.batches for record in reader.records(*batch[:3])]
    positions = [record.position for record in found]
    assert positions == sorted(set(positions))
    assert [record.time for record in found] == sorted(record.time for record in found)


def test_a_record_that_is_larger_than_a_segment_is_parted() -> None:
    spool = Spool(8 * SEGMENT)
    assert spool.append_request(3, body(1, 3 * SEGMENT))
    first, *others = records(spool)
    assert first[1] is Kind.REQUEST
    assert {kind for _, kind, _ in others} == {Kind.SENT}
    assert b"".join(data for _, _, data in (first, *others)) == body(1, 3 * SEGMENT)
    assert sum(batch.requests for batch in spool.batches) == 1


def test_while_half_of_the_spool_waits_no_exchange_begins_and_those_under_way_go_on() -> None:
    spool = Spool(8 * SEGMENT)
    assert spool.append_request(1, ASKED)
    for _ in range(5):
        assert spool.append(1, Kind.RECEIVED, bytes(SEGMENT - 100))
    assert not spool.append_request(2, ASKED)
    assert spool.append(1, Kind.RECEIVED, bytes(SEGMENT - 100))
    spool.publish()
    while spool.batches:
        spool.release()
    assert spool.append_request(2, ASKED)


def test_where_the_judge_keeps_up_the_same_memory_is_written_again() -> None:
    spool = Spool(8 * SEGMENT)
    for _ in range(100):
        assert spool.append(1, Kind.SENT, bytes(SEGMENT // 2))
        spool.publish()
        assert spool.release().end <= SEGMENT
    assert spool.waiting == 0


def test_a_sealed_spool_takes_nothing_more() -> None:
    spool = Spool(8 * SEGMENT)
    assert spool.append(1, Kind.OPENED)
    spool.seal()
    assert not spool.append(1, Kind.SENT, b"x")
    assert not spool.append(1, Kind.CLOSED)
    spool.buffer()[:1] = b"x"
    assert not spool.append_received(1, Kind.RECEIVED, 1)
    assert records(spool) == [(1, Kind.OPENED, b"")]
