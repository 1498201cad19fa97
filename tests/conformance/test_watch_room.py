"""The room of the watcher: answers are received where they are kept, and that memory is not used again before
all of it was judged and sent.

The transports here send only what they are told to, and hold on to what they were given, as those of asyncio
do from Python 3.12 on.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.watch.exchange_assembly import ObservedExchange, read_exchange
from tokenwire.watch.proxy import Address, ClientSide, TargetSide, sides
from tokenwire.watch.room import BLOCK, LARGE, Room, reads_in
from tokenwire.watch.watcher import Watcher, WatchPlan

ASKED = b"POST /generate HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


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
    """A watcher without a network, and without a judge: what it would give to that waits here."""

    def __init__(self, blocks: int) -> None:
        self.watcher = Watcher(WatchPlan(Address("h", 1), Address("h", 2), most_waiting=blocks * BLOCK))
        self.room: Room = self.watcher.room
        self.line: deque[ObservedExchange] = deque()
        self.watcher._judge = self  # type: ignore[assignment]
        self.bodies: list[bytes] = []

    def submit(self, heard: ObservedExchange) -> None:
        self.line.append(heard)

    def judge(self) -> None:
        """What the judge's process reads of the first in line, which is done with then."""
        heard = self.line.popleft()
        room, kept = self.room, heard.kept
        reads = reads_in(room.fd, room.size, kept.stretches, kept.lengths)
        self.bodies.append(read_exchange(heard.passed, kept.times, reads).body)
        kept.give_back()

    def connect(self) -> _Pair:
        return _Pair(self)


class _Pair:
    """A connection of a client, and of the target."""

    def __init__(self, watched: _Watched) -> None:
        self.observer = watched.watcher.observe()
        client, target = sides(self.observer)
        self.client, self.target = _Transport(client), _Transport(target)
        client.connection_made(self.client)
        target.connection_made(self.target)
        client.on_both_lost = self.observer.closed  # the target's is lost first
        self.target.open_to = 1 << 40
        self.due = b""
        self.told = b""
        self._catch_up = watched.watcher.later.catch_up

    def ask(self) -> None:
        self.client.arrive(ASKED)
        self._catch_up()

    def tell(self, data: bytes) -> None:
        """The target sends."""
        self.due += data
        self.told += data

    def read(self, size: int) -> None:
        """So many bytes of it arrive in one read, unless it is held back."""
        if self.target.reading and self.due:
            data, self.due = self.due[:size], self.due[size:]
            self.due = self.target.arrive(data) + self.due
            self._catch_up()

    def read_all(self) -> None:
        while self.due:
            self.client.take(1 << 30)
            self.read(BLOCK)
        self.client.take(1 << 30)


def in_loop(scene: Callable[[], None]) -> None:
    async def run() -> None:
        scene()

    asyncio.run(run())


def body(letter: int, size: int) -> bytes:
    return bytes((letter + at * 7) % 251 for at in range(256)) * (size // 256) + b"." * (size % 256)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_memory_is_not_used_again_before_it_was_sent() -> None:
    """The client of the first takes nothing while the judge is done and the answer of the second arrives."""

    def scene() -> None:
        watched = _Watched(2)
        first, second = watched.connect(), watched.connect()
        answers = [chunk(body(letter, 3 * LARGE)) for letter in (1, 2)]
        first.ask()
        first.client.open_to = len(HEAD + answers[0])
        first.tell(HEAD + answers[0])
        first.read(1 << 20)
        first.tell(answers[0] + END)
        first.read(1 << 20)
        assert first.client.waiting, "all of the second event waits, and lies in the room"
        watched.judge()
        assert watched.room.taken > 0
        second.ask()
        second.client.open_to = 1 << 30
        second.tell(HEAD + answers[1] * 2 + END)
        while second.due:
            second.read(2 * LARGE)
        first.read_all()
        assert bytes(first.client.sent) == first.told
        assert bytes(second.client.sent) == second.told
        watched.judge()
        assert watched.bodies == [body(1, 3 * LARGE) * 2, body(2, 3 * LARGE) * 2]
        assert watched.room.taken == 0

    in_loop(scene)


def test_a_client_that_leaves_in_the_middle_takes_no_memory_with_it() -> None:
    def scene() -> None:
        watched = _Watched(4)
        pair = watched.connect()
        pair.ask()
        pair.client.open_to = len(HEAD) + 3 * LARGE
        pair.tell(HEAD + chunk(body(1, 2 * LARGE)) + chunk(body(2, 2 * LARGE)))
        for _ in range(3):
            pair.read(2 * LARGE)
        assert pair.client.waiting
        pair.client.close()
        assert pair.target.closed
        watched.watcher.later.catch_up()
        watched.judge()
        assert watched.room.taken == 0
        assert (watched.watcher.tally.open_connections, watched.watcher.tally.open_exchanges) == (0, 0)

    in_loop(scene)


def test_a_judge_that_falls_behind_costs_gaps_and_no_traffic() -> None:
    def scene() -> None:
        watched = _Watched(3)
        event = chunk(body(5, 5 * LARGE))
        for _ in range(12):
            pair = watched.connect()
            pair.client.open_to = 1 << 30
            pair.ask()
            pair.tell(HEAD + event * 4 + END)
            while pair.due:
                pair.read(len(event))
            assert bytes(pair.client.sent) == pair.told
            assert watched.room.taken <= watched.room.size
            pair.client.close()
        gaps = watched.watcher.tally.gaps
        assert 0 < len(watched.line) < 12
        assert gaps == {"judge-too-slow": 12 - len(watched.line)}
        while watched.line:
            watched.judge()
        assert set(watched.bodies) == {body(5, 5 * LARGE) * 4}
        assert watched.room.taken == 0
        pair = watched.connect()
        pair.ask()
        pair.tell(HEAD + event + END)
        pair.read_all()
        watched.judge()
        assert watched.bodies[-1] == body(5, 5 * LARGE)

    in_loop(scene)


def test_large_reads_land_in_the_room_and_small_ones_are_gathered() -> None:
    def scene() -> None:
        watched = _Watched(4)
        pair = watched.connect()
        pair.ask()
        pair.tell(HEAD + chunk(body(1, LARGE)) + chunk(body(2, LARGE)) + END)
        pair.client.open_to = 1 << 30
        pair.read(len(HEAD))
        assert isinstance(pair.target.protocol, TargetSide)
        pair.read(LARGE)
        assert not isinstance(pair.target.protocol, TargetSide)
        pair.read_all()
        assert isinstance(pair.target.protocol, TargetSide), "the next answer is not known to be large"
        assert isinstance(pair.client.protocol, ClientSide)
        (heard,) = watched.line
        assert [type(stretch) for stretch in heard.kept.stretches] == [tuple] * len(heard.kept.stretches)
        watched.judge()

    in_loop(scene)


def test_where_no_block_is_left_the_rest_of_a_large_answer_is_gathered() -> None:
    def scene() -> None:
        watched = _Watched(2)
        other, pair = watched.connect(), watched.connect()
        pair.client.open_to = other.client.open_to = 1 << 30
        other.ask()
        other.tell(HEAD)
        while watched.room.taken < LARGE:  # so that a second block is too much
            other.tell(chunk(body(9, 200)))
            other.read(LARGE // 2)
        pair.ask()
        pair.tell(HEAD + b"".join(chunk(body(at, LARGE)) for at in range(BLOCK // LARGE + 1)))
        while pair.due:
            pair.read(2 * LARGE)
        assert isinstance(pair.target.protocol, TargetSide)
        for at in range(3):
            pair.tell(chunk(body(at, 300)))
            pair.read(LARGE)
        pair.tell(END)
        pair.read(LARGE)
        watched.judge()
        whole = [body(at, LARGE) for at in range(BLOCK // LARGE + 1)] + [body(at, 300) for at in range(3)]
        assert watched.bodies == [b"".join(whole)]
        other.tell(END)
        other.read_all()
        watched.judge()
        assert watched.room.taken == 0

    in_loop(scene)


SIZE = st.one_of(
    st.integers(1, 300), st.integers(LARGE - 40, LARGE + 40), st.integers(1, 5 * LARGE), st.just(BLOCK)
)
STEP = st.one_of(
    st.tuples(st.just("tell"), SIZE),
    st.tuples(st.just("read"), SIZE),
    st.tuples(st.just("read"), SIZE),
    st.tuples(st.just("take"), SIZE),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("judge"), st.just(0)),
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 2), STEP), max_size=60), st.sampled_from([1, 3, 40]), st.integers(0, 2)
)
def test_bytes_and_bodies_are_the_same_however_they_come(
    steps: list[tuple[int, tuple[str, int]]], blocks: int, leaves: int
) -> None:
    """Three connections, on which answers come in any pieces to clients that take what they like."""

    def scene() -> None:
        watched = _Watched(blocks)
        pairs = [watched.connect() for _ in range(3)]
        bodies: list[list[bytes]] = [[b""] for _ in pairs]
        for pair in pairs:
            pair.ask()
            pair.tell(HEAD)
        for number, (step, (what, size)) in enumerate(steps):
            pair = pairs[step]
            if what == "tell":
                data = body(number, size)
                bodies[step][-1] += data
                pair.tell(chunk(data))
            elif what == "read":
                pair.read(size)
            elif what == "take":
                pair.client.take(size)
            elif what == "judge":
                if watched.line:
                    watched.judge()
            else:
                pair.tell(END)
                pair.read_all()
                pair.ask()
                pair.tell(HEAD)
                bodies[step].append(b"")
        for at, pair in enumerate(pairs):
            if at == leaves:
                bodies[at].pop()
                pair.client.close()
            else:
                pair.tell(END)
                pair.read_all()
                pair.client.close()
            assert pair.told.startswith(bytes(pair.client.sent))
            if at != leaves:
                assert bytes(pair.client.sent) == pair.told
        watched.watcher.later.catch_up()
        hung_up = [heard for heard in watched.line if heard.passed.detail]
        assert len(hung_up) <= 1
        for heard in hung_up:
            heard.kept.give_back()
            watched.line.remove(heard)
        while watched.line:
            watched.judge()
        expected = sorted(one for each in bodies for one in each)
        if blocks == 40:
            assert sorted(watched.bodies) == expected
        else:
            assert not set(watched.bodies) - set(expected)
            assert len(watched.bodies) + watched.watcher.tally.gaps["judge-too-slow"] + len(hung_up) == (
                len(expected) + 1
            )
        assert watched.room.taken == 0
        assert watched.watcher.tally.open_exchanges == 0

    in_loop(scene)


SAYS_YES = """
import pickle, sys
from tokenwire.watch.judge_process import opinion_line
from tokenwire.watch.judging import Opinion
while head := sys.stdin.buffer.read(8):
    for _ in pickle.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))[0]:
        sys.stdout.buffer.write(opinion_line(Opinion(judged=True, path="/generate")))
        sys.stdout.flush()
"""


def test_clients_that_read_slowly_get_every_byte_from_real_transports() -> None:
    """All have asked before any reads, and each reads a little in turn."""

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            letter = int((await reader.readuntil(b"\r\n\r\n")).split()[1][1:])
            writer.write(HEAD)
            for at in range(12):
                writer.write(chunk(body(letter + at, 4 * LARGE + letter)))
            writer.write(END)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        plan = WatchPlan(
            Address("127.0.0.1", 0),
            Address(*server.sockets[0].getsockname()),
            most_waiting=12 * BLOCK,
            judge=[sys.executable, "-c", SAYS_YES],
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
                answer = b"".join(chunk(body(letter + at, 4 * LARGE + letter)) for at in range(12))
                assert bytes(got) == HEAD + answer + END
                writer.close()
        tally = watcher.tally
        assert tally.judged + tally.gaps["judge-too-slow"] == tally.exchanges == 8
        assert tally.judged > 0
        assert watcher.room.taken == 0

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("sizes", [[1, 2, 3], [BLOCK, 1], [BLOCK // 2 + 1] * 3])
def test_what_is_stored_shares_blocks_that_come_back_with_the_last_of_it(sizes: list[int]) -> None:
    room = Room(8 * BLOCK)
    stored = []
    for at, size in enumerate(sizes):
        found = room.store(body(at, size))
        assert found is not None
        stored.append(found)
    for at, (size, (_, start)) in enumerate(zip(sizes, stored, strict=True)):
        assert bytes(room.memory[start : start + size]) == body(at, size)
    assert room.taken == BLOCK * len({block for block, _ in stored})
    assert room.store(bytes(BLOCK + 1)) is None
    for block, _ in stored:
        assert room.taken > 0
        room.give_back([block])
    assert room.taken == 0
    room.close()
