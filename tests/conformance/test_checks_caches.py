"""What is counted as cached: when another key is no reason, and when nobody can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from abort_and_invariance_pairs import ADAPTED, PLAIN, SALTED, adapted, keyed
from control_calls import called
from stream_builder import PROMPT, change

from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.control import Action
from tokenwire.record import SentField, Stream

OTHER = keyed("two", 2, 8)


def observed(requirement: str, *streams: Stream, target: Target | None = None) -> list[bool]:
    on_run = CHECKS[requirement].on_run
    assert on_run is not None
    return [seen.holds for seen in on_run(streams, target or Target())]


def asked(stream: Stream, **fields: object) -> Stream:
    return replace(stream, asked=replace(stream.asked, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"input_ids": ((*PROMPT, 9),)}, "goes on from the prompt"),
        ({"input_ids": (PROMPT[:1],)}, "its output may be the rest of the prompt"),
        ({"input_ids": None, "prompt_key": "text"}, "a text whose ids nobody knows"),
    ],
)
def test_what_the_same_key_may_have_run_is_its_own(fields: dict[str, object], why: str) -> None:
    mine = asked(keyed("two", 0, 4), **fields)
    assert observed("cached-tokens-keep-to-their-key", *SALTED, mine, OTHER) == [], why


def test_an_unlike_prompt_under_the_same_key_ran_nothing_of_it() -> None:
    unlike = asked(keyed("two", 0, 4), input_ids=((7, 8, 9),))
    assert observed("cached-tokens-keep-to-their-key", *SALTED, unlike, OTHER) == [False]


def test_what_nobody_in_the_run_computed_came_from_before_it() -> None:
    warm = keyed("one", 2, 0), keyed("one", 2, 2)
    assert observed("cached-tokens-keep-to-their-key", *warm, OTHER) == []


def test_a_server_that_counts_nothing_shows_no_isolation() -> None:
    silent = keyed("one", 0, 0), keyed("one", 0, 2)
    assert observed("cached-tokens-keep-to-their-key", *silent, keyed("two", 0, 4)) == []


def test_what_a_preempted_request_counts_may_be_its_own() -> None:
    preempted = change(OTHER, counters={"num_retractions": 1})
    assert observed("cached-tokens-keep-to-their-key", *SALTED, preempted) == []


def test_a_flush_that_was_refused_divides_nothing() -> None:
    refused = Target(calls=(called(Action.FLUSH, 5, status=400),))
    streams = (*SALTED, keyed("one", 2, 6))
    assert observed("flushed-tokens-are-not-counted", *streams, target=refused) == []


def test_what_a_flush_met_may_have_run_after_it() -> None:
    flushed = Target(calls=(called(Action.FLUSH, 5),))
    met = asked(keyed("one", 0, 4.5), input_ids=((*PROMPT, 9),))
    over = asked(keyed("one", 0, 3.5), input_ids=((*PROMPT, 9),))
    for beside, seen in ((met, []), (over, [False])):
        streams = (*SALTED, beside, keyed("one", 2, 6))
        assert observed("flushed-tokens-are-not-counted", *streams, target=flushed) == seen


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, [False]),
        ({"adapter": SentField("lora_path", (["first"],)), "batch": True}, [False]),
        ({"adapter": None, "model": "tiny:first"}, [False]),
        ({"adapter": SentField("lora_path", (["first", None],)), "prompts": 2}, []),
        ({"adapter": SentField("lora_path", ("loaded-since",))}, []),
    ],
)
def test_an_adapter_is_known_however_it_is_named(fields: dict[str, object], seen: list[bool]) -> None:
    shared = asked(adapted("first", 2, 4), **fields)
    observations = observed("cached-tokens-keep-to-their-adapter", *PLAIN, shared, target=ADAPTED)
    assert observations == seen


def test_what_several_adapters_may_have_run_is_nobodys() -> None:
    batch = asked(adapted("first", 0, 3), prompts=2, adapter=SentField("lora_path", (["first", "second"],)))
    streams = (*PLAIN, batch, adapted("second", 2, 4))
    assert observed("cached-tokens-keep-to-their-adapter", *streams, target=ADAPTED) == []


def test_a_server_without_adapters_has_no_sides() -> None:
    streams = (*PLAIN, adapted("first", 2, 4))
    assert observed("cached-tokens-keep-to-their-adapter", *streams) == []


def test_words_are_one_prompt_whichever_model_has_them() -> None:
    worded = [
        asked(stream, input_ids=None, prompt_key=f'["{model}", {{"text": "a"}}]')
        for stream, model in zip(
            (*PLAIN, adapted("first", 2, 4, named="model")), ("tiny", "tiny", "first"), strict=True
        )
    ]
    assert observed("cached-tokens-keep-to-their-adapter", *worded, target=ADAPTED) == [False]


@pytest.mark.parametrize("named", [["first"], [{"name": "first"}], {"name": "first"}, 7, [[]]])
def test_whatever_names_an_adapter_crashes_no_check(named: object) -> None:
    odd = asked(adapted("first", 2, 0), adapter=SentField("lora_path", (named,)), model="first")
    names = CHECKS["answer-names-its-adapter"].on_stream
    assert names is not None
    assert list(names(odd, ADAPTED)) == []
    observed("cached-tokens-keep-to-their-adapter", *PLAIN, asked(odd, model=""), target=ADAPTED)
