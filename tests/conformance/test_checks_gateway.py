"""Checks that hold a gateway's answer against its worker's: pairs that differ in one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from stream_builder import (
    IDS,
    PROMPT,
    STOP,
    Reply,
    change,
    incremental,
    logprobs,
    named,
    refusal,
    whole,
    with_exchange,
)

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.judging.beside import side_by_side
from tokenwire.record import Finish, Stream
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison
from tokenwire.target.noise import Noise
from tokenwire.wire.exchange import Ending

TOLD = Reply(
    series={"output_token_logprobs": logprobs()},
    prompt_ids=PROMPT,
    prompt_series={"input_token_logprobs": [[None, 1, None], [-1.0, 2, None], [-2.0, 3, None]]},
)
WORKER = named(whole(TOLD, usage={"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}), "w")
GATEWAY = replace(WORKER, exchange=replace(WORKER.exchange, name="g"))
STREAMED = named(incremental(TOLD, sizes=[1, 2, 3]), "w")
RE_CUT = named(incremental(TOLD, sizes=[4, 2]), "g")


def seen(requirement: str, worker: Stream, gateway: Stream, *, repeats: bool = True) -> list[Observation]:
    check = CHECKS[f"gateway-keeps-{requirement}"].on_comparison
    assert check is not None
    return list(check(Comparison(worker, gateway, repeats), Target()))


def wrong(requirement: str, worker: Stream, gateway: Stream) -> int:
    """How many observations find fault. There has to be something to see."""
    observed = seen(requirement, worker, gateway)
    assert observed
    return sum(not observation.holds for observation in observed)


COMPARING = ("the-ids", "the-text", "the-series", "the-finish", "the-counts")


@pytest.mark.parametrize("requirement", [*COMPARING, "every-field", "the-status"])
@pytest.mark.parametrize(
    ("worker", "gateway"), [(WORKER, GATEWAY), (STREAMED, RE_CUT)], ids=["whole", "cut in another way"]
)
def test_what_is_passed_on_holds(requirement: str, worker: Stream, gateway: Stream) -> None:
    assert wrong(requirement, worker, gateway) == 0


def edited(**fields: Any) -> Callable[[Stream], Stream]:
    return lambda stream: change(stream, **fields)


@pytest.mark.parametrize(
    ("requirement", "edit"),
    [
        ("the-ids", edited(output_ids=[15, 17])),
        ("the-ids", edited(position=0, prompt_token_ids=[1, 2, 4])),
        ("the-text", edited(text="eF")),
        ("the-series", edited(series={"output_token_logprobs": [[-4.5, 15, None], [-5.6, 16, None]]})),
        ("the-finish", edited(finish=STOP)),
        ("the-finish", edited(finish=None)),
        ("the-finish", edited(finish=Finish("length", matched=7))),
        ("the-counts", edited(counters={"completion_tokens": 7})),
    ],
)
def test_what_is_changed_on_the_way_is_found(requirement: str, edit: Callable[[Stream], Stream]) -> None:
    assert wrong(requirement, STREAMED, edit(RE_CUT)) == 1


def test_prompt_series_are_compared_where_they_first_stand() -> None:
    changed = {"input_token_logprobs": [[None, 1, None], [-1.0, 2, None], [-9.0, 3, None]]}
    assert wrong("the-series", STREAMED, change(RE_CUT, position=0, prompt_series=changed)) == 1


def test_logprobs_may_differ_by_rounding() -> None:
    close = [[-4.50001, 15, None], [-5.5, 16, None]]
    assert wrong("the-series", STREAMED, change(RE_CUT, series={"output_token_logprobs": close})) == 0


def test_numbers_of_the_prompt_are_held_to_what_repetitions_show() -> None:
    moved = {"input_token_logprobs": [[None, 1, None], [-1.002, 2, None], [-2.0, 3, None]]}
    other = change(RE_CUT, position=0, prompt_series=moved)
    (found,) = (observation for observation in seen("the-series", STREAMED, other) if not observation.holds)
    assert found.by_chance
    check = CHECKS["gateway-keeps-the-series"].on_comparison
    assert check is not None
    assert all(
        observation.holds
        for observation in check(
            Comparison(STREAMED, other, noise=Noise({(STREAMED.dialect, "output_token_logprobs"): 0.002})),
            Target(),
        )
    )


@pytest.mark.parametrize("requirement", COMPARING)
def test_a_near_tie_explains_all_that_follows_from_it(requirement: str) -> None:
    """Another id was as likely, and with it the answer stops early."""
    other = named(incremental(replace(TOLD, ids=[*IDS[:3], 94], text="abcx", finish=STOP)), "g")
    lost = [
        observation
        for observation in seen(requirement, named(incremental(Reply()), "w"), other)
        if not observation.holds
    ]
    assert all(observation.by_chance for observation in lost)


def test_usage_is_counted_and_what_came_from_the_cache_is_not() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 10, "cached_tokens": 2}
    assert wrong("the-counts", WORKER, replace(GATEWAY, usage=usage)) == 1
    assert wrong("the-counts", WORKER, replace(GATEWAY, usage=usage | {"total_tokens": 9})) == 0


def test_a_choice_that_is_lost_was_not_finished() -> None:
    two = named(incremental(TOLD, TOLD), "w")
    single = replace(two, choices=two.choices[:1])
    assert wrong("the-finish", two, single) == 1
    assert wrong("the-ids", two, single) == 0


def test_an_event_that_is_lost_is_missed_by_what_it_carried() -> None:
    choice = RE_CUT.choices[0]
    cut = replace(RE_CUT, choices=(replace(choice, emissions=choice.emissions[:-1]),))
    assert [wrong(requirement, STREAMED, cut) for requirement in COMPARING] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("requirement", COMPARING)
def test_nothing_is_compared_where_one_side_does_not_repeat_itself(requirement: str) -> None:
    other = change(GATEWAY, output_ids=[1], text="z", finish=STOP)
    assert seen(requirement, WORKER, other, repeats=False) == []


@pytest.mark.parametrize("requirement", [*COMPARING, "every-field", "the-status"])
def test_a_worker_that_did_not_answer_to_the_end_proves_nothing(requirement: str) -> None:
    cut = with_exchange(WORKER, ending=Ending.TRUNCATED)
    failed = with_exchange(replace(WORKER, choices=()), status=500)
    assert seen(requirement, cut, GATEWAY) == []
    assert seen(requirement, failed, GATEWAY) == []


# Fields


def holding(*documents: Any) -> Stream:
    """An answer whose events hold these documents."""
    events = tuple(
        replace(incremental().events[index], data=document) for index, document in enumerate(documents)
    )
    return replace(incremental(), events=events)


FULL = {"choices": [{"text": "a", "meta_info": {"id": "x", "finish_reason": None}, "tool_calls": []}]}


@pytest.mark.parametrize(
    ("ours", "theirs", "lost"),
    [
        (FULL, {"choices": [{"text": "b", "meta_info": {"id": "y"}, "new": 1}]}, 0),
        (FULL, {"choices": [{"text": "a", "meta_info": {"id": None}}]}, 1),
        (FULL, {"choices": [{"text": "a"}]}, 1),
        ({"usage": {"cached_tokens": 3}}, {"usage": {"cached_tokens": None}}, 0),
        ({"usage": {"details": {"cached_tokens": 3}}}, {"usage": {"details": None}}, 0),
        ({"usage": {"details": {"cached_tokens": 3}}}, {"usage": {}}, 1),
        ({"top_logprobs": [{" a": -1.0}]}, {"top_logprobs": [{" b": -2.0}]}, 0),
        ({"top_logprobs": [{" a": -1.0}]}, {"top_logprobs": None}, 1),
        ({"top_logprobs": [{"logprob": -1.0, "bytes": [1]}]}, {"top_logprobs": [{"logprob": -1.0}]}, 1),
        ({"prompt_logprobs": [{"7": {"rank": 1}}]}, {"prompt_logprobs": [{"8": {"rank": 2}}]}, 0),
        ({"prompt_logprobs": [{"7": {"rank": 1}}]}, {"prompt_logprobs": [{"8": {"other": 2}}]}, 1),
    ],
    ids=[
        "others in their place, and more",
        "null in the place of something",
        "an object lost",
        "what came from the cache",
        "details of the cache",
        "details of the cache, lost",
        "tokens as names",
        "tokens as names, lost",
        "entries with names",
        "ids as names",
        "ids as names, and something lost",
    ],
)
def test_fields_that_hold_something_have_to_arrive(ours: Any, theirs: Any, lost: int) -> None:
    assert wrong("every-field", holding(ours), holding(theirs)) == lost


def test_fields_may_stand_in_other_events() -> None:
    assert wrong("every-field", holding({"a": 1}, {"b": 2}), holding({"b": 1, "a": 0})) == 0
    found = seen("every-field", holding({"a": 1}, {"b": 2}), holding({"b": 1}))
    assert "first /a" in found[-1].message


def test_a_lost_field_is_expected_and_missing_where_its_parent_is() -> None:
    ours = holding({"choices": [{"meta_info": {"id": "x", "a": 1, "b": 2}}]}, {"usage": 1})
    theirs = holding({"choices": [{"meta_info": {"id": "y"}}]}, {"usage": 1})
    (found,) = (one for one in seen("every-field", ours, theirs) if not one.holds)
    assert (found.expected, found.actual) == ("/choices/meta_info/a, /choices/meta_info/b", "missing")
    assert (found.place.event, found.place.pointer) == (0, "/choices/0/meta_info")
    many = holding({f"f{n}": 1 for n in range(7)})
    (found,) = (one for one in seen("every-field", many, holding({"g": 1})) if not one.holds)
    assert found.expected == "/f0, /f1, /f2, /f3, /f4 and 2 more"
    assert (found.actual, found.place.pointer) == ("missing", "")


def test_a_field_that_is_none_of_the_record_may_be_the_workers_own() -> None:
    ours = holding({"kv_transfer_params": {"a": 1}, "meta_info": {"weight_version": "1"}})
    found = {
        observation.message: (observation.holds, observation.level)
        for observation in seen("every-field", ours, holding({"new": 1}))
    }
    assert found == {
        "1 field of the worker's answer lost, first /meta_info/weight_version": (False, None),
        "1 field of the worker's answer lost, first /kv_transfer_params/a": (False, Level.SHOULD),
    }


# Refusals


def test_a_request_is_answered_with_the_status_of_the_worker() -> None:
    assert wrong("the-status", WORKER, refusal()) == 1
    assert wrong("the-status", refusal(), WORKER) == 1
    assert wrong("the-status", refusal(400), refusal(422)) == 1
    assert wrong("the-status", refusal(400), refusal(400)) == 0
    cut = with_exchange(replace(WORKER, choices=()), status=None, ending=Ending.UNREACHABLE)
    assert wrong("the-status", WORKER, cut) == 1
    for item in (401, 429, 503):
        assert seen("the-status", WORKER, refusal(item)) == []
    assert wrong("the-status", WORKER, refusal(404)) == 1


def test_the_words_of_the_worker_are_passed_on() -> None:
    ours = {"error": {"message": "input_ids cannot be empty."}}
    wrapped = {"error": "worker said: input_ids cannot be empty."}
    assert wrong("the-reason", refusal(error=ours), refusal(error=wrapped)) == 0
    assert wrong("the-reason", refusal(error=ours), refusal(error={"error": "Bad Request"})) == 1
    assert seen("the-reason", refusal(error={}), refusal()) == []
    assert seen("the-reason", refusal(), WORKER) == []


# Pairs


def asked_of(side: str, label: str, **changes: Any) -> Stream:
    stream = named(whole(Reply(), **changes), f"sglang-generate/{side}/{label}")
    return with_exchange(stream, scenario=side)


def test_pairs_are_made_by_label_and_repeat_where_both_sides_do() -> None:
    worker = [asked_of("worker", label) for label in ("whole", "whole-again", "other")]
    gateway = [asked_of("gateway", label) for label in ("whole", "whole-again")]
    pairs = side_by_side(worker, gateway)
    assert [(p.baseline.exchange.name, p.other.exchange.name, p.repeats) for p in pairs] == [
        ("sglang-generate/worker/whole", "sglang-generate/gateway/whole", True),
        ("sglang-generate/worker/whole-again", "sglang-generate/gateway/whole-again", True),
    ]
    assert not side_by_side(worker, gateway[:1])[0].repeats
    unlike = [worker[0], change(worker[1], output_ids=[9]), worker[2]]
    assert not side_by_side(unlike, gateway)[0].repeats
    keyless = [asked_of("worker", "whole", key=""), *worker[1:]]
    assert not side_by_side(keyless, gateway)[0].repeats


def test_an_interval_that_the_worker_keeps_is_kept_by_the_gateway() -> None:
    def cut(name: str, *sizes: int) -> Stream:
        many = Reply(ids=tuple(range(12)), text="x" * 12)
        return named(incremental(many, sizes=list(sizes), stream_interval=2), name)

    worker = cut("w", 2, 2, 2, 2, 2, 2)
    assert wrong("the-interval", worker, cut("g", 4, 2, 2, 4)) == 0
    assert wrong("the-interval", worker, cut("g", *[1] * 12)) == 1
    assert seen("the-interval", cut("w", *[1] * 12), cut("g", *[1] * 12)) == []
