"""What pairs do not show of errors, usage and finishes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from finish_and_error_pairs import AT_THE_END, COUNTS, FAILED, USAGE_EVENT, asking, told_usage, with_error
from stream_builder import Reply, change, incremental, named, refusal, whole, with_exchange

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import SentField
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.record import Finish, Stream
from tokenwire.target.advertised import Advertised
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending


def seen(requirement: str, subject: Stream, target: Target | None = None) -> list[Observation]:
    check = CHECKS[requirement].on_stream
    assert check is not None
    return list(check(subject, target or Target()))


def run(requirement: str, *streams: Stream, target: Target | None = None) -> list[Observation]:
    check = CHECKS[requirement].on_run
    assert check is not None
    return list(check(streams, target or Target()))


def broken(*streams: Stream) -> list[str]:
    found = run("requests-do-not-break-the-server", whole(), *streams)
    return [observation.message for observation in found if not observation.holds]


@pytest.mark.parametrize("status", [501, 503])
def test_a_server_that_is_full_or_does_not_offer_something_is_well(status: int) -> None:
    assert broken(with_exchange(replace(whole(), choices=()), status=status)) == []


def test_a_hang_and_a_cut_answer_are_failures_of_the_server() -> None:
    empty = replace(whole(), choices=(), events=())
    hung = with_exchange(empty, ending=Ending.TIMEOUT, detail="not over after 5 s")
    cut = with_exchange(empty, ending=Ending.TRUNCATED, detail="3 bytes are missing")
    stalled = with_exchange(incremental(), ending=Ending.TIMEOUT, detail="not over after 5 s")
    babbled = with_exchange(empty, ending=Ending.OUTGROWN, detail="the body outgrew 9 lines")
    assert broken(babbled) == [
        "the request ended in a failure of the server (outgrown: the body outgrew 9 lines)"
    ]
    assert broken(stalled) == ["the request ended in a failure of the server (timeout: not over after 5 s)"]
    assert broken(hung) == ["the request ended in a failure of the server (timeout: not over after 5 s)"]
    assert broken(cut) == ["the request ended in a failure of the server (truncated: 3 bytes are missing)"]


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.HUNG_UP])
def test_what_the_suite_ended_is_no_failure_of_the_server(ending: Ending) -> None:
    assert broken(with_exchange(replace(whole(), choices=(), events=()), ending=ending)) == []


def test_a_cut_stream_belongs_to_another_requirement() -> None:
    assert broken(with_exchange(incremental(), ending=Ending.TRUNCATED)) == []


def test_an_error_inside_an_answer_counts_by_its_code() -> None:
    assert broken(with_error(incremental(), FAILED, 5)) == [
        "the request ended in a failure of the server (status 502)"
    ]
    aborted = whole(Reply(finish=Finish("abort", code=500)))
    assert broken(aborted) == ["the request ended in a failure of the server (status 500)"]
    assert broken(with_error(incremental(), FAILED | {"code": 400}, 5)) == []


def test_a_target_that_never_gave_a_record_is_not_judged_by_its_silence() -> None:
    assert run("requests-do-not-break-the-server", refusal(500), refusal(400)) == []


@pytest.mark.parametrize(
    ("message", "holds"),
    [
        ("max_new_tokens must be at least 0", True),
        ("sampling_params.max_new_tokens: too small", True),
        ("got -1.", True),
        ("got -10", False),
        ("not my_max_new_tokens", False),
    ],
)
def test_a_refusal_names_the_field_or_the_value(message: str, holds: bool) -> None:
    asked = {"max_new_tokens": SentField("max_new_tokens", (-1,))}
    (observation,) = run("refusal-names-the-value", refusal(error={"message": message}, sent=asked))
    assert observation.holds is holds


def test_a_request_that_was_refused_for_what_nobody_knows_need_not_name_it() -> None:
    assert run("refusal-names-the-value", refusal(error={"message": "no"})) == []


def test_where_prompts_as_ids_are_refused_a_refusal_may_speak_of_these() -> None:
    """As sglang-router 0.3.2 answers on /v1/completions, where it takes texts alone."""
    words = "Failed to deserialize the JSON body into the target type: prompt: invalid type: sequence"
    refused = refusal(error={"message": words}, sent={"max_new_tokens": SentField("max_tokens", ("many",))})
    in_words = whole(input_ids=None)
    assert run("refusal-names-the-value", in_words, refused) == []
    assert [
        observation.holds for observation in run("refusal-names-the-value", in_words, whole(), refused)
    ] == [False]


def test_an_in_band_refusal_is_an_error_event_like_any_other() -> None:
    refused = with_error(incremental(), {"message": "no"}, 0)
    refused = replace(refused, choices=(), events=(refused.events[0], refused.events[-1]))
    assert [observation.holds for observation in seen("stream-errors-say-why", refused)] == [False]
    with_code = replace(refused, error={"message": "no", "code": 400})
    with_code = replace(
        with_code,
        events=(
            replace(refused.events[0], data={"error": with_code.error}, error=with_code.error),
            refused.events[1],
        ),
    )
    for requirement in ("say-why", "are-final", "replace-the-finish"):
        assert [observation.holds for observation in seen(f"stream-errors-{requirement}", with_code)] == [
            True
        ]


def test_another_choice_may_have_finished_before_the_error() -> None:
    two = with_error(incremental(Reply(), Reply()), FAILED, 11)
    assert [observation.holds for observation in seen("stream-errors-replace-the-finish", two)] == [True]


def test_usage_that_the_server_says_it_always_sends_was_asked_for() -> None:
    stream = told_usage(USAGE_EVENT, (6, COUNTS))
    always = Target(frozenset({"usage"}), advertised=Advertised(usage_in_streams=True))
    assert seen("usage-only-on-request", stream, always) == []
    assert seen("usage-only-on-request", asking(stream, usage=True), Target(frozenset({"usage"}))) == []


def test_every_usage_object_adds_up() -> None:
    wrong = asking(told_usage(USAGE_EVENT, (2, COUNTS | {"total_tokens": 8}), (6, COUNTS)), usage=True)
    assert [observation.holds for observation in seen("usage-adds-up", wrong)] == [False, True]


def test_usage_of_every_event_may_stand_anywhere_and_must_stand_at_the_end() -> None:
    both = asking(told_usage(USAGE_EVENT, (0, COUNTS), (6, COUNTS)), usage=True, continuous_usage=True)
    assert [observation.holds for observation in seen("usage-comes-last", both)] == [True]
    early = asking(told_usage(USAGE_EVENT, (0, COUNTS)), usage=True, continuous_usage=True)
    assert [observation.holds for observation in seen("usage-comes-last", early)] == [False]


def test_the_usage_of_a_failed_stream_is_not_compared() -> None:
    compare = CHECKS["stream-usage-equals-whole"].on_comparison
    assert compare is not None
    failed = replace(AT_THE_END, error=FAILED)
    assert list(compare(Comparison(whole(usage=COUNTS), failed), Target())) == []


def test_reasoning_is_a_part_of_the_output_wherever_it_is_told() -> None:
    details = COUNTS | {"completion_tokens_details": {"reasoning_tokens": 7}}
    assert [
        observation.holds
        for observation in seen("reasoning-within-output", told_usage(whole(), (0, details)))
    ] == [False]
    stream = change(whole(), counters={"reasoning_tokens": 2.0})
    assert [observation.holds for observation in seen("reasoning-within-output", stream)] == [False]


def test_prompts_that_leave_room_say_nothing_of_the_rule_of_length() -> None:
    short = {"input_ids": ((1,),), "max_new_tokens": 1}
    target = Target(advertised=Advertised(context_length=64))
    pair = (refusal(**short), named(whole(Reply(ids=(11,), text="a"), **short), "generate/stream"))
    assert run("one-length-rule", *pair, target=target) == []
    assert run("one-length-rule", *pair) == []


def test_where_nothing_stopped_no_budget_is_judged() -> None:
    budgets = [named(whole(max_new_tokens=budget, prompt_key="p"), f"generate/{budget}") for budget in (6, 9)]
    assert run("stop-wins-within-the-budget", *budgets) == []


@pytest.mark.parametrize(
    "asked", [{"input_ids": None}, {"stop": ("a",)}, {"stop_regex": ("a",)}, {"echo": True}]
)
def test_a_server_without_a_tokenizer_need_not_answer_what_needs_text(asked: dict[str, Any]) -> None:
    without = Target(advertised=Advertised(tokenizer=False))
    nothing = replace(whole(Reply(ids=None)), choices=())
    assert [observation.holds for observation in seen("ids-need-no-tokenizer", nothing, without)] == [False]
    needs_text = replace(nothing, asked=replace(nothing.asked, **asked))
    assert seen("ids-need-no-tokenizer", needs_text, without) == []
