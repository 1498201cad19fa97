"""A target that says nothing earns nothing: no check may be satisfied by an answer without a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stream_builder import PROMPT, incremental, refusal, whole, with_exchange

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.record import Delivery, Stream
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending

TARGET = Target(stream_interval=4, advertised_delivery=Delivery.INCREMENTAL)


def without_record(stream: Stream) -> Stream:
    return replace(stream, choices=())


ONLY_DONE = replace(without_record(incremental()), events=incremental().events[-1:])
HOLLOW = {
    "no events": replace(without_record(incremental()), events=()),
    "only the end mark": ONLY_DONE,
    "a stream of {}": without_record(incremental()),
    "a document {}": without_record(whole()),
    "an error in a stream": replace(without_record(incremental()), error={"message": "no", "code": 500}),
    "status 500": with_exchange(without_record(whole()), status=500),
    "status 404": refusal(404),
    "status 401": refusal(401),
    "nothing": with_exchange(
        replace(without_record(incremental()), events=()), status=None, ending=Ending.UNREACHABLE
    ),
    "a hang": with_exchange(replace(without_record(whole()), events=()), ending=Ending.TIMEOUT),
}
ASKED = {
    "plain": {},
    "everything": {
        "logprobs": True,
        "top_logprobs": 2,
        "chosen_ids": (5,),
        "logprob_start": 0,
        "return_prompt_token_ids": True,
        "return_token_ids": True,
        "return_meta_info": True,
        "stop": ("x",),
        "text_prompt": True,
    },
    "nothing to generate": {"max_new_tokens": 0},
    "a batch": {"input_ids": (PROMPT, PROMPT), "prompts": 2, "batch": True, "return_prompt_token_ids": True},
}


def everything_seen(stream: Stream) -> list[tuple[str, Observation]]:
    """What all checks see in a stream, in itself compared with itself, and in a run of it alone."""
    seen: list[tuple[str, Observation]] = []
    for check in CHECKS.values():
        found: list[Observation] = []
        if check.on_stream is not None:
            found += check.on_stream(stream, TARGET)
        if check.on_comparison is not None:
            found += check.on_comparison(Comparison(stream, stream), TARGET)
        if check.on_run is not None:
            found += check.on_run((stream, stream), TARGET)
        seen += [(check.requirement, observation) for observation in found]
    return seen


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("dialect", ["sglang-generate", "sglang-chat"])
@pytest.mark.parametrize("hollow", HOLLOW.values(), ids=HOLLOW)
def test_an_answer_without_a_record_satisfies_no_check(
    hollow: Stream, dialect: str, asked: dict[str, object]
) -> None:
    stream = replace(hollow, dialect=dialect, asked=replace(hollow.asked, **asked))
    assert [requirement for requirement, seen in everything_seen(stream) if seen.holds] == []


def test_no_events_are_not_looked_at() -> None:
    assert everything_seen(HOLLOW["nothing"]) == []


def test_a_refusal_satisfies_only_what_speaks_of_refusals() -> None:
    of_gateways = {"gateway-keeps-the-status", "gateway-keeps-the-reason"}
    of_refusals = {
        "errors-keep-internals",
        "refusal-is-json",
        "refusals-have-one-shape",
        "refused-answer-delivers-nothing",
    }
    assert {name for name, _ in everything_seen(refusal())} == of_refusals | of_gateways


def test_a_document_without_choices_is_missed() -> None:
    violated = {name for name, seen in everything_seen(HOLLOW["a document {}"]) if not seen.holds}
    assert violated == {"choices-complete"}


def test_a_stream_of_only_the_end_mark_is_missed() -> None:
    violated = {name for name, seen in everything_seen(ONLY_DONE) if not seen.holds}
    assert violated == {"choices-complete"}


def test_a_stream_that_was_given_up_by_the_suite_is_not_blamed() -> None:
    stream = with_exchange(
        replace(incremental(stream_interval=1), events=incremental().events[:3]), ending=Ending.CANCELLED
    )
    choice = stream.choices[0]
    cut = replace(stream, choices=(replace(choice, emissions=choice.emissions[:3]),))
    assert [name for name, seen in everything_seen(cut) if not seen.holds] == []
