"""How a stream is written: in few pieces, with last words where it fails, and to nobody who has left."""

from __future__ import annotations

import asyncio

import pytest

from tokenwire_reference.core.request import FinishReason, Request, Row, SamplingParams
from tokenwire_reference.doors.event_stream import OUTLET, WRITE_BYTES, EventStream
from tokenwire_reference.doors.reader import Delivery
from tokenwire_reference.doors.request_manager import RequestManager

END = FinishReason("length", length=1)


class Inbox:
    """Stands where the engine does."""

    def __init__(self):
        self.aborted = []

    def add(self, request, *, aborted=False):
        pass

    def abort(self, rid):
        self.aborted.append(rid)


class Said:
    """An event for each emission, and one after all."""

    def __init__(self, event="x"):
        self.event = event

    def of(self, emission):
        yield {self.event: emission.index}
        if self.event == "broken":
            raise RuntimeError("boom")

    def closing(self):
        yield "end"

    def failed(self, refusal):
        return refusal.flat_event()


def row(rid, finish=END, start=0):
    record = Request(rid, (7,), SamplingParams(), output_ids=[5] * (start + 1))
    return Row(record, start, start + 1, {}, finish)


def written(chunks, *, samples=3, finish=END, leaves=False):
    """The bodies that are sent for samples that all get a row in one step, and the ids that are aborted."""

    async def answer():
        inbox = Inbox()
        manager = RequestManager(inbox, None)
        rids = [f"r{index}" for index in range(samples)]
        generation = manager.submit([Request(rid, (7,), SamplingParams(), stream=True) for rid in rids])
        manager.deliver([row(rid, finish) for rid in rids])
        first = await generation.first(Delivery.INCREMENTAL)
        leaving = asyncio.get_running_loop().create_future()
        stream = EventStream(
            generation,
            first,
            chunks,
            leaving=leaving,
            delivery=Delivery.INCREMENTAL,
        )
        bodies = []

        async def send(message):
            if message["type"] == "http.response.body":
                bodies.append(message["body"])
                if leaves:
                    generation.hang_up()

        await stream({}, None, send)
        assert leaving.cancelled()
        return bodies, inbox.aborted

    return asyncio.run(answer())


def test_events_that_are_due_together_are_written_together():
    bodies, aborted = written(Said())
    events = b'data: {"x":0}\n\n', b'data: {"x":1}\n\n', b'data: {"x":2}\n\n', b'data: "end"\n\n'
    assert bodies == [b"".join(events) + b"data: [DONE]\n\n", b""]
    assert aborted == []


def test_pieces_stay_small():
    bodies, _ = written(Said("x" * (WRITE_BYTES // 2)), samples=8)
    assert [body.count(b"data: ") for body in bodies] == [2, 2, 2, 2, 2, 0]


def test_a_failure_ends_the_stream_behind_what_was_given(caplog):
    ((body, end), _) = written(Said("broken"))
    first, error, done, rest = body.split(b"\n\n")
    assert (first, done, rest, end) == (b'data: {"broken":0}', b"data: [DONE]", b"", b"")
    assert b"RuntimeError: boom" in error
    assert "a stream failed" in caplog.text


@pytest.mark.parametrize("samples", [1, 2])
def test_a_client_that_left_gets_no_end_and_its_requests_are_aborted(samples):
    bodies, aborted = written(Said(), samples=samples, finish=None, leaves=True)
    assert len(bodies) == 1
    assert aborted == [f"r{index}" for index in range(samples)]


class Connection:
    """An outlet, and a way to send that waits while the connection is full."""

    def __init__(self, full_after=99):
        self.written = []
        self.room = asyncio.Event()
        self.room.set()
        self._full_after = full_after

    @property
    def free(self):
        return self.room.is_set()

    def write(self, part, way="at once"):
        self.written.append((way, part))
        if len(self.written) == self._full_after:
            self.room.clear()

    async def send(self, message):
        await self.room.wait()
        if message["type"] == "http.response.body":
            self.write(message["body"], "by the task")


def streamed(connection, script, *, samples=1, chunks=None):
    """Run a script of deliveries while streams are written to a connection."""

    async def answer():
        manager = RequestManager(Inbox(), None)
        rids = [f"r{index}" for index in range(samples)]
        generation = manager.submit([Request(rid, (7,), SamplingParams(), stream=True) for rid in rids])
        manager.deliver([row(rid, None) for rid in rids])
        stream = EventStream(
            generation,
            await generation.first(Delivery.INCREMENTAL),
            chunks or Said(),
            leaving=asyncio.get_running_loop().create_future(),
            delivery=Delivery.INCREMENTAL,
        )
        scope = {"extensions": {OUTLET: connection}}
        task = asyncio.create_task(stream(scope, None, connection.send))
        await asyncio.sleep(0)  # it writes what came first
        await script(manager)
        await task

    asyncio.run(answer())


def events(*indices):
    return b"".join(b'data: {"x":%d}\n\n' % index for index in indices)


CLOSING = b'data: "end"\n\ndata: [DONE]\n\n'


def test_the_events_of_a_step_are_written_as_its_rows_are_delivered():
    connection = Connection()

    async def script(manager):
        manager.deliver([row("r0", None, start=1), row("r1", None, start=1)])
        assert connection.written[1:] == [("at once", events(0, 1))]
        manager.deliver([row("r0", start=2), row("r1", start=2)])

    streamed(connection, script, samples=2)
    assert [part for _, part in connection.written] == [
        *(events(0, 1), events(0, 1)),
        *(events(0, 1) + CLOSING, b""),
    ]
    assert [way for way, _ in connection.written] == ["by the task", "at once", "at once", "by the task"]


def test_a_full_connection_is_waited_for_and_gets_in_one_event_what_came_meanwhile():
    connection = Connection(full_after=2)

    async def script(manager):
        manager.deliver([row("r0", None, start=1)])
        for start in (2, 3):
            manager.deliver([row("r0", None, start=start)])
            await asyncio.sleep(0)
        assert len(connection.written) == 2
        connection.room.set()
        manager.deliver([row("r0", start=4)])  # before the task can go on: it must not be overtaken

    streamed(connection, script)
    assert connection.written == [
        ("by the task", events(0)),
        ("at once", events(0)),
        ("by the task", events(0)),
        ("by the task", events(0) + CLOSING),
        ("by the task", b""),
    ]


def test_a_connection_that_fills_up_within_a_step_gets_the_rest_of_it_once_it_is_free():
    connection = Connection(full_after=4)

    async def script(manager):
        manager.deliver([row(rid, start=1) for rid in ("r0", "r1", "r2")])
        assert len(connection.written) == 4
        connection.room.set()

    large = "x" * WRITE_BYTES
    streamed(connection, script, samples=3, chunks=Said(large))
    parts = [part.replace(large.encode(), b"x") for _, part in connection.written]
    assert b"".join(parts) == events(0, 1, 2, 0, 1, 2) + CLOSING
    assert [way for way, _ in connection.written[3:5]] == ["at once", "by the task"]


def test_what_fits_no_more_is_not_overtaken_by_a_later_step():
    class Twice(Said):
        def of(self, emission):
            yield {self.event: len(emission.output_ids)}
            yield {self.event: emission.completion_tokens}

    connection, large = Connection(full_after=3), "x" * WRITE_BYTES

    async def script(manager):
        manager.deliver([row("r0", None, start=1)])
        connection.room.set()
        manager.deliver([row("r0", start=2)])  # before the task has woken up

    streamed(connection, script, chunks=Twice(large))
    parts = [part.replace(large.encode(), b"x") for _, part in connection.written]
    assert b"".join(parts) == events(1, 1, 1, 2, 1, 3) + CLOSING


def test_what_fails_in_writing_at_once_fails_in_the_stream_alone():
    connection = Connection()

    async def script(manager):
        other = manager.submit([Request("other", (7,), SamplingParams(), stream=True)])
        connection.write = None
        manager.deliver([row("r0", None, start=1), row("other", None)])
        assert [emission.output_ids for emission in other.take(Delivery.INCREMENTAL)] == [[5]]

    with pytest.raises(TypeError):
        streamed(connection, script)
