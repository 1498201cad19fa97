"""Pausing, the queue limit, forced retraction, aborts and flushes: nothing is lost, nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_requests import GREEDY, PROMPT, SEEDED, ask, neighbours, record, retract, scored

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs, PauseMode
from tokenwire_reference.core.load import QueueFullError
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import FinishReason, Request
from tokenwire_reference.extras.scripted import ScriptedModel

Run = Callable[..., list[Request]]


def requests() -> list[Request]:
    return [scored("a", new=20), scored("b", new=20, **SEEDED), scored("c", new=20)]


def busy(engine: Engine, steps: int = 5) -> list[Request]:
    """Two requests that run and one that waits, in an engine for two."""
    added = requests()
    for request in added:
        engine.add(request)
    for _ in range(steps):
        engine.step()
    return added


class TestPause:
    @pytest.mark.parametrize("mode", ["retract", "in_place"])
    def test_a_pause_is_invisible(self, tiny: LoadedModel, run_to_end: Run, mode: PauseMode) -> None:
        calm = requests()
        for request in calm:
            run_to_end(make_engine(tiny), request)
        engine = make_engine(tiny, EngineArgs(max_running_requests=2))
        paused = busy(engine)
        before = [len(request.output_ids) for request in paused]
        assert before[0] > 0 == before[2]
        engine.pause(mode)
        assert engine.idle
        assert [engine.step() for _ in range(3)] == [[], [], []]
        assert [len(request.output_ids) for request in paused] == before
        assert engine.flush_cache() is (mode == "retract")
        engine.add(late := ask("late"))
        assert engine.idle
        engine.continue_generation()
        assert not engine.idle
        run_to_end(engine)
        assert [record(request) for request in paused] == [record(request) for request in calm]
        assert [request.num_retractions for request in paused] == [int(mode == "retract")] * 2 + [0]
        assert late.finish == FinishReason("length", length=12)

    def test_a_retracting_pause_keeps_the_order(self, scripted: ScriptedModel) -> None:
        engine = make_engine(scripted, EngineArgs(max_running_requests=2))
        busy(engine, 1)
        engine.pause("retract")
        assert [sequence.request.rid for sequence in engine.scheduler.waiting] == ["a", "b", "c"]

    def test_an_aborting_pause_gives_what_there_is(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(max_running_requests=2))
        live = busy(engine)
        counts = [len(request.output_ids) for request in live]
        engine.pause()
        assert not engine.idle
        assert engine.step() == live
        assert engine.idle
        assert [len(request.output_ids) for request in live] == counts
        assert [request.finish and request.finish.message for request in live] == [
            "Aborted",
            "Aborted",
            "Abort in waiting queue",
        ]
        engine.add(late := ask("late"))
        engine.step()
        assert late.output_ids == []
        engine.continue_generation()
        run_to_end(engine)
        assert late.finish == FinishReason("length", length=12)

    def test_an_abort_reaches_a_paused_request(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(max_running_requests=2))
        live = busy(engine)
        kept = list(live[0].output_ids)
        engine.pause("retract")
        engine.abort("a")
        assert engine.step() == live[:1]
        assert live[0].output_ids == kept != []
        assert len(live[0].series["output_token_logprobs"]) == len(kept)
        engine.continue_generation()
        run_to_end(engine)


class TestQueueLimit:
    def test_one_too_many_is_refused_and_harms_nobody(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny, EngineArgs(max_running_requests=1, max_queued_requests=2))
        engine.add(ask("runs"))
        engine.step()
        engine.add(ask("waits"))
        engine.add(ask("waits too"))
        refused = scored("refused")
        with pytest.raises(QueueFullError, match="The request queue is full"):
            engine.add(refused)
        assert (refused.series, refused.finish) == ({}, None)
        run_to_end(engine)
        run_to_end(engine, refused)
        assert refused.finish == FinishReason("length", length=12)


class TestForcedRetraction:
    @pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
    @pytest.mark.parametrize("options", [{}, {"prefix_caching": False, "chunked_prefill_size": 32}], ids=str)
    @pytest.mark.parametrize("interval", [1, 3])
    def test_it_is_invisible(
        self,
        tiny: LoadedModel,
        run_to_end: Run,
        interval: int,
        options: dict[str, Any],
        sampling: dict[str, Any],
    ) -> None:
        (calm,) = run_to_end(make_engine(tiny), scored(new=30, **sampling))
        engine = make_engine(tiny, EngineArgs(test_retract_interval=interval, **options))
        disturbed = run_to_end(engine, *neighbours(3), scored(new=30, **sampling))[-1]
        assert disturbed.num_retractions > 2
        assert disturbed.cached_tokens == 0
        assert record(disturbed) == record(calm)


class TestAbort:
    def test_ids_are_matched_whole(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        jobs = [ask(rid) for rid in ("job", "job-1", "job-10")]
        for request in jobs:
            engine.add(request)
        engine.step()
        for rid in ("job-1", "jo", "", "job-100"):
            engine.abort(rid)
        run_to_end(engine)
        assert [request.finish and request.finish.type for request in jobs] == [
            "length",
            "abort",
            "length",
        ]

    def test_all_at_once(self, tiny: LoadedModel) -> None:
        engine = make_engine(tiny, EngineArgs(max_running_requests=2))
        live = busy(engine)
        engine.abort_all()
        assert engine.step() == live
        assert engine.idle
        assert engine.flush_cache() is True

    def test_a_finished_request_stays_as_it_is(self, tiny: LoadedModel, run_to_end: Run) -> None:
        engine = make_engine(tiny)
        (request,) = run_to_end(engine, ask())
        before = record(request)
        engine.abort("r")
        engine.abort_all()
        assert engine.step() == []
        assert record(request) == before

    def test_a_retracted_request_keeps_its_tokens(self, tiny: LoadedModel) -> None:
        engine = make_engine(tiny)
        engine.add(request := scored(new=20))
        for _ in range(4):
            engine.step()
        retract(engine, "r")
        engine.abort("r")
        assert engine.step() == [request]
        assert len(request.output_ids) == len(request.series["output_token_logprobs"]) == 4
        assert request.finish == FinishReason("abort", message="Abort in waiting queue")


def test_nothing_is_cut_in_silence(tiny_qwen2: LoadedModel, run_to_end: Run) -> None:
    engine = make_engine(tiny_qwen2)
    fits = run_to_end(engine, ask(prompt=PROMPT, new=512 - len(PROMPT), ignore_eos=True))[0]
    assert fits.finish == FinishReason("length", length=512 - len(PROMPT))
    with pytest.raises(ValueError, match="exceed the context length of 512"):
        engine.add(ask(prompt=PROMPT, new=513 - len(PROMPT)))


def test_a_request_that_waits_too_long_for_its_first_step_is_refused(tiny: LoadedModel) -> None:
    now = [0.0]
    args = EngineArgs(max_running_requests=1, request_waiting_timeout=2.0)
    engine = Engine(tiny, args, clock=lambda: now[0])
    running, early, late = ask("running", new=20), ask("early"), ask("late")
    engine.add(running)
    engine.add(early)
    engine.step()
    now[0] = 1.5
    engine.add(late)
    now[0] = 2.0
    assert engine.step() == [running]
    now[0] = 2.5
    assert engine.step() == [early, running]
    message = "Request waiting timeout reached: no step for it within 2 s."
    assert early.finish == FinishReason("abort", message=message, status_code=503)
    engine.abort("running")
    while not engine.idle:
        engine.step()
    assert late.finish is not None
    assert late.finish.type != "abort"
    engine.check_integrity()
