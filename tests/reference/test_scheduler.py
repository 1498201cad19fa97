"""Every position is computed once, in order, within the budget, first come first served."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire_reference.core.kv import PagePool
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.scheduler import Scheduler, Segment, Sequence
from tokenwire_reference.core.stopping import StopRules

PAGE, CHUNK = 4, 8


def sequence(rid: str, prompt_len: int, max_new_tokens: int, **options: Any) -> Sequence:
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    prompt = tuple(range(prompt_len))
    request = Request(rid, prompt, sampling, **options)
    return Sequence(request, StopRules(sampling, frozenset(), max_new_tokens, None), list(prompt))


def run_step(scheduler: Scheduler, step: list[Segment]) -> None:
    """Do what the engine does, with id 7 sampled everywhere."""
    sampling = [segment.sequence for segment in step if segment.samples]
    for segment in step:
        scheduler.advance(segment)
    for running in sampling:
        if running.rules.max_new_tokens:
            running.request.append(7, {}, {})
            running.token_ids.append(7)
        if running.rules.check(running.request.output_ids):
            scheduler.remove(running)


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), min_size=1, max_size=12),
    pages=st.integers(12, 30),
    most=st.integers(1, 5),
    data=st.data(),
)
def test_every_position_is_computed_once_in_order(
    shapes: list[tuple[int, int]], pages: int, most: int, data: st.DataObject
) -> None:
    scheduler = Scheduler(PagePool(pages, PAGE), max_running_requests=most, chunked_prefill_size=CHUNK)
    sequences = [sequence(f"r{i}", prompt, new) for i, (prompt, new) in enumerate(shapes)]
    for item in sequences:
        scheduler.add(item)
    reached = {exchange.request.rid: 0 for exchange in sequences}
    admitted: list[str] = []
    for _ in range(1000):
        step = scheduler.next_step()
        if not step:
            break
        assert sum(segment.end - segment.start for segment in step) <= scheduler.max_step_tokens
        assert len(scheduler.running) <= most
        for segment in step:
            rid = segment.sequence.request.rid
            first = rid not in admitted
            if first:
                admitted.append(rid)
            if segment.sequence.request.num_retractions == 0:
                assert segment.start == (segment.sequence.request.cached_tokens if first else reached[rid])
            reached[rid] = segment.end
            assert segment.end == len(segment.sequence.token_ids) or segment.end % CHUNK == 0
            assert (segment.end - 1) // CHUNK == segment.start // CHUNK
        run_step(scheduler, step)
        scheduler.check_integrity()
        if scheduler.running and data.draw(st.integers(0, 9)) == 0:
            scheduler.retract(data.draw(st.sampled_from(scheduler.running)))
            scheduler.check_integrity()
    assert admitted == [exchange.request.rid for exchange in sequences]
    assert [len(exchange.request.output_ids) for exchange in sequences] == [new for _, new in shapes]
    assert scheduler.pool.available == pages - 1


def test_decodes_come_first_and_prefill_takes_what_is_left() -> None:
    scheduler = Scheduler(PagePool(40, PAGE), max_running_requests=3, chunked_prefill_size=CHUNK)
    first, second, third = sequence("a", 3, 5), sequence("b", 20, 5), sequence("c", 20, 5)
    scheduler.add(first)
    run_step(scheduler, scheduler.next_step())
    scheduler.add(second)
    scheduler.add(third)
    spans = [(s.sequence.request.rid, s.start, s.end) for s in scheduler.next_step()]
    assert spans == [("a", 3, 4), ("b", 0, 8)]


def test_a_large_call_does_not_make_its_neighbours_wait() -> None:
    """4,096 sequences of one call wait; who comes then is admitted in the next step, and takes turns."""
    scheduler = Scheduler(PagePool(2000, PAGE), max_running_requests=16, chunked_prefill_size=CHUNK * 4)
    for index in range(4096):
        scheduler.add(sequence(f"large-{index}", 2, 40, group="large"))
    run_step(scheduler, scheduler.next_step())
    assert len(scheduler.running) == 15, "one seat is kept for others"
    for name in ("b", "c"):
        for index in range(3):
            scheduler.add(sequence(f"{name}-{index}", 2, 4, group=name))
    order: list[str] = []
    for _ in range(200):
        before = {running.request.rid for running in scheduler.running}
        run_step(scheduler, scheduler.next_step())
        scheduler.check_integrity()
        order += [s.request.rid for s in scheduler.running if s.request.rid not in before]
    others = [rid for rid in order if not rid.startswith("large")]
    assert order[0] == "b-0"
    assert sorted(order.index(rid) for rid in others) == list(range(6)), (
        "the large call has all seats it may have"
    )
    assert others == ["b-0", "c-0", "b-1", "c-1", "b-2", "c-2"]
    assert len(order) > 40, "and goes on"


def test_calls_of_one_sequence_are_served_in_order_of_arrival() -> None:
    scheduler = Scheduler(PagePool(200, PAGE), max_running_requests=2, chunked_prefill_size=CHUNK)
    for group in "abc":
        for index in range(2):
            scheduler.add(sequence(f"{group}{index}", 2, 1, group=group))
    scheduler.add(sequence("alone", 2, 1))
    order = []
    while step := scheduler.next_step():
        order += [segment.sequence.request.rid for segment in step]
        run_step(scheduler, step)
    assert order == ["a0", "b0", "c0", "alone", "a1", "b1", "c1"]


def test_a_retracted_sequence_is_first_in_line_again() -> None:
    scheduler = Scheduler(PagePool(200, PAGE), max_running_requests=1, chunked_prefill_size=CHUNK)
    for rid, group in (("a0", "a"), ("b0", "b"), ("a1", "a")):
        scheduler.add(sequence(rid, 2, 5, group=group))
    run_step(scheduler, scheduler.next_step())
    assert [exchange.request.rid for exchange in scheduler.waiting] == ["b0", "a1"]
    scheduler.retract(scheduler.running[0])
    assert [exchange.request.rid for exchange in scheduler.waiting] == ["a0", "a1", "b0"]
    scheduler.check_integrity()


def test_a_request_waits_until_all_its_pages_are_there() -> None:
    scheduler = Scheduler(PagePool(7, PAGE), max_running_requests=3, chunked_prefill_size=CHUNK)
    scheduler.add(sequence("a", 4, 13))
    scheduler.add(sequence("b", 4, 9))
    scheduler.add(sequence("c", 1, 1))
    assert [s.sequence.request.rid for s in scheduler.next_step()] == ["a"]
    assert [exchange.request.rid for exchange in scheduler.waiting] == ["b", "c"]


def test_a_request_that_no_pool_holds_is_refused() -> None:
    scheduler = Scheduler(PagePool(3, PAGE), max_running_requests=3, chunked_prefill_size=CHUNK)
    scheduler.add(sequence("fits", 4, 5))
    with pytest.raises(ValueError, match="may need 9 positions of the KV cache, which holds 8"):
        scheduler.add(sequence("too-long", 4, 6))


@pytest.mark.parametrize("tokens", [0, -PAGE, PAGE + 1])
def test_a_prefill_runs_whole_pages(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"chunked_prefill_size is {tokens}; it must be a multiple of"):
        Scheduler(PagePool(3, PAGE), max_running_requests=1, chunked_prefill_size=tokens)


def test_prompt_logprobs_limit_the_reuse_of_a_prefix() -> None:
    scheduler = Scheduler(PagePool(40, PAGE), max_running_requests=3, chunked_prefill_size=32)
    scheduler.add(sequence("a", 24, 1))
    run_step(scheduler, scheduler.next_step())
    for start, cached in ((-1, 20), (0, 0), (3, 0), (8, 4), (9, 8), (23, 20), (24, 20)):
        series = {"input_token_logprobs": [[None, start, None]] if start == 0 else []}
        again = sequence("b", 24, 1, return_logprob=True, logprob_start_len=start, prompt_series=series)
        scheduler.add(again)
        (segment,) = scheduler.next_step()
        assert (segment.start, again.request.cached_tokens) == (cached, cached), start
        first = max(start - 1, 0) if 0 <= start < 24 else 23
        assert segment.prompt_logprob_positions == range(first, 23), start
        run_step(scheduler, [segment])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_running_requests": 0, "chunked_prefill_size": CHUNK}, "max_running_requests is 0"),
        ({"max_running_requests": 1, "chunked_prefill_size": 6}, "multiple of the page size 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduler(PagePool(9, PAGE), **options)


def test_who_schedules_and_emits_needs_no_torch() -> None:
    modules = "kv", "scheduler", "stopping", "output_streamer"
    imports = "; ".join(f"import tokenwire_reference.core.{module}" for module in modules)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
