"""What runs an engine, on a thread or on the loop: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import asyncio
import queue
import threading

import pytest

from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.seams import Seams
from tokenwire_reference.running.engine_runner import EngineOnLoop, EngineThread


def ask(rid="r", prompt=(1,)):
    return Request(rid, prompt, SamplingParams(), stream=True)


@pytest.fixture
def loop():
    """An event loop that runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(params=["thread", "loop", "loop, with steps that take time"])
def started(request, loop):
    """Give a function that lets an engine run, and gives what runs it and the queue of its deliveries."""
    runners = []

    def start(engine):
        rows: queue.Queue = queue.Queue()
        parts = engine, OutputStreamer(stream_interval=1), rows.put
        engine.takes_time = request.param != "loop"
        runner = EngineThread(*parts) if request.param == "thread" else EngineOnLoop(*parts, loop)
        loop.call_soon_threadsafe(runner.start)
        runners.append(runner)
        return runner, rows

    yield start
    for runner in runners:
        runner.stop()


def ids_of(row):
    """The ids that a row delivers."""
    return row.record.output_ids[row.start : row.end]


def until_finish(rows):
    got = []
    while not got or got[-1].finish is None:
        got += rows.get(timeout=120)
    return got


def test_rows_come_step_by_step(started, scripted_engine):
    thread, rows = started(scripted_engine([[5], [6, 7], [8]]))
    thread.add(ask())
    assert list(map(ids_of, until_finish(rows))) == [[5], [6, 7], [8]]


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
    assert ids_of(until_finish(rows)[0]) == [5]


def test_functions_run_between_steps(started, scripted_engine):
    engine = scripted_engine([[5]])
    thread, _ = started(engine)
    assert thread.call(engine.flush_cache).result(timeout=120) is True
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0).result(timeout=120)
    assert engine.flushed == 1


def test_what_is_asked_during_a_step_is_done_before_the_next(started, scripted_engine):
    begun, may_go_on = threading.Event(), threading.Event()

    class Held(scripted_engine):
        def step(self):
            begun.set()
            may_go_on.wait(timeout=120)
            return super().step()

    thread, rows = started(Held([[5], [6], [7]]))
    request = ask()
    thread.add(request)
    begun.wait(timeout=120)
    so_far = thread.call(lambda: list(request.output_ids))
    may_go_on.set()
    assert so_far.result(timeout=120) == [5]
    assert until_finish(rows)[-1].finish.type == "length"


def test_a_broken_engine_ends_every_request_with_status_500(started, scripted_engine, caplog):
    class Broken(scripted_engine):
        def step(self):
            raise RuntimeError("out of memory")

    thread, rows = started(Broken([[5]]))
    thread.add(ask("a"))
    (row,) = until_finish(rows)
    assert (row.record.rid, row.finish.status_code) == ("a", 500)
    assert "out of memory" in row.finish.message
    assert isinstance(thread.failure, RuntimeError)
    thread.add(ask("b"))
    (row,) = until_finish(rows)
    assert (row.record.rid, row.finish.status_code) == ("b", 500)
    assert "the engine stopped" in caplog.text


def test_whoever_asked_and_left_ends_nothing(started, scripted_engine):
    """A cancelled call ended the engine: its future took neither a result nor an error."""
    thread, rows = started(scripted_engine([[5]]))
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        go_on.wait()

    thread.call(wait)
    begun.wait()
    cancelled = thread.call(lambda: None)
    assert cancelled.cancel()
    go_on.set()
    thread.add(ask())
    assert until_finish(rows)[-1].finish.type == "length"
    assert thread.failure is None


def test_a_request_that_cannot_be_queued_ends_alone(started, scripted_engine, caplog):
    class Picky(scripted_engine):
        def add(self, request):
            if request.rid == "bad":
                raise KeyError("boom")
            super().add(request)

    thread, rows = started(Picky([[5]]))
    thread.add(ask("bad"))
    (row,) = until_finish(rows)
    assert (row.record.rid, row.finish.status_code) == ("bad", 500)
    thread.add(ask("good"))
    assert until_finish(rows)[-1].finish.type == "length"
    assert thread.failure is None


def test_a_row_that_cannot_be_made_ends_its_request_alone(started, scripted_engine, caplog):
    engine = scripted_engine([[5], [6]])
    thread, rows = started(engine)
    bad, good = ask("bad"), ask("good")
    bad.seams = BrokenRow()
    thread.add(bad)
    (row,) = until_finish(rows)
    assert (row.record.rid, row.finish.status_code) == ("bad", 500)
    thread.add(good)
    assert until_finish(rows)[-1].finish.type == "length"
    assert engine.aborted == ["bad"]


class BrokenRow(Seams):
    def published(self, request, row):
        raise RuntimeError("boom")


def test_the_end_of_an_engine_is_told_once(started, scripted_engine, caplog):
    class Broken(scripted_engine):
        def step(self):
            raise RuntimeError("boom")

    ends = queue.Queue()
    engine = Broken([[5]])
    thread, rows = started(engine)
    thread.on_failure = lambda: ends.put(thread.failure)
    for name in ("a", "b"):
        thread.add(ask(name))
        until_finish(rows)
    assert isinstance(ends.get(timeout=120), RuntimeError)
    assert ends.empty()
    assert list(engine.live) == ["a"], "what came later never reached the engine that is gone"


def test_a_step_that_takes_time_does_not_hold_the_loop_up(loop, scripted_engine):
    may_go_on = threading.Event()

    class Slow(scripted_engine):
        takes_time = True

        def step(self):
            assert may_go_on.wait(timeout=120)
            return super().step()

    rows: queue.Queue = queue.Queue()
    runner = EngineOnLoop(Slow([[5]]), OutputStreamer(stream_interval=1), rows.put, loop)
    loop.call_soon_threadsafe(runner.start)
    runner.add(ask())
    loop.call_soon_threadsafe(may_go_on.set)
    assert ids_of(until_finish(rows)[0]) == [5]
    runner.stop()


def test_an_engine_on_a_loop_that_has_ended_ends(scripted_engine):
    loop = asyncio.new_event_loop()
    engine, rows = scripted_engine([[5], [6]]), []
    engine.takes_time = False
    runner = EngineOnLoop(engine, OutputStreamer(stream_interval=1), rows.extend, loop)
    runner.start()
    runner.add(ask())
    loop.run_until_complete(asyncio.sleep(0))
    runner.stop()
    assert asyncio.all_tasks(loop) == set()
    loop.close()


def test_a_request_that_was_aborted_before_ends_without_a_step_between(scripted_engine):
    loop, rows = asyncio.new_event_loop(), []
    runner = EngineOnLoop(scripted_engine([[5]]), OutputStreamer(stream_interval=1), rows.extend, loop)
    request = ask()
    runner.add(request, aborted=True)
    runner._inbox.get_nowait()()  # a step may follow each task
    assert request.finish.type == "abort"
    loop.close()
