"""The engine's thread: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import queue

import pytest

from tokenwire_reference.delivery.engine_thread import EngineThread
from tokenwire_reference.delivery.output_streamer import OutputStreamer
from tokenwire_reference.request import Request, SamplingParams


def ask(rid="r", prompt=(1,)):
    return Request(rid, prompt, SamplingParams(), stream=True)


@pytest.fixture
def started(scripted_engine):
    """Give a function that starts a thread around an engine, and gives the queue of its deliveries."""
    threads = []

    def start(engine):
        rows: queue.Queue = queue.Queue()
        thread = EngineThread(engine, OutputStreamer(stream_interval=1, decode=None), rows.put)
        thread.start()
        threads.append(thread)
        return thread, rows

    yield start
    for thread in threads:
        thread.stop()


def until_finish(rows):
    got = []
    while not got or got[-1].finish is None:
        got += rows.get(timeout=120)
    return got


def test_rows_come_step_by_step(started, scripted_engine):
    thread, rows = started(scripted_engine([[5], [6, 7], [8]]))
    thread.add(ask())
    assert [list(row.output_ids) for row in until_finish(rows)] == [[5], [6, 7], [8]]


def test_a_request_that_cannot_run_is_answered_with_status_400(started, scripted_engine):
    thread, rows = started(scripted_engine([[5]]))
    thread.add(ask(prompt=()))
    (row,) = until_finish(rows)
    assert (row.finish.type, row.finish.status_code, row.finish.message) == (
        "abort",
        400,
        "the prompt is empty",
    )
    thread.add(ask("other"))
    assert until_finish(rows)[0].output_ids == [5]


def test_functions_run_between_steps(started, scripted_engine):
    engine = scripted_engine([[5]])
    thread, _ = started(engine)
    assert thread.call(engine.flush_cache).result(timeout=120) is True
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0).result(timeout=120)
    assert engine.flushed == 1


def test_a_broken_engine_ends_every_request_with_status_500(started, scripted_engine, caplog):
    class Broken(scripted_engine):
        def step(self):
            raise RuntimeError("out of memory")

    thread, rows = started(Broken([[5]]))
    thread.add(ask("a"))
    (row,) = until_finish(rows)
    assert (row.rid, row.finish.status_code) == ("a", 500)
    assert "out of memory" in row.finish.message
    assert isinstance(thread.failure, RuntimeError)
    thread.add(ask("b"))
    (row,) = until_finish(rows)
    assert (row.rid, row.finish.status_code) == ("b", 500)
    assert "the engine stopped" in caplog.text
