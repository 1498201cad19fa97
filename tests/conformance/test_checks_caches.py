"""What is counted as cached: when another key is no reason, and when nobody can tell."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from abort_and_invariance_pairs import (
    ADAPTED,
    COLD,
    DRAWN_IDS,
    PLAIN,
    SALTED,
    WARM,
    adapted,
    drawn,
    keyed,
)
from control_calls import called, sent_at
from stream_builder import PROMPT, change, incremental, named, whole, with_exchange

from tokenwire import scenarios
from tokenwire.ask import SentField
from tokenwire.asking.scenario import load_scenarios
from tokenwire.checks.caches import DRAWN_PROMPTS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.control import Action
from tokenwire.judging.run import Run
from tokenwire.record import Stream

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
    ("changed", "seen"),
    [
        ({}, [False]),
        ({"cache_key": ""}, [False]),
        ({"input_ids": None, "prompt_key": '["m", {"text": "a"}]'}, [False]),
        ({"input_ids": None, "prompt_key": '["m", {"text": "a"}]', "cache_key": ""}, []),
    ],
)
def test_words_are_new_under_a_new_salt_alone(changed: dict[str, object], seen: list[bool]) -> None:
    """Their template is not."""
    new = "new-prompts-are-not-cached"
    assert observed(new, asked(drawn(20), **changed)) == seen
    assert observed(new, change(drawn(20), counters={"num_retractions": 1})) == []
    assert observed(new, keyed("new", 20, 0)) == []


@pytest.mark.parametrize(
    ("label", "later"),
    [
        ("cache-keys/first", "cache-keys/again"),
        ("adapters/none", "adapters/none-again"),
        ("cold-and-warm/cold-129", "cold-and-warm/warm-129"),
    ],
)
def test_the_first_request_for_each_drawn_prompt_is_looked_at(label: str, later: str) -> None:
    """Four named requests were, and 36 others may have told that all of their prompt was cached."""
    new = "new-prompts-are-not-cached"
    first = in_scenario(drawn(20), label)
    other = in_scenario(keyed("two", 0, -5), "probe/other")
    assert observed(new, other, first) == [False]
    assert observed(new, other, in_scenario(drawn(20), later)) == [], "asked before"
    shared = (*DRAWN_IDS[:9], 1)
    assert observed(new, asked(other, input_ids=(shared,)), first) == [], "it was brought by another request"
    assert observed(new, first, sent_at(asked(other, input_ids=(shared,)), 9)) == [False], "but later"
    by_chance = (*DRAWN_IDS[:8], 1)
    assert observed(new, asked(other, input_ids=(by_chance,)), first) == [False]


@pytest.mark.parametrize("drawn_ids", [True, False])
def test_a_text_ran_no_drawn_ids(*, drawn_ids: bool) -> None:
    """A leak of all 320 ids was excused by any text of that length, under no salt."""
    label = "cache-keys/by-hand" if drawn_ids else "cached-prompt/by-hand"
    salted = [
        asked(in_scenario(stream, f"{label}-{place}"), input_ids=(DRAWN_IDS,))
        for place, stream in enumerate((*SALTED, keyed("two", 20, 8)))
    ]
    text = asked(keyed("two", 0, 4), input_ids=None, prompt_key="text")
    seen = observed("cached-tokens-keep-to-their-key", *salted, text)
    assert seen == ([False] if drawn_ids else [])


def in_scenario(stream: Stream, name: str) -> Stream:
    """The answer, to a request of that label in that scenario."""
    return with_exchange(named(stream, name), scenario=name.partition("/")[0])


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, [False]),
        ({"adapter": SentField("lora_path", (["first"],)), "batch": True}, [False]),
        ({"adapter": None, "model": "first"}, [False]),
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


OF_OTHER_WEIGHTS = change(WARM, output_ids=[11, 12, 13, 14, 15, 9])
UPDATED = Target(calls=(called(Action.UPDATE, 5),))


@pytest.mark.parametrize(
    ("times", "seen"), [((0, 6), []), ((0, 4.5), []), ((4.5, 4.8), []), ((6, 8), [False]), ((0, 2), [False])]
)
def test_other_weights_are_no_difference_of_the_cache(times: tuple[float, float], seen: list[bool]) -> None:
    """Nor is what an update met."""
    cold, warm = (
        sent_at(stream, seconds) for stream, seconds in zip((COLD, OF_OTHER_WEIGHTS), times, strict=True)
    )
    again = sent_at(change(COLD, counters={"cached_tokens": 0}), 0)
    found = observed("cache-changes-nothing", again, cold, warm, target=UPDATED)
    assert [holds for holds in found if not holds] == seen


def test_a_stream_is_compared_with_no_answer_of_other_weights() -> None:
    whole_answer, stream = sent_at(whole(), 0), sent_at(incremental(), 6)
    run = Run((whole_answer, named(stream, "generate/stream")))
    assert len(run.comparisons) == 1
    assert replace(run, calls=(called(Action.UPDATE, 5),)).comparisons == []
    assert len(replace(run, calls=(called(Action.UPDATE, 8),)).comparisons) == 1


def test_other_weights_are_no_doubt_whether_a_server_repeats_itself() -> None:
    twins = (sent_at(whole(), 0), sent_at(named(change(whole(), output_ids=[9] * 6), "generate/other"), 6))
    assert Run(twins).determinism.contradicted == {"key"}
    assert not Run(twins, calls=(called(Action.UPDATE, 5),)).determinism.contradicted


_NOT_NEW = {
    "script-again": "its words come behind a preamble that all scripts share",
    "schedules": "it draws names of batches, and no prompt",
}


def _drawing() -> set[str]:
    """The scenarios that draw anything but an id for the run, by themselves or through a function."""
    drawing: set[str] = set()
    for path in Path(scenarios.__file__).parent.glob("*.py"):
        functions = {
            found.name: found
            for found in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        uses = {
            name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for name, function in functions.items()
        }
        draws = {
            name
            for name, function in functions.items()
            if any(isinstance(node, ast.Attribute) and node.attr == "draw" for node in ast.walk(function))
        }
        while more := {name for name, used in uses.items() if used & draws} - draws:
            draws |= more
        decorated = {name for name in draws if functions[name].decorator_list}
        drawing |= {name.strip("_").replace("_", "-") for name in decorated}
    return drawing


def test_every_scenario_that_draws_its_prompts_is_looked_at_for_a_leak() -> None:
    """Four requests were named, and 36 first ones of another scenario could be told as cached."""
    assert _drawing() - _NOT_NEW.keys() == DRAWN_PROMPTS.keys()
    assert load_scenarios().keys() >= DRAWN_PROMPTS.keys()
