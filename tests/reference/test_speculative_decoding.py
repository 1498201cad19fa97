"""Drafts change how many tokens a step gives, never which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_requests import GREEDY, SEEDED, neighbours, record, scored
from hypothesis import given
from hypothesis import strategies as st

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import FinishReason, Request
from tokenwire_reference.extras.ngram_drafts import LONGEST, NgramDrafter
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]
REPETITIVE = {5: 14.0, 6: 14.0, 7: 14.0}
"""A bias under which the tiny model repeats itself often, but not always."""


def count_steps(engine: Engine, *requests: Request) -> int:
    for request in requests:
        engine.add(request)
    steps = 0
    while not engine.idle:
        engine.step()
        engine.check_integrity()
        steps += 1
        # Accepted drafts are not computed again.
        generating = [exchange for exchange in engine.scheduler.running if exchange.request.output_ids]
        assert all(item.computed == len(item.token_ids) - 1 for item in generating)
    return steps


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ids_and_logprobs_are_those_of_plain_decoding(
    device: str, dtype: str, sampling: dict[str, Any]
) -> None:
    model = load_model("builtin:tiny", dtype=dtype, device=device)
    options = {"new": 60, "logit_bias": REPETITIVE, **sampling}
    plain, drafted = scored(**options), scored(**options)
    slow = count_steps(make_engine(model, EngineArgs(sampling_backend="mirror")), plain)
    engine = make_engine(
        model, EngineArgs(sampling_backend="mirror", speculative_num_draft_tokens=4, chunked_prefill_size=32)
    )
    fast = count_steps(engine, *neighbours(5), drafted)
    assert record(drafted) == record(plain)
    assert drafted.series["mirror_token_id"] == drafted.output_ids
    first = len(drafted.prompt_token_ids) - 1
    assert drafted.series["mirror_position"] == list(range(first, first + 60))
    assert fast < slow - 5


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"min_new_tokens": 9, "stop_token_ids": (5, 6)},
        {"stop_token_ids": (7,)},
        {"stop": ('!"!',)},
        {"new": 1},
        {"new": 2},
    ],
    ids=str,
)
def test_rules_look_at_each_accepted_token(
    tiny: LoadedModel, run_to_end: Run, options: dict[str, Any]
) -> None:
    options = {"new": 40, "logit_bias": REPETITIVE, **options}
    (plain,) = run_to_end(make_engine(tiny), scored(**options))
    (drafted,) = run_to_end(make_engine(tiny, EngineArgs(speculative_num_draft_tokens=5)), scored(**options))
    assert record(drafted) == record(plain)


def test_a_stop_in_the_middle_of_drafts_ends_there(tiny: LoadedModel, run_to_end: Run) -> None:
    engine = make_engine(tiny, EngineArgs(speculative_num_draft_tokens=8))
    constant = {"logit_bias": {5: 1000.0}, "logprob_start_len": -1}
    for new in range(6):
        (request,) = run_to_end(engine, scored(new=new, prompt=(5,) * 20, **constant))
        assert (request.output_ids, request.finish) == ([5] * new, FinishReason("length", length=new))
    engine = make_engine(tiny, EngineArgs(speculative_num_draft_tokens=8))
    request = scored("s", new=50, prompt=(5,) * 20, stop=('"""""',), **constant)
    assert tiny.tokenizer.decode([5] * 5) == '"""""'
    assert count_steps(engine, request) == 1
    assert (request.output_ids, request.finish) == ([5] * 5, FinishReason("stop", matched='"""""'))


def test_retraction_is_invisible_with_drafts(tiny: LoadedModel, run_to_end: Run) -> None:
    options = {"new": 40, "logit_bias": REPETITIVE}
    page_size = 4 if tiny.device.type == "cpu" else 16
    (plain,) = run_to_end(make_engine(tiny, EngineArgs(page_size=page_size)), scored(**options))
    for caching in (True, False):
        engine = make_engine(
            tiny,
            EngineArgs(
                speculative_num_draft_tokens=3,
                test_retract_interval=4,
                prefix_caching=caching,
                page_size=page_size,
            ),
        )
        (disturbed,) = run_to_end(engine, scored(**options))
        assert disturbed.num_retractions > 3
        assert record(disturbed) == record(plain)


def expected_draft(ids: Sequence[int], count: int) -> list[int]:
    """By the book: the last earlier place of the longest n-gram that stands at the end."""
    for n in range(min(LONGEST, len(ids)), 0, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if list(ids[end - n : end]) == list(ids[-n:]):
                again = list(ids)
                for place in range(end, end + count):
                    again.append(again[place])
                return again[len(ids) :]
    return []


@given(
    start=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    more=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=5),
    count=st.integers(1, 4),
    room=st.integers(0, 5),
)
def test_drafts_are_what_followed_before(
    start: list[int], more: list[list[int]], count: int, room: int
) -> None:
    drafter = NgramDrafter(count)
    ids = list(start)
    for tail in [[], *more]:
        ids += tail
        assert list(drafter.draft(ids, room)) == expected_draft(ids, min(count, room))
