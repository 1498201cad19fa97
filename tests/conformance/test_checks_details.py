"""What single checks promise beyond their pair: conditions, exemptions, words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from item_answers import blocks, messaged, text_block
from rollout_pairs import RUN, experts, routed
from stream_builder import (
    ABORT,
    FAILED,
    GONE,
    IDS,
    PROMPT,
    STOP,
    Reply,
    append,
    change,
    change_event,
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
from wire_answers import answered

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.fields import bringing
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import CallPiece, Delivery, Finish, Stream
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending

MIRROR = Reply(
    series={"mirror_token_id": IDS, "mirror_position": range(2, 8)},
    customized=frozenset({"mirror_token_id", "mirror_position"}),
)
LOGPROBS = Reply(
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
    seen = check(streams, Target(repeated=frozenset({"key"})))
    return [observation for observation in seen if not (observation.condition_only and observation.message)]


def violated(observations: list[Observation]) -> list[Observation]:
    return [observation for observation in observations if not observation.holds]


def witnesses(observations: list[Observation]) -> int:
    return sum(observation.witnesses for observation in observations)


def test_a_series_out_of_step_is_told_in_numbers() -> None:
    stream = change(incremental(MIRROR), 2, series={"mirror_token_id": list(IDS[:3])})
    first = violated(seen("customized-info-incremental", stream))[0]
    assert (first.expected, first.actual) == (1, 3)
    assert first.message == "mirror_token_id has 3 entries for 1 output id of this event"


def test_a_series_that_is_no_list_is_told_by_its_type() -> None:
    stream = change(whole(MIRROR), series={"mirror_token_id": {"0": 11}})
    message = violated(seen("customized-info-whole", stream))[0].message
    assert message == "mirror_token_id is a dict, not a list, for 6 output ids of the answer"


def test_violations_come_in_wire_order_across_choices() -> None:
    stream = incremental(MIRROR, MIRROR)
    stream = change(stream, 4, choice=0, series={"mirror_token_id": []})
    stream = change(stream, 1, choice=1, series={"mirror_token_id": []})
    events = [
        observation.place.event for observation in violated(seen("customized-info-incremental", stream))
    ]
    assert events == [3, 8]


def test_a_series_may_be_left_out_where_there_are_no_ids() -> None:
    stream = incremental(MIRROR, sizes=(3, 0, 3))
    stream = change(stream, 1, text="!", series={"mirror_token_id": GONE, "mirror_position": GONE})
    observations = seen("customized-info-incremental", stream)
    assert witnesses(observations) == 4
    assert violated(observations) == []


def test_logprobs_of_a_chat_answer_without_ids_are_held_against_the_counter() -> None:
    reply = replace(LOGPROBS, ids=None)
    assert violated(seen("logprobs-whole", whole(reply))) == []
    assert violated(seen("logprobs-whole", change(whole(reply), counters={"completion_tokens": 5})))


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
    stream = incremental(Reply(finish=None), sizes=(1, 4, 1))
    alone = append(stream, lambda e: replace(e, output_ids=[], text="", finish=Finish("length")))
    assert [
        observation.holds for observation in seen("interval-is-kept", alone, Target(stream_interval=4))
    ] == [True]


def test_coalescing_is_not_claimed_where_nothing_was_joined() -> None:
    assert seen("coalescing-keeps-all", incremental(sizes=(1, 4, 1)), Target(stream_interval=4)) == []


def test_coalescing_says_that_its_condition_occurred() -> None:
    observations = seen("coalescing-keeps-all", incremental(MIRROR, sizes=(1, 5)), Target(stream_interval=4))
    assert [(observation.condition_only, observation.witnesses) for observation in observations] == [
        (True, 1),
        (False, 1),
        (False, 1),
        (False, 1),
    ]


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
    assert [observation.place.pointer for observation in violated(seen("one-mode-per-stream", stream))] == [
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
    assert [observation.place.pointer for observation in violated(seen("one-mode-per-stream", stream))] == [
        "/text"
    ]


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
        None,
        "two",
    ],
)
def test_top_logprobs_have_as_many_different_entries_as_asked(position: object) -> None:
    stream = change(incremental(LOGPROBS, **ASKED), 4, series={"output_top_logprobs": [position]})
    assert [observation.place.event for observation in violated(seen("top-logprobs-have-k", stream))] == [4]


@pytest.mark.parametrize("logprob", [None, 0.1, float("nan"), float("-inf"), True, "-1", 1])
def test_what_is_no_logprob(logprob: object) -> None:
    stream = change(incremental(LOGPROBS), 1, series={"output_token_logprobs": [[logprob, 12, None]]})
    assert [
        observation.place.event for observation in violated(seen("logprob-values-are-legal", stream))
    ] == [1]


@pytest.mark.parametrize("token", [True, None, -1, 2**31, "11", 1e3])
def test_what_is_no_token_id(token: object) -> None:
    stream = change(cumulative(), output_ids=[11, 12, 13, 14, 15, token])
    assert [observation.place.event for observation in violated(seen("ids-are-token-ids", stream))] == [5]


@pytest.mark.parametrize("delivery", [Delivery.CUMULATIVE, Delivery.INCREMENTAL])
@pytest.mark.parametrize("beside_the_ids", [True, False])
def test_arrays_are_whole_where_a_finish_comes_alone(delivery: Delivery, beside_the_ids: bool) -> None:
    """In an event behind the last ids: arrays stand in both, or there alone."""
    nothing: dict[str, Any] = {"output_ids": [], "text": ""} if delivery is Delivery.INCREMENTAL else {}
    last = routed(experts(RUN), delivery=delivery)
    stream = append(last, lambda end: replace(end, **nothing))
    early = {} if beside_the_ids else {"details": {"routed_experts": GONE}}
    stream = change(stream, position=0, finish=GONE, **early)
    assert violated(related("array-covers-what-was-run", routed(experts(RUN)), stream)) == []
    row = CHECKS["array-equals-whole"].on_comparison
    assert row is not None
    compared = list(row(Comparison(routed(experts(RUN)), stream), Target()))
    assert [observation.holds for observation in compared if not observation.condition_only] == [True]


def test_metadata_asked_for_prompt_by_prompt_is_not_judged_as_one() -> None:
    stream = whole(LOGPROBS, uniform=False)
    assert seen("metadata-only-on-request", stream) == []
    assert seen("asked-or-refused", replace(whole(), asked=replace(stream.asked, **ASKED))) == []


def test_flat_top_logprobs_are_an_answer_to_the_ask() -> None:
    reply = replace(LOGPROBS, series={k: v for k, v in LOGPROBS.series.items() if "top" not in k})
    stream = whole(reply, **ASKED)
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
    assert [observation.holds for observation in seen("empty-input-ids-refused", stream)] == [True]
    crashed = replace(stream, error={"message": "boom", "code": 500})
    assert [observation.holds for observation in seen("empty-input-ids-refused", crashed)] == [False]


def test_a_chat_stream_is_refused_by_status_alone() -> None:
    error = {"message": "no", "code": 400}
    asked: dict[str, Any] = {"dialect": "sglang-chat", "return_meta_info": True}
    stream = replace(incremental(**asked), choices=(), error=error)
    assert violated(seen("chat-stream-refuses-meta-info", stream))
    assert violated(seen("chat-stream-refuses-meta-info", refusal(422, stream=True, **asked)))
    assert seen("chat-stream-refuses-meta-info", replace(stream, dialect="vllm-chat")) == []


def test_messages_beside_it_excuse_no_chat_stream() -> None:
    stream = incremental(dialect="sglang-chat", return_meta_info=True)
    verdicts = {
        judgement.requirement.id: judgement.verdict
        for judgement in judge([Run((stream, whole(dialect="sglang-chat"), messaged(*blocks(text_block()))))])
    }
    assert verdicts["chat-stream-refuses-meta-info"] is Verdict.FAIL


@pytest.mark.parametrize(
    "value", ["1 2", 5, [1.0], [True], [None], [[1], 2], [[[1]]], {"ids": [1]}, ["1"], [[1], ["2"]]]
)
def test_what_is_malformed(value: object) -> None:
    body = {"input_ids": value}
    assert [
        observation.holds
        for observation in seen("malformed-input-ids-refused", whole(input_ids=None, body=body))
    ] == [False]


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
    stopped = whole(Reply(finish=Finish("stop", matched="d"), text="abc"), stop=("d",))
    assert related("unmatched-stop-changes-nothing", whole(), named(stopped, "generate/stopped")) == []


def test_texts_whose_prompt_ids_are_unknown_are_not_related() -> None:
    stream = whole(input_ids=None, text_prompt=True)
    other = named(
        change(whole(input_ids=None, text_prompt=True, stop=("z",)), text="other"), "generate/other"
    )
    assert related("unmatched-stop-changes-nothing", stream, other) == []


def test_a_cumulative_stream_contradicts_itself_about_a_stop_string() -> None:
    reply = Reply(finish=Finish("stop", matched="de"))
    stream = change(cumulative(reply, sizes=(4, 2), stop=("de",)), 1, text="abc")
    assert [
        observation.place.event for observation in violated(related("stop-prefix-held-back", stream))
    ] == [0]
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
        by_pointer = {observation.place.pointer: observation.holds for observation in looked}
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
    stream = whole(
        Reply(prompt_ids=PROMPT), Reply(prompt_ids=(1, 2, 4)), input_ids=None, return_prompt_token_ids=True
    )
    assert [observation.holds for observation in seen("prompt-ids-in-every-choice", stream)] == [True, False]


def test_a_zero_budget_may_be_refused() -> None:
    assert [
        observation.holds for observation in seen("zero-budget-has-no-ids", refusal(max_new_tokens=0))
    ] == [True]


def test_a_token_that_is_only_counted_breaks_a_budget_of_zero() -> None:
    """vLLM, an echo without ids: `budget-is-kept` was one more block of the report for it."""
    hidden = whole(Reply(ids=None, text="", counted=False), usage={"completion_tokens": 1}, max_new_tokens=0)
    messages = [found.message for found in seen("zero-budget-has-no-ids", hidden) if not found.holds]
    assert messages == ["completion_tokens is 1 for a budget of zero tokens"]


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
    asked = with_exchange(stream, request=request)
    assert violated(seen("events-are-unnamed", replace(stream, dialect=CHAT)))
    assert seen("events-are-unnamed", replace(asked, dialect=CHAT)) == []
    assert violated(seen("events-are-unnamed", asked)), "its dialect knows no such header"


def test_incremental_checks_leave_cumulative_streams_alone() -> None:
    for requirement in ("incremental-ids-are-new", "customized-info-incremental", "logprobs-incremental"):
        assert seen(requirement, cumulative(MIRROR)) == []
    for requirement in ("cumulative-ids-extend", "cumulative-text-extends", "customized-info-cumulative"):
        assert seen(requirement, incremental(MIRROR)) == []
    assert incremental().delivery is Delivery.INCREMENTAL


CHAT = "sglang-chat"
SAID = {"request_id": "c-1", "role": "assistant", "content": "abcdef"}
CHAT_TOLD = Reply(ids=None, counted=False, counters={}, details=SAID)


@pytest.mark.parametrize(
    "requirement", [name for name, check in CHECKS.items() if name.startswith("chat-") and check.on_stream]
)
def test_chat_checks_leave_other_endpoints_alone(requirement: str) -> None:
    reply = Reply(details={**SAID, "meta_info": {"completion_tokens": 5}, "content": None})
    for stream in (whole(reply, return_meta_info=True), incremental(reply, return_meta_info=True)):
        assert seen(requirement, stream) == []


def test_a_chat_stream_has_roles_and_a_chat_answer_has_content() -> None:
    null = replace(CHAT_TOLD, details={"request_id": "c-1", "content": None})
    assert seen("chat-content-never-null", incremental(null, dialect=CHAT)) == []
    assert seen("chat-role-comes-first", whole(null, dialect=CHAT)) == []
    assert seen("chat-meta-info-in-every-choice", incremental(null, dialect=CHAT)) == []


def test_a_message_with_tool_calls_needs_no_content() -> None:
    reply = replace(CHAT_TOLD, details={**SAID, "content": None})
    called = change(whole(reply, dialect=CHAT), calls=(CallPiece("/tool_calls/0", 0, id="t"),))
    assert seen("chat-content-never-null", called) == []


def test_chat_logprobs_answer_the_ask_in_their_own_place() -> None:
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}]}
    bare = {"token": "a", "logprob": -1.0, "top_logprobs": []}
    asked: dict[str, Any] = {"dialect": CHAT, "logprobs": True, "top_logprobs": 2}

    def answer(content: list[Any]) -> Stream:
        reply = replace(CHAT_TOLD, details={**SAID, "logprobs": {"content": content}})
        return change(whole(reply, **asked), series={"logprobs_content": content})

    assert [observation.holds for observation in seen("asked-or-refused", answer([entry]))] == [True, True]
    assert [observation.holds for observation in seen("asked-or-refused", answer([]))] == [True, True]
    assert [observation.holds for observation in seen("asked-or-refused", answer([bare]))] == [True, False]
    assert [observation.holds for observation in seen("asked-or-refused", whole(CHAT_TOLD, **asked))] == [
        False,
        False,
    ]


def test_a_chat_budget_is_counted_by_the_usage() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    stream = whole(CHAT_TOLD, dialect=CHAT, usage=usage, max_new_tokens=6)
    assert [observation.holds for observation in seen("budget-is-kept", stream)] == [True]
    assert [observation.holds for observation in seen("length-means-budget", stream)] == [True]
    less = replace(stream, asked=replace(stream.asked, max_new_tokens=5))
    assert [observation.holds for observation in seen("budget-is-kept", less)] == [False]


def test_a_chat_request_that_met_no_endpoint_was_not_refused() -> None:
    for status in (404, 429):
        stream = refusal(status, stream=True, dialect=CHAT, return_meta_info=True)
        assert seen("chat-stream-refuses-meta-info", stream) == []
        assert seen("refusal-names-the-field", stream) == []


def test_an_emission_without_new_ids_does_not_break_the_interval() -> None:
    stream = change(incremental(sizes=(1, 0, 4, 1)), 1, text="!")
    assert len(seen("interval-is-kept", stream, Target(stream_interval=4))) == 1


def test_a_whole_answer_keeps_no_interval() -> None:
    stream = whole(Reply(), Reply(), Reply(), stream_interval=9)
    assert seen("interval-is-kept", stream) == []


def test_a_control_without_ids_is_compared_by_its_text() -> None:
    before = named(whole(CHAT_TOLD, dialect=CHAT), "chat/before")
    after = change(whole(CHAT_TOLD, dialect=CHAT), text="abcdeX")
    looked = related("refused-request-harms-nobody", before, refusal(dialect=CHAT), after)
    assert [observation.place.pointer for observation in violated(looked)] == ["/text"]


def test_an_answer_that_failed_is_no_control() -> None:
    broken = change(whole(), output_ids=[99], finish=Finish("abort", code=503))
    assert related("refused-request-harms-nobody", whole(), refusal(), broken) == []
    assert related("refused-request-harms-nobody", broken, refusal(), whole()) == []


def test_chosen_logprobs_that_nobody_asked_for_are_found() -> None:
    stream = whole(LOGPROBS, logprobs=True, top_logprobs=2)
    assert [
        observation.place.pointer for observation in violated(seen("metadata-only-on-request", stream))
    ] == ["/output_token_ids_logprobs"]
    asked = replace(stream.asked, top_logprobs=0, chosen_ids=(7, 5))
    assert [
        observation.place.pointer
        for observation in violated(seen("metadata-only-on-request", replace(stream, asked=asked)))
    ] == ["/output_top_logprobs"]


def test_the_samplers_own_series_are_not_logprobs_of_the_model() -> None:
    reply = Reply(
        series={"output_token_sampling_logprobs": [-0.1] * 6, "logprob_of_mine": [7.0] * 6},
        customized=frozenset({"logprob_of_mine"}),
    )
    assert violated(seen("metadata-only-on-request", whole(reply))) == []
    assert seen("logprob-values-are-legal", whole(reply)) == []


def test_prompt_logprobs_of_a_text_prompt_are_held_against_what_is_known_of_it() -> None:
    entries = [[None, 1, None], [-3.0, 2, None], [-4.0, 3, None]]
    by_ids = Reply(prompt_series={"input_token_logprobs": entries}, prompt_ids=PROMPT)
    by_count = replace(by_ids, prompt_ids=None)
    for found in (by_ids, by_count):
        stream = whole(found, input_ids=None, text_prompt=True, logprobs=True, logprob_start=0)
        assert [observation.holds for observation in seen("prompt-logprobs-cover-the-prompt", stream)] == [
            True
        ]
        late = replace(stream, asked=replace(stream.asked, logprob_start=1))
        assert [observation.holds for observation in seen("prompt-logprobs-cover-the-prompt", late)] == [
            False
        ]
    none = replace(by_count, prompt_series={"input_token_logprobs": []})
    assert seen("prompt-logprobs-null-only-first", whole(none)) == []
    for found, holds in (
        (none, True),
        (replace(by_count, prompt_series={"input_token_logprobs": entries[:1]}), False),
    ):
        behind = whole(found, input_ids=None, text_prompt=True, logprobs=True, logprob_start=9)
        assert [observation.holds for observation in seen("prompt-logprobs-cover-the-prompt", behind)] == [
            holds
        ]
    wrong = replace(by_ids, prompt_ids=(1, 2, 4))
    stream = whole(wrong, input_ids=None, text_prompt=True, logprobs=True, logprob_start=0)
    assert [observation.holds for observation in seen("prompt-logprobs-cover-the-prompt", stream)] == [False]


def test_equal_logprobs_are_in_falling_order() -> None:
    stream = change(
        incremental(LOGPROBS, **ASKED),
        0,
        series={"output_top_logprobs": [[[-1.0, 11, None], [-1.0, 12, None]]]},
    )
    assert violated(seen("top-logprobs-fall", stream)) == []


def test_the_clients_request_id_is_for_a_single_request() -> None:
    other = Reply(details={"request_id": "r-0"})
    assert violated(seen("request-id-is-the-clients", whole(other, request_id="mine")))
    assert seen("request-id-is-the-clients", whole(other, other, request_id="mine")) == []


def test_a_counter_is_an_integer_and_a_latency_is_not_a_counter() -> None:
    stream = change(incremental(), 1, counters={"queue_time": 0.5})
    assert violated(seen("counters-never-fall", stream)) == []
    for value in (2.0, True, "2"):
        stream = change(incremental(), 1, counters={"completion_tokens": value})
        assert [observation.place.event for observation in violated(seen("counters-never-fall", stream))] == [
            1
        ]


def test_usage_without_a_count_says_nothing_of_ids() -> None:
    assert seen("usage-counts-ids", whole(usage={"prompt_tokens": 3})) == []
    assert seen("usage-adds-up", whole(usage={"prompt_tokens": 3})) == []


def test_answers_that_carry_different_things_are_compared_in_what_both_carry() -> None:
    bare = Reply(ids=None, counted=False, counters={}, text="abcdef")
    comparison = Comparison(whole(), incremental(bare))
    counts = {
        "stream-ids-equal-whole": 0,
        "stream-text-equals-whole": 1,
        "stream-series-equal-whole": 0,
        "stream-finish-equals-whole": 1,
        "stream-is-legal-delivery": 1,
    }
    for requirement, count in counts.items():
        check = CHECKS[requirement].on_comparison
        assert check is not None
        looked = list(check(comparison, Target()))
        assert len(looked) == count, requirement
        assert violated(looked) == []


def test_a_document_that_is_no_answer_to_a_stream_or_no_200_is_not_held_to_the_schema() -> None:
    wrong = replace(whole(), events=(replace(whole().events[0], schema_errors=("/: no",)),))
    assert violated(seen("answer-fits-schema", wrong))
    assert seen("answer-fits-schema", replace(wrong, asked=replace(wrong.asked, stream=True))) == []
    assert seen("answer-fits-schema", with_exchange(wrong, status=500)) == []
    assert seen("answer-fits-schema", with_exchange(wrong, ending=Ending.TIMEOUT)) == []


def test_a_choice_that_an_id_stopped_was_not_stopped_by_a_string() -> None:
    for finish in (Finish("stop", matched=16), Finish("length"), Finish("stop", matched="[a-f]+")):
        stream = whole(Reply(finish=finish), stop=("de",))
        assert related("stop-string-not-shown", stream) == []


def test_a_stop_string_may_be_kept_on_request() -> None:
    stream = whole(Reply(finish=Finish("stop", matched="f")), stop=("f",))
    assert violated(related("stop-string-not-shown", stream))
    kept = replace(stream, asked=replace(stream.asked, no_stop_trim=True))
    assert related("stop-string-not-shown", kept) == []


def test_answers_that_were_aborted_are_not_compared() -> None:
    aborted = whole(Reply(ids=IDS[:3], text="abc", finish=Finish("abort")))
    for requirement in ("stream-ids-equal-whole", "stream-is-legal-delivery"):
        check = CHECKS[requirement].on_comparison
        assert check is not None
        assert list(check(Comparison(aborted, incremental()), Target())) == []
    assert related("output-ids-continue", aborted, whole(input_ids=((*PROMPT, *IDS[:1]),))) == []


def test_penalties_count_the_output_anew_where_it_goes_on_as_a_prompt() -> None:
    first = whole(other_sampling='{"frequency_penalty":2}')
    other = Reply(ids=(99, 98), text="xy")
    rest = whole(other, input_ids=((*PROMPT, *IDS[:1]),), other_sampling='{"frequency_penalty":2}')
    assert related("output-ids-continue", first, named(rest, "rest")) == []
    plain = named(whole(other, input_ids=((*PROMPT, *IDS[:1]),)), "rest")
    assert violated(related("output-ids-continue", whole(), plain))


def test_text_that_a_parser_took_apart_is_not_that_of_another_endpoint() -> None:
    here = whole(ids_key="same")
    there = named(whole(Reply(text="cdef"), ids_key="same", dialect=CHAT), "chat/same")
    call = CallPiece("/tool_calls/0", 0)
    for parsed, faults in ((there, 1), (change(there, reasoning="ab"), 0), (change(there, calls=(call,)), 0)):
        assert len(violated(related("same-ids-on-every-endpoint", here, parsed))) == faults


def test_what_stands_for_media_is_counted_as_it_is_run() -> None:
    long = change(whole(), counters={"prompt_tokens": 500})
    assert violated(seen("prompt-tokens-count-the-input-ids", long))
    assert (
        seen("prompt-tokens-count-the-input-ids", replace(long, asked=replace(long.asked, media=True))) == []
    )


def test_a_refusal_has_to_name_the_field_and_the_way_out() -> None:
    asked: dict[str, Any] = {"stream": True, "dialect": CHAT, "return_prompt_token_ids": True}
    for reason, holds in (
        ("return_prompt_token_ids needs stream=false", True),
        ("return_prompt_token_ids is not supported", False),
        ("not supported in a stream", False),
    ):
        stream = refusal(error={"object": "error", "message": reason}, **asked)
        assert [observation.holds for observation in seen("refusal-names-the-field", stream)] == [holds]
    other = refusal(stream=True, dialect=CHAT)
    assert seen("refusal-names-the-field", other) == [], "what was asked for is to be had in a stream"
    assert seen("refusal-names-the-field", incremental(CHAT_TOLD, **asked)) == [], "no refusal"


def test_only_a_refusal_that_speaks_of_the_ids_decides_between_text_and_ids() -> None:
    for reason, count in (("text and input_ids exclude each other", 1), ("the prompt is too long", 0)):
        stream = refusal(error={"error": reason}, text_prompt=True)
        assert len(seen("input-ids-beat-text", stream)) == count


def test_a_zero_budget_is_not_counted_again_by_lockstep() -> None:
    stream = change(whole(Reply(ids=(), text="")), series={"output_top_logprobs": [[[-0.5, 1, None]]]})
    assert violated(seen("zero-budget-has-no-ids", stream))
    assert seen("logprobs-whole", stream) == []


def test_the_ids_of_a_chat_answer_are_held_against_its_logprobs() -> None:
    reply = Reply(series={"output_token_logprobs": logprobs((12, *IDS[1:]))}, details=SAID)
    assert violated(seen("chat-ids-agree-with-meta-info", whole(reply, dialect=CHAT)))
    counted = replace(reply, ids=None, details={**SAID, "meta_info": {"completion_tokens": 5}})
    stream = whole(counted, dialect=CHAT)
    assert [
        observation.message for observation in violated(seen("chat-ids-agree-with-meta-info", stream))
    ] == ["choice 0 has 6 output logprobs, but meta_info counts 5"]


def test_a_stop_that_only_one_answer_names_is_lost_in_the_other() -> None:
    check = CHECKS["stream-finish-equals-whole"].on_comparison
    assert check is not None
    named_stop, other_stop = (Reply(finish=Finish("stop", matched=m)) for m in (16, 15))
    silent = Reply(finish=Finish("stop"))
    found = violated(list(check(Comparison(whole(named_stop), incremental(silent)), Target())))
    assert [observation.message for observation in found] == ["stopped by None, but the whole answer by 16"]
    assert violated(list(check(Comparison(whole(named_stop), incremental(other_stop)), Target())))
    assert violated(list(check(Comparison(whole(silent), incremental(silent)), Target()))) == []


def test_a_stream_that_was_cut_off_is_told_as_such() -> None:
    cut = with_exchange(incremental(), ending=Ending.TRUNCATED, detail="connection reset")
    message = violated(seen("stream-ends-cleanly", cut))[0].message
    assert message == "the connection ended inside the body: connection reset"
    left = replace(incremental(), unterminated=b"data: {")
    assert "7 bytes" in violated(seen("stream-ends-cleanly", left))[0].message


def test_a_request_for_no_choice_at_all_has_no_complete_answer() -> None:
    assert seen("choices-complete", whole(n=0)) == []


def test_a_token_that_is_repeated_in_growing_pieces_keeps_its_mode() -> None:
    reply = Reply(ids=(7,) * 15, text="a" * 15)
    stream = incremental(reply, sizes=(1, 2, 3, 4, 5))
    assert violated(seen("one-mode-per-stream", stream)) == []
    grown = incremental(Reply(ids=range(20, 35), text="a" * 15), sizes=(1, 2, 3, 4, 5))
    assert [observation.place.pointer for observation in violated(seen("one-mode-per-stream", grown))] == [
        "/text"
    ]


def test_an_event_of_the_default_name_is_heard_as_a_message() -> None:
    assert violated(seen("events-are-unnamed", change_event(incremental(), 3, name="message"))) == []
    assert violated(seen("events-are-unnamed", change_event(incremental(), 3, name="token")))


def test_a_huge_n_costs_no_memory() -> None:
    """The expected choices were listed one by one: 300 bytes of an answer took a gigabyte."""
    stream = whole()
    [observation] = seen("choices-complete", replace(stream, asked=replace(stream.asked, n=10**12)))
    assert (observation.holds, observation.expected) == (False, f"{10**12} choices")


def test_a_series_beside_no_ids_is_not_held_against_a_count_that_nobody_knows() -> None:
    """In a cumulative stream the absence of ids is no empty list: how many there are is then not told."""
    without_ids = change(cumulative(MIRROR), 2, output_ids=GONE)
    assert witnesses(seen("customized-info-cumulative", without_ids)) == 2 * (len(IDS) - 1)
    none_new = change(incremental(MIRROR), 2, output_ids=GONE)
    assert len(violated(seen("customized-info-incremental", none_new))) == 2


def test_what_a_failure_replaced_is_held_to_no_budget() -> None:
    over = incremental(max_new_tokens=5)
    assert violated(seen("budget-is-kept", over))
    assert seen("budget-is-kept", change(over, finish=FAILED)) == []
    assert violated(seen("budget-is-kept", change(over, finish=ABORT)))


def test_usage_is_not_counted_where_one_choice_of_two_carries_no_ids() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    both = whole(Reply(finish=STOP), Reply(finish=STOP), usage=usage)
    assert [observation.holds for observation in seen("usage-counts-ids", both)] == [True]
    assert seen("usage-counts-ids", change(both, choice=1, output_ids=GONE)) == []


def test_a_key_of_prompt_ids_without_a_list_is_shown_where_it_stands() -> None:
    reply = Reply(prompt_ids=PROMPT)
    null = change(
        cumulative(reply, return_prompt_token_ids=True),
        2,
        prompt_token_ids=GONE,
        pointers={"prompt_token_ids": "/prompt_token_ids"},
    )
    (observation,) = seen("prompt-ids-only-on-request", null)
    assert (observation.holds, observation.place.event) == (False, 2)


def test_an_id_may_come_as_often_as_its_bias_outweighs_the_penalty() -> None:
    """A lead of 50 and a bias of 1 are used up by 26 penalties of 2."""
    for times, faults in ((26, []), (27, [False])):
        stream = whole(Reply(ids=[40] * times, text="x" * times), logit_bias={40: 1.0}, frequency_penalty=2.0)
        assert [seen_.holds for seen_ in related("frequency-penalty-is-kept", stream)] == faults


def test_what_truncation_leaves_out_is_judged_by_top_logprobs_alone() -> None:
    asked = {"logprobs": True, "greedy": False, "temperature": 1.0, "top_k": 1}
    sampled = Reply(series={"output_token_logprobs": logprobs()})
    assert seen("truncation-is-kept", whole(LOGPROBS, **asked, top_logprobs=2))
    assert seen("truncation-is-kept", whole(sampled, **asked)) == []


def test_prompt_ids_that_never_come_are_not_late() -> None:
    assert seen("prompt-ids-come-first", incremental(return_prompt_token_ids=True)) == []


def test_an_empty_list_of_alternatives_is_told_as_that() -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
    two = [entry, {**entry, "token": "b", "logprob": -1.5, "bytes": [98]}]
    content = [{**entry, "top_logprobs": two}, {**entry, "top_logprobs": []}]
    reply = Reply(ids=None, text="aa", series={"logprobs_content": content})
    (fault,) = violated(
        seen("top-logprobs-have-k", whole(reply, logprobs=True, top_logprobs=2, dialect=CHAT))
    )
    assert "holds 0 entries instead of 2" in fault.message


def test_an_entry_is_brought_by_the_event_after_which_no_other_changes_it() -> None:
    def brought(stream: Stream, position: int | None) -> int | None:
        return bringing(stream.choices[0], "output_ids", position).event

    assert [brought(incremental(), position) for position in (0, 3, 99, None)] == [0, 3, 5, 5]
    assert [brought(cumulative(), position) for position in (0, 3, 99, None)] == [0, 3, 5, 5]
    again = change(cumulative(), 4, output_ids=[11, 12, 99, 14, 15])
    assert [brought(again, position) for position in (1, 2, 4, 5)] == [1, 5, 5, 5]


def test_the_prompt_of_several_choices_is_looked_at_once() -> None:
    reply = Reply(prompt_ids=(1, 30, 31))
    texts = [
        named(whole(reply, reply, n=2, input_ids=None, text_prompt=True, prompt_key=key), key)
        for key in ("one", "two")
    ]
    assert len(related("one-beginning-of-sequence", *texts)) == len(texts)


def test_an_item_of_a_batch_may_end_elsewhere_than_one_of_another_budget() -> None:
    alone = [named(whole(input_ids=(PROMPT,), max_new_tokens=6), f"generate/alone-{turn}") for turn in "ab"]
    asked = {"prompts": 2, "n": 1, "input_ids": (PROMPT, (4, 5)), "batch": True}
    short = Reply(ids=IDS[:3], text="abc")
    for budget, faults in ((3, 0), (6, 1)):
        together = whole(short, Reply(), max_new_tokens=budget, **asked)
        assert len(violated(related("batch-items-stand-alone", *alone, together))) == faults


def test_what_truncation_keeps_is_told_as_what_was_expected() -> None:
    asked = {"logprobs": True, "greedy": False, "temperature": 1.0, "top_k": 1}
    for observation in seen("truncation-is-kept", whole(LOGPROBS, **asked, top_logprobs=2)):
        assert observation.holds
        assert observation.actual == observation.expected


def test_an_answer_to_a_seed_is_told_beside_the_one_before() -> None:
    asked = {"greedy": False, "temperature": 1.0, "seed": 7, "key": "seeded"}
    other = Reply(ids=IDS[::-1])
    (fault,) = related("seed-is-kept", named(whole(**asked), "one"), named(whole(other, **asked), "two"))
    assert (fault.expected, fault.actual) == (list(IDS), list(IDS[::-1]))


def test_a_position_without_the_chosen_ids_names_none() -> None:
    rows = [*chosen_logprobs()[:2], None, *chosen_logprobs()[3:]]
    stream = change(whole(LOGPROBS, **ASKED), series={"output_token_ids_logprobs": rows})
    (fault,) = violated(seen("chosen-logprobs-are-the-asked-ids", stream))
    assert "names [] instead of [7, 5]" in fault.message


def test_the_second_position_of_the_prompt_names_the_chosen_ids_and_the_first_does_not() -> None:
    for second, faults in (([[-1.0, 7, None], [-2.0, 5, None]], 0), ([[-1.0, 8, None], [-2.0, 5, None]], 1)):
        stream = change(whole(LOGPROBS, **ASKED), prompt_series={"input_token_ids_logprobs": [None, second]})
        assert len(violated(seen("chosen-logprobs-are-the-asked-ids", stream))) == faults


@pytest.mark.parametrize("count", [-1, 1.0, True, "1"])
def test_a_tier_of_the_cache_that_is_no_count_is_found(count: object) -> None:
    tiers = {"cached_tokens_details": {"device": count, "host": 0}}
    stream = whole(Reply(counters={"prompt_tokens": 3, "cached_tokens": 2}, details=tiers))
    (fault,) = violated(seen("cached-details-add-up", stream))
    assert f"cached_tokens_details.device is {count!r}, not a count" in fault.message


@pytest.mark.parametrize(
    ("shown", "levels"), [("abcdef", [Level.SHOULD]), ("Say abcdef", []), ("saabcdef", [])]
)
def test_an_echo_beside_ids_that_is_none_is_a_warning(shown: str, levels: list[Level]) -> None:
    """By a bug of vLLM, it stops repeating the prompt's text where ids are asked for, too."""
    asked: dict[str, Any] = {"dialect": "vllm-completions", "return_token_ids": True, "prompt_key": "p"}
    plain = named(change(whole(**asked), text="abcdef"), "completions/plain")
    echo = named(change(whole(**asked, echo=True), text=shown), "completions/echo")
    seen_of_both = related("echo-adds-only-the-prompt", plain, echo)
    assert seen_of_both
    assert [violation.level for violation in violated(seen_of_both)] == levels


HIDDEN = {
    "id": "a",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The Rhine.", "reasoning": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23},
    "prompt_token_ids": [1, 2, 3],
}
"""An answer of vLLM 0.33.0 that hides its reasoning, and so its tokens."""


@pytest.mark.parametrize(("shows", "missing"), [(False, 0), (True, 2)])
def test_tokens_of_hidden_reasoning_are_not_due(shows: bool, missing: int) -> None:
    asks = {"return_token_ids": True, "logprobs": True, "include_reasoning": shows}
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "temperature": 0, **asks}
    found = seen("asked-or-refused", answered("vllm-chat", body, HIDDEN))
    assert [observation.holds for observation in found].count(False) == missing
    assert any(observation.holds for observation in found), "the ids of the prompt are due"
