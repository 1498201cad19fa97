"""What single checks promise beyond their pair: conditions, exemptions, words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tokenwire.checks  # noqa: F401  # fills CHECKS
from stream_builder import (
    GONE,
    IDS,
    PROMPT,
    Told,
    append,
    change,
    chosen_logprobs,
    cumulative,
    incremental,
    logprobs,
    named,
    refusal,
    top_logprobs,
    whole,
    with_exchange,
)
from tokenwire.check import CHECKS, Comparison, Observation, Target
from tokenwire.exchange import Ending
from tokenwire.record import Delivery, Finish, Stream

MIRROR = Told(
    series={"mirror_token_id": IDS, "mirror_position": range(2, 8)},
    customized=frozenset({"mirror_token_id", "mirror_position"}),
)
LOGPROBS = Told(
    series={
        "output_token_logprobs": logprobs(),
        "output_top_logprobs": top_logprobs(),
        "output_token_ids_logprobs": chosen_logprobs(),
    }
)
ASKED: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "chosen_ids": (7, 5)}


def seen(requirement: str, stream: Stream, target: Target | None = None) -> list[Observation]:
    check = CHECKS[requirement].on_stream
    assert check is not None
    return list(check(stream, target or Target()))


def related(requirement: str, *streams: Stream) -> list[Observation]:
    check = CHECKS[requirement].on_run
    assert check is not None
    return list(check(streams, Target()))


def violated(observations: list[Observation]) -> list[Observation]:
    return [one for one in observations if not one.holds]


def test_a_series_out_of_step_is_told_in_numbers() -> None:
    stream = change(incremental(MIRROR), 2, series={"mirror_token_id": list(IDS[:3])})
    first = violated(seen("customized-info-incremental", stream))[0]
    assert (first.expected, first.actual) == (1, 3)
    assert first.message == "mirror_token_id holds 3 entries for 1 output id of this event"


def test_a_series_that_is_no_list_is_told_by_its_type() -> None:
    stream = change(whole(MIRROR), series={"mirror_token_id": {"0": 11}})
    message = violated(seen("customized-info-whole", stream))[0].message
    assert message == "mirror_token_id is a dict, not a list, for 6 output ids of the answer"


def test_violations_come_in_wire_order_across_choices() -> None:
    stream = incremental(MIRROR, MIRROR)
    stream = change(stream, 4, choice=0, series={"mirror_token_id": []})
    stream = change(stream, 1, choice=1, series={"mirror_token_id": []})
    events = [one.place.event for one in violated(seen("customized-info-incremental", stream))]
    assert events == [3, 8]


def test_a_series_may_be_left_out_where_there_are_no_ids() -> None:
    stream = incremental(MIRROR, sizes=(3, 0, 3))
    stream = change(stream, 1, text="!", series={"mirror_token_id": GONE, "mirror_position": GONE})
    observations = seen("customized-info-incremental", stream)
    assert len(observations) == 4
    assert violated(observations) == []


def test_logprobs_of_a_chat_answer_without_ids_are_held_against_the_counter() -> None:
    told = replace(LOGPROBS, ids=None)
    assert violated(seen("logprobs-whole", whole(told))) == []
    assert violated(seen("logprobs-whole", change(whole(told), counters={"completion_tokens": 5})))


@pytest.mark.parametrize(
    ("asked", "server", "counts"),
    [(None, None, 0), (1, 8, 0), (-1, 8, 0), (0, 8, 4), (None, 8, 4), (2, 1, 4), (2, None, 4)],
)
def test_only_an_interval_that_can_be_broken_is_looked_at(
    asked: int | None, server: int | None, counts: int
) -> None:
    stream = incremental(stream_interval=asked)
    assert len(seen("interval-is-kept", stream, Target(stream_interval=server))) == counts


def test_the_first_and_the_last_emission_may_be_smaller_than_the_interval() -> None:
    assert seen("interval-is-kept", incremental(sizes=(1, 5)), Target(stream_interval=9)) == []


def test_coalescing_is_not_claimed_where_nothing_was_joined() -> None:
    assert seen("coalescing-keeps-all", incremental(sizes=(1, 4, 1)), Target(stream_interval=4)) == []


def test_coalescing_says_that_its_condition_occurred() -> None:
    observations = seen("coalescing-keeps-all", incremental(MIRROR, sizes=(1, 5)), Target(stream_interval=4))
    assert [one.condition_only for one in observations] == [True, False, False, False]


def test_a_lost_delta_counts_as_joined() -> None:
    stream = change(incremental(), 3, output_ids=[14])
    choice = stream.choices[0]
    lossy = replace(stream, choices=(replace(choice, emissions=choice.emissions[:2] + choice.emissions[3:]),))
    first = violated(seen("coalescing-keeps-all", lossy))[0]
    assert first.place.event == 3
    assert first.message == "the joined emission counts 4 tokens, but 3 ids were delivered"


def test_a_short_whole_answer_is_no_witness_of_accumulation() -> None:
    assert seen("whole-accumulates", whole(MIRROR)) == []
    assert violated(seen("whole-accumulates", change(whole(MIRROR), series={"mirror_token_id": [16]})))


def test_a_mode_that_is_not_advertised_is_not_looked_at() -> None:
    assert seen("mode-is-advertised", incremental()) == []


def test_one_field_of_the_other_mode_is_found_among_cumulative_fields() -> None:
    stream = change(cumulative(MIRROR), 3, series={"mirror_position": [5]})
    assert [one.place.pointer for one in violated(seen("one-mode-per-stream", stream))] == [
        "/mirror_position"
    ]


def test_pieces_that_happen_to_extend_each_other_are_not_taken_for_cumulative_text() -> None:
    stream = incremental(sizes=(2, 2, 2))
    for position, text in enumerate(("a", "ab", "abc")):
        stream = change(stream, position, text=text)
    assert violated(seen("one-mode-per-stream", stream)) == []


def test_cumulative_text_among_incremental_ids_is_found() -> None:
    stream = incremental()
    for position in range(6):
        stream = change(stream, position, text="abcdef"[: position + 1])
    assert [one.place.pointer for one in violated(seen("one-mode-per-stream", stream))] == ["/text"]


def test_equal_top_logprobs_may_stand_in_either_order() -> None:
    tied = [[[-0.5, 90, None], [-0.5, 11, None]]]
    stream = change(incremental(LOGPROBS, **ASKED), 0, series={"output_top_logprobs": tied})
    assert violated(seen("top-logprobs-belong-to-position", stream)) == []


def test_a_greedy_choice_has_to_stand_among_the_top() -> None:
    other = [[[-0.5, 90, None], [-1.0, 91, None]]]
    stream = change(incremental(LOGPROBS, **ASKED), 0, series={"output_top_logprobs": other})
    assert violated(seen("top-logprobs-belong-to-position", stream))
    for free in ({"greedy": False}, {"other_sampling": '{"logit_bias":{"11":9}}'}):
        asked = replace(stream.asked, **free)
        assert violated(seen("top-logprobs-belong-to-position", replace(stream, asked=asked))) == []


@pytest.mark.parametrize(
    "position",
    [
        [[-0.5, 11, None]],
        [[-0.5, 11, None], [-0.6, 11, None]],
        [[-0.6, 11, None], [-0.5, 12, None]],
        None,
        "two",
    ],
)
def test_top_logprobs_have_as_many_different_falling_entries_as_asked(position: object) -> None:
    stream = change(incremental(LOGPROBS, **ASKED), 4, series={"output_top_logprobs": [position]})
    assert [one.place.event for one in violated(seen("top-logprobs-have-k", stream))] == [4]


@pytest.mark.parametrize("logprob", [None, 0.1, float("nan"), float("-inf"), True, "-1", 1])
def test_what_is_no_logprob(logprob: object) -> None:
    stream = change(incremental(LOGPROBS), 1, series={"output_token_logprobs": [[logprob, 12, None]]})
    assert [one.place.event for one in violated(seen("logprob-values-are-legal", stream))] == [1]


@pytest.mark.parametrize("token", [True, None, -1, 2**31, "11", 1e3])
def test_what_is_no_token_id(token: object) -> None:
    stream = change(cumulative(), output_ids=[11, 12, 13, 14, 15, token])
    assert [one.place.event for one in violated(seen("ids-are-token-ids", stream))] == [5]


def test_metadata_asked_for_prompt_by_prompt_is_not_judged_as_one() -> None:
    stream = whole(LOGPROBS, uniform=False)
    assert seen("metadata-only-on-request", stream) == []
    assert seen("asked-or-refused", replace(whole(), asked=replace(stream.asked, **ASKED))) == []


def test_flat_top_logprobs_are_an_answer_to_the_ask() -> None:
    told = replace(LOGPROBS, series={k: v for k, v in LOGPROBS.series.items() if "top" not in k})
    stream = whole(told, **ASKED)
    assert violated(seen("asked-or-refused", stream))
    flat = change(stream, details={"meta_info": {"output_top_logprobs_val_flat": [-0.5]}})
    assert violated(seen("asked-or-refused", flat)) == []


def test_an_answer_cut_short_promises_no_finish_but_never_two() -> None:
    cut = with_exchange(change(incremental(), finish=GONE), ending=Ending.TRUNCATED)
    assert seen("one-finish-per-choice", cut) == []
    twice = append(incremental(), lambda last: last)
    assert violated(seen("one-finish-per-choice", with_exchange(twice, ending=Ending.TRUNCATED)))


def test_an_error_event_excuses_the_missing_finish() -> None:
    stream = replace(change(incremental(), finish=GONE), error={"message": "out of memory"})
    assert violated([*seen("one-finish-per-choice", stream), *seen("choices-complete", stream)]) == []


def test_a_stream_may_be_refused_in_its_first_event() -> None:
    error = {"message": "input_ids cannot be empty.", "code": 400}
    stream = replace(incremental(input_ids=((),)), choices=(), error=error)
    assert [one.holds for one in seen("empty-input-ids-refused", stream)] == [True]
    crashed = replace(stream, error={"message": "boom", "code": 500})
    assert [one.holds for one in seen("empty-input-ids-refused", crashed)] == [False]


def test_a_chat_stream_is_refused_by_status_alone() -> None:
    error = {"message": "no", "code": 400}
    asked: dict[str, Any] = {"dialect": "sglang-chat", "meta_info": True}
    stream = replace(incremental(**asked), choices=(), error=error)
    assert violated(seen("chat-stream-refuses-meta-info", stream))
    assert violated(seen("chat-stream-refuses-meta-info", refusal(422, stream=True, **asked)))
    free = Target(tito_stream_refused=False)
    assert seen("chat-stream-refuses-meta-info", stream, free) == []


@pytest.mark.parametrize(
    "value", ["1 2", 5, [1.0], [True], [None], [[1], 2], [[[1]]], {"ids": [1]}, ["1"], [[1], ["2"]]]
)
def test_what_is_malformed(value: object) -> None:
    body = {"input_ids": value}
    assert [one.holds for one in seen("malformed-input-ids-refused", whole(input_ids=None, body=body))] == [
        False
    ]


@pytest.mark.parametrize("value", [[1, 2], [[1], [2, 3]], [], [[]], None, [2**70]])
def test_what_is_not_malformed(value: object) -> None:
    assert seen("malformed-input-ids-refused", whole(body={"input_ids": value})) == []


def test_a_refusal_without_a_control_says_nothing() -> None:
    assert related("refused-request-harms-nobody", refusal(), whole()) == []
    other = replace(whole(), exchange=replace(whole().exchange, scenario="two"))
    assert related("refused-request-harms-nobody", whole(), refusal(), other) == []


def test_requests_that_differ_in_their_sampling_are_not_related() -> None:
    biased = named(change(whole(stop=("zz",), other_sampling='{"top_k":3}'), text="other"), "generate/biased")
    assert related("unmatched-stop-changes-nothing", whole(), biased) == []


def test_a_stop_string_that_matched_is_no_unmatched_one() -> None:
    stopped = whole(Told(finish=Finish("stop", matched="d"), text="abc"), stop=("d",))
    assert related("unmatched-stop-changes-nothing", whole(), named(stopped, "generate/stopped")) == []


def test_texts_whose_prompt_ids_are_unknown_are_not_related() -> None:
    one = whole(input_ids=None, text_prompt=True)
    other = named(
        change(whole(input_ids=None, text_prompt=True, stop=("z",)), text="other"), "generate/other"
    )
    assert related("unmatched-stop-changes-nothing", one, other) == []


def test_a_cumulative_stream_contradicts_itself_about_a_stop_string() -> None:
    told = Told(finish=Finish("stop", matched="de"))
    stream = change(cumulative(told, sizes=(4, 2), stop=("de",)), 1, text="abc")
    assert [one.place.event for one in violated(related("stop-prefix-held-back", stream))] == [0]
    kept = replace(stream, asked=replace(stream.asked, no_stop_trim=True))
    assert related("stop-prefix-held-back", kept) == []


def test_rounding_is_forgiven_between_answers_and_more_is_not() -> None:
    check = CHECKS["stream-series-equal-whole"].on_comparison
    assert check is not None
    baseline = whole(LOGPROBS)
    for shift, holds in ((5e-4, True), (5e-3, False)):
        moved = [[logprob - shift, token, None] for logprob, token, _ in logprobs()]
        other = change(cumulative(LOGPROBS), series={"output_token_logprobs": moved})
        looked = list(check(Comparison(baseline, other), Target()))
        by_pointer = {one.place.pointer: one.holds for one in looked}
        assert by_pointer["/output_token_logprobs"] is holds


def test_a_whole_answer_is_not_compared_as_a_stream_and_a_stream_not_as_a_whole_one() -> None:
    pairs = {
        "stream-ids-equal-whole": Comparison(incremental(), incremental()),
        "result-independent-of-interval": Comparison(whole(), incremental(stream_interval=3)),
    }
    for requirement, comparison in pairs.items():
        check = CHECKS[requirement].on_comparison
        assert check is not None
        assert list(check(comparison, Target())) == []


def test_an_interval_that_is_the_servers_anyway_is_no_other_interval() -> None:
    check = CHECKS["result-independent-of-interval"].on_comparison
    assert check is not None
    comparison = Comparison(incremental(), incremental(stream_interval=4))
    assert list(check(comparison, Target(stream_interval=4))) == []
    assert list(check(comparison, Target(stream_interval=8)))


def test_samples_of_one_text_prompt_have_the_same_prompt_ids() -> None:
    stream = whole(Told(prompt_ids=PROMPT), Told(prompt_ids=(1, 2, 4)), input_ids=None, prompt_token_ids=True)
    assert [one.holds for one in seen("prompt-ids-in-every-choice", stream)] == [True, False]


def test_a_zero_budget_may_be_refused() -> None:
    assert [one.holds for one in seen("zero-budget-has-no-ids", refusal(max_new_tokens=0))] == [True]


def test_a_chat_answer_takes_zero_for_no_budget() -> None:
    stream = whole(dialect="sglang-chat", max_new_tokens=0)
    assert seen("zero-budget-has-no-ids", stream) == []
    assert seen("budget-is-kept", stream) == []


def test_nothing_after_the_end_mark_may_be_left_over() -> None:
    assert violated(seen("done-ends-the-stream", replace(incremental(), unterminated=b"data: x")))
    assert violated(seen("done-ends-the-stream", replace(incremental(), events=incremental().events[:-1])))
    cut = with_exchange(replace(incremental(), events=incremental().events[:-1]), ending=Ending.TRUNCATED)
    assert seen("done-ends-the-stream", cut) == []


def test_named_events_may_be_asked_for() -> None:
    request = replace(incremental().exchange.request, headers=(("X-SGLExt-Ids-Framed", "1"),))
    named_event = replace(incremental().events[0], name="sglext_ids")
    stream = replace(incremental(), events=(named_event, *incremental().events[1:]))
    assert violated(seen("events-are-unnamed", stream))
    assert seen("events-are-unnamed", with_exchange(stream, request=request)) == []


def test_incremental_checks_leave_cumulative_streams_alone() -> None:
    for requirement in ("incremental-ids-are-new", "customized-info-incremental", "logprobs-incremental"):
        assert seen(requirement, cumulative(MIRROR)) == []
    for requirement in ("cumulative-ids-extend", "cumulative-text-extends", "customized-info-cumulative"):
        assert seen(requirement, incremental(MIRROR)) == []
    assert incremental().delivery is Delivery.INCREMENTAL
