"""Requests come, go, are retracted, paused and flushed in any order; the books balance after every rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_requests import ask, retract
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.engine import EngineArgs, PauseMode
from tokenwire_reference.core.load import QueueFullError
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.sampling import SamplingRow
from tokenwire_reference.extras.scripted import ScriptedModel

MODEL = ScriptedModel(tokenizer=False)
PAGE = 2


BROKEN_SEED = -1


def boom(*_: object) -> Any:
    raise RuntimeError("boom")


class EngineMachine(RuleBasedStateMachine):
    """A small engine with every mechanism on. What each request says is known: its prompt, then its end."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine(
            MODEL,
            EngineArgs(
                max_running_requests=2,
                max_queued_requests=3,
                chunked_prefill_size=2 * PAGE,
                max_total_tokens=24,
                page_size=PAGE,
                sampling_backend="mirror",
            ),
            extra=ExtraArgs(host_cache_pages=3),
        )
        self.live: dict[str, Request] = {}
        self.steps: dict[str, Sequence[Sequence[int]]] = {}
        self.added = 0
        self.broken: set[str] = set()
        """Requests that fail at a seam, should they get there."""
        backend = self.engine._acceptance._backend

        def picky(logits: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]) -> Any:
            if any(row.seed == BROKEN_SEED for row in rows):
                raise RuntimeError("boom")
            return backend(logits, rows, token_ids)

        self.engine._acceptance._backend = picky

    @rule(
        script=st.lists(st.lists(st.integers(5, 6), min_size=1, max_size=3), max_size=4),
        prompt=st.integers(1, 9),
    )
    def add(self, script: list[list[int]], prompt: int) -> None:
        self.added += 1
        request = ask(str(self.added), [5, 6] * 5, 8, custom_params={"script": script}, return_logprob=True)
        request.prompt_token_ids = request.prompt_token_ids[:prompt]
        full = len(self.engine.scheduler.waiting) >= 3
        try:
            self.engine.add(request)
        except QueueFullError:
            assert full
        else:
            assert not full
            self.live[request.rid] = request
            self.steps[request.rid] = script

    @rule()
    def step(self) -> None:
        for request in self.engine.step():
            assert self.live[request.rid] is request
            if request.finish is not None:
                self.ended(self.live.pop(request.rid))

    def ended(self, request: Request) -> None:
        expected = [*(i for ids in self.steps[request.rid] for i in ids), 2][:8]
        assert request.finish is not None
        assert request.rid in self.broken or not request.finish.failed
        if request.finish.type == "abort":
            expected = expected[: len(request.output_ids)]
        assert request.output_ids == request.series.get("mirror_token_id", []) == expected
        assert [entry[1] for entry in request.series["output_token_logprobs"]] == expected
        assert request.cached_tokens < len(request.prompt_token_ids)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), seam=st.sampled_from(["rules", "drafter", "backend"]))
    def break_a_seam(self, data: st.DataObject, seam: str) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        self.break_the_seam_of(rid, seam)

    def break_the_seam_of(self, rid: str, seam: str) -> None:
        sequence = self.engine.scheduler.find(rid)
        if sequence is None:
            return
        self.broken.add(rid)
        if seam == "backend":
            sequence.request.seed = BROKEN_SEED
        elif seam == "rules":
            sequence.rules.check = boom  # type: ignore[method-assign]
        else:
            # Its script stays: the model answers a step, padding rows too, by the scripts of its sequences.
            sequence.drafter.draft = boom  # type: ignore[union-attr,method-assign]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(sorted(self.live))))

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        running = [sequence.request.rid for sequence in self.engine.scheduler.running]
        retract(self.engine, data.draw(st.sampled_from(running)))

    @rule(mode=st.sampled_from(["abort", "retract", "in_place"]))
    def pause(self, mode: PauseMode) -> None:
        self.engine.pause(mode)

    @rule()
    def go_on(self) -> None:
        self.engine.continue_generation()

    @rule()
    def flush(self) -> None:
        flushed = self.engine.flush_cache()
        assert flushed or self.engine.scheduler.running or self.engine.scheduler.waiting

    @invariant()
    def books_balance(self) -> None:
        self.engine.check_integrity()

    def teardown(self) -> None:
        """Everything that lives comes to its end."""
        self.engine.continue_generation()
        for _ in range(300):
            self.step()
        assert not self.live
        assert self.engine.idle
        assert self.engine.load.used_tokens == 0


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase


def test_a_drafter_that_fails_in_a_prefill_chunk_ends_its_request_alone() -> None:
    """A chunk that samples nothing asks no drafter; the rows that pad its step do not either."""
    machine = EngineMachine()
    machine.add(script=[], prompt=2)
    machine.step()
    machine.add(script=[], prompt=5)
    machine.break_the_seam_of("2", "drafter")
    machine.add(script=[], prompt=5)
    machine.teardown()
