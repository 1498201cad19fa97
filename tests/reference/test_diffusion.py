"""builtin:diffusion settles ids in blocks, and gives what is settled, in order and once."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from engine_requests import ask, record

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.request import Request
from tokenwire_reference.extras.diffusion import BLOCK, DIFFUSION, settle
from tokenwire_reference.loading import load_model

PROMPT = tuple(range(20, 33))


def engine(**args: Any) -> Engine:
    return make_engine(load_model(DIFFUSION), EngineArgs(**args))


def steps(running: Engine, request: Request) -> list[int]:
    """How many ids each step gave."""
    running.add(request)
    given: list[int] = []
    while not running.idle:
        running.step()
        given.append(len(request.output_ids) - sum(given))
    return given


def test_a_step_gives_what_is_left_of_a_block() -> None:
    request = ask("r", PROMPT, 30, ignore_eos=True)
    first = BLOCK - len(PROMPT) % BLOCK
    assert steps(engine(), request) == [first, BLOCK, BLOCK, BLOCK, 30 - 3 * BLOCK - first]
    assert request.finish is not None
    assert (request.finish.type, len(request.output_ids)) == ("length", 30)


def test_ids_settle_in_another_order_than_they_are_delivered_in() -> None:
    """What stands behind an id shaped it: alone in its place, it is another."""
    ids, logits = settle(5, 8, ())
    assert len(ids) == len(logits) == BLOCK
    assert [int(row.argmax()) for row in logits] == list(ids)
    again, _ = settle(5, 8, ids[:3])
    assert again == ids
    other, _ = settle(5, 8, (*ids[:2], ids[2] + 1))
    assert other[:3] == (*ids[:2], ids[2] + 1)
    assert other[3:] != ids[3:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_neighbours_chunks_and_retractions_change_nothing(temperature: float) -> None:
    def requests() -> list[Request]:
        return [
            ask(
                f"{n}",
                PROMPT[n:],
                40,
                ignore_eos=True,
                temperature=temperature,
                sampling_seed=n,
                return_logprob=True,
            )
            for n in range(4)
        ]

    alone = []
    for request in requests():
        steps(engine(), request)
        alone.append(record(request))
    for args in ({}, {"test_retract_interval": 2}, {"chunked_prefill_size": 16}, {"max_running_requests": 2}):
        running, together = engine(**args), requests()
        for request in together:
            running.add(request)
        while not running.idle:
            running.step()
        assert list(map(record, together)) == alone, args


def test_what_stands_behind_a_stop_in_a_block_never_leaves() -> None:
    free = ask("free", PROMPT, 30, ignore_eos=True)
    given = steps(engine(), free)
    inside = next(end - 3 for end, size in zip(accumulate(given), given, strict=True) if size == BLOCK)
    stop = free.output_ids[inside]
    first = free.output_ids.index(stop)
    request = ask("r", PROMPT, 30, ignore_eos=True, stop_token_ids=(stop,))
    steps(engine(), request)
    assert request.finish is not None
    assert (request.finish.type, request.output_ids) == ("stop", free.output_ids[: first + 1])


def test_an_id_that_a_bias_brings_into_a_block_changes_what_settles_behind_it() -> None:
    free = ask("free", PROMPT, 16, ignore_eos=True)
    steps(engine(), free)
    biased = ask("b", PROMPT, 16, ignore_eos=True, logit_bias={40: 100.0})
    assert steps(engine(), biased) == [1] * 16
    assert set(biased.output_ids) == {40}


def test_logprobs_of_a_prompt_are_those_of_the_block_it_was_written_in() -> None:
    written = ask("w", PROMPT, 20, ignore_eos=True, return_logprob=True)
    steps(engine(), written)
    scored = ask(
        "s", (*PROMPT, *written.output_ids), 1, return_logprob=True, logprob_start_len=len(PROMPT) - 1
    )
    steps(engine(), scored)
    found = [entry[0] for entry in scored.prompt_series["input_token_logprobs"]][-20:]
    assert found == pytest.approx([entry[0] for entry in written.series["output_token_logprobs"]])


def test_a_script_is_for_the_scripted_model() -> None:
    with pytest.raises(ValueError, match=r"script is for builtin:scripted"):
        engine().add(ask("r", PROMPT, 4, custom_params={"script": [[5]]}))
    with pytest.raises(ValueError, match="needs the model builtin:scripted"):
        load_model(DIFFUSION, script="script.json")
