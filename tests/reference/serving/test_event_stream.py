"""How a stream is written: in few pieces, with last words where it fails, and to nobody who has left."""

from __future__ import annotations

import asyncio

import pytest

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.event_stream import WRITE_BYTES, EventStream
from tokenwire_reference.delivery.request_manager import Delivery, RequestManager
from tokenwire_reference.request import FinishReason, OutputRow, Request, SamplingParams

END = FinishReason("length", length=1)


class Inbox:
    """Stands where the engine does."""

    def __init__(self):
        self.aborted = []

    def add(self, request):
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


def row(rid, finish=END):
    return OutputRow(
        rid=rid,
        start=0,
        end=1,
        output_ids=[5],
        series={},
        customized_info_keys=frozenset(),
        prompt_series={},
        prompt_tokens=1,
        cached_tokens=0,
        cached_tokens_details=None,
        num_retractions=0,
        finish=finish,
    )


def written(chunks, *, samples=3, finish=END, leaves=False):
    """The bodies that are sent for samples that all get a row in one step, and the ids that are aborted."""

    async def answer():
        inbox = Inbox()
        manager = RequestManager(inbox, None)
        rids = [f"r{at}" for at in range(samples)]
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
            last_words=RefusalError.flat_event,
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
    assert aborted == [f"r{at}" for at in range(samples)]
