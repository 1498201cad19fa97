from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made_stream import ids_stream
from known_answer_pairs import MODEL
from wire_answers import answered

from tokenwire.ask import Asked
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.parrot.law import Repeater
from tokenwire.record import Delivery, Emission, Finish, Stream
from tokenwire.replay import remarks
from tokenwire.requirement import load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import capabilities


def present(*streams: Stream, advertised: Advertised | None = None) -> set[str]:
    known = capabilities(streams, advertised or Advertised())
    return {name for name, capability in known.items() if capability.present}


def with_emissions(stream: Stream, **changes: object) -> Stream:
    """The stream with fields of all its emissions changed."""
    choice = stream.choices[0]
    emissions: tuple[Emission, ...] = tuple(replace(e, **changes) for e in choice.emissions)
    return replace(stream, choices=(replace(choice, emissions=emissions),))


def test_every_capability_that_a_requirement_needs_is_known_and_absent_in_an_empty_run() -> None:
    known = capabilities((), Advertised())
    needed = {name for row in load_requirements().values() for name in row.applies_when}
    assert needed <= known.keys()
    assert not any(capability.present for capability in known.values())
    assert all(capability.established for capability in known.values())


def test_a_refused_request_shows_nothing() -> None:
    assert present(replace(ids_stream([1], [2]), refused=True)) == set()


def test_a_stream_is_one_though_no_event_can_be_read() -> None:
    unreadable = ids_stream([1], [2], answered=False)
    assert present(unreadable) == {"stream"}
    assert present(replace(unreadable, asked=Asked(stream=False))) == set()
    as_json = replace(unreadable.exchange, headers=(("content-type", "application/json"),))
    assert present(replace(unreadable, exchange=as_json)) == set()


def test_what_a_plain_stream_shows() -> None:
    assert present(ids_stream([1], [2])) == {
        "stream",
        "output-ids",
        "token-count",
        "text",
        "input-ids",
        "incremental",
    }


@pytest.mark.parametrize(
    ("capability", "asked", "emission"),
    [
        ("completion-tokens", {}, {"counters": {"completion_tokens": 1}}),
        ("cached-tokens", {}, {"counters": {"cached_tokens": 0}}),
        ("series", {}, {"series": {"x": [1]}}),
        ("logprobs", {}, {"series": {"output_token_logprobs": [[-1.0, 1, None]]}}),
        ("customized-info", {}, {"series": {"x": [1]}, "customized": frozenset({"x"})}),
        (
            "mirror-sampler",
            {},
            {"series": {"mirror_token_id": [1]}, "customized": frozenset({"mirror_token_id"})},
        ),
        (
            "top-logprobs",
            {"top_logprobs": 2},
            {
                "series": {
                    "logprobs_content": [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a"}]}]
                }
            },
        ),
        ("logprobs-length", {}, {"counters": {"output_token_logprobs_length": 1}}),
        ("top-logprobs", {"top_logprobs": 2}, {"series": {"output_top_logprobs": [[[-1.0, 1, None]]]}}),
        (
            "chosen-logprobs",
            {"chosen_ids": (7,)},
            {"series": {"output_token_ids_logprobs": [[[-1.0, 7, None]]]}},
        ),
        ("prompt-logprobs", {}, {"prompt_series": {"input_token_logprobs": [[None, 1, None]]}}),
        ("prompt-token-ids", {}, {"prompt_token_ids": [1, 2]}),
        ("cached-tokens-details", {}, {"details": {"cached_tokens_details": {"device": 0, "host": 0}}}),
        ("request-id", {}, {"details": {"request_id": "r"}}),
        ("stop-strings", {"stop": ("ab",)}, {"finish": Finish("stop", "ab")}),
        ("stop-strings", {"stop": ("ab",)}, {"finish": Finish("stop"), "text": "cab"}),
    ],
)
def test_a_capability_is_established_by_its_effect(capability: str, asked: dict, emission: dict) -> None:
    stream = ids_stream([1], [2], asked=Asked(stream=True, **asked), name="here")
    assert capability not in present(stream)
    shown = capabilities([with_emissions(stream, **emission)], Advertised())[capability]
    assert shown.present
    assert shown.established == "seen in here"


def test_empty_lists_and_nulls_are_no_effect() -> None:
    stream = ids_stream([1], [2])
    empty = with_emissions(
        stream,
        series={"output_token_logprobs": [], "logprobs_content": []},
        prompt_series={"input_token_logprobs": []},
        details={"cached_tokens_details": None, "request_id": None},
    )
    assert present(empty) == present(stream)


def test_logprobs_without_alternatives_are_no_top_logprobs() -> None:
    stream = ids_stream([1], [2], asked=Asked(stream=True, top_logprobs=1))
    entries = [{"token": "a", "logprob": -1.0, "top_logprobs": []}]
    assert "top-logprobs" not in present(with_emissions(stream, series={"logprobs_content": entries}))


def test_what_the_sampler_brings_is_no_logprob() -> None:
    stream = ids_stream([1], [2], asked=Asked(stream=True, top_logprobs=1))
    brought = with_emissions(stream, series={"my_top": [1]}, customized=frozenset({"my_top"}))
    assert not present(brought) & {"logprobs", "top-logprobs"}


def test_a_stop_string_counts_only_where_it_was_asked_for() -> None:
    stream = ids_stream([1], [2], asked=Asked(stream=True, stop=("ab",)))
    assert "stop-strings" not in present(with_emissions(stream, finish=Finish("stop", "cd")))
    assert "stop-strings" not in present(with_emissions(stream, finish=Finish("stop", [1])))


# stream_interval


def spaced(*parts: list[int], interval: int | None) -> Stream:
    return ids_stream(*parts, asked=Asked(stream=True, stream_interval=interval))


BY_TWO = spaced([1], [2, 3], [4, 5], [6, 7], [8], interval=2)
BY_THREE = spaced([1], [2, 3, 4], [5, 6, 7], [8], interval=3)


def test_the_interval_is_seen_where_two_streams_keep_different_ones() -> None:
    assert "stream-interval" in present(BY_TWO, BY_THREE)


def in_steps_of_three(interval: int) -> Stream:
    """What a server writes that spaces all streams alike."""
    return spaced([1], [2, 3, 4], [5, 6, 7], [8], interval=interval)


@pytest.mark.parametrize(
    "streams",
    [
        (spaced([1], [2], [3], [4], interval=2), spaced([1], [2], [3], [4], interval=3)),
        (BY_TWO, spaced([1], [2, 3, 4], [5, 6], [7], interval=3)),
        (BY_TWO, spaced([1], [2, 3, 4], [5], interval=3)),
        (in_steps_of_three(2), in_steps_of_three(3)),
        (spaced([1], [2], [3], [4], interval=1), BY_THREE),
        (BY_THREE, BY_THREE),
        (spaced([1], [2, 3], [4, 5], [6], interval=None), BY_THREE),
    ],
    ids=[
        "ignored",
        "kept once",
        "one event",
        "all alike",
        "nothing to see at 1",
        "one interval",
        "not asked",
    ],
)
def test_the_interval_is_not_seen_where_chance_could_have_done_it(streams: tuple[Stream, ...]) -> None:
    assert "stream-interval" not in present(*streams)
    assert "stream-interval" in present(*streams, advertised=Advertised(stream_interval=1))
    claimed = Advertised(stream_interval=1)
    assert not capabilities(streams, claimed)["stream-interval"].seen
    assert capabilities((BY_TWO, BY_THREE), claimed)["stream-interval"].seen


def test_the_interval_is_seen_in_cumulative_streams_by_their_growth() -> None:
    def cumulative(*parts: list[int], interval: int) -> Stream:
        stream = spaced(*parts, interval=interval)
        choice = replace(stream.choices[0], delivery=Delivery.CUMULATIVE)
        return replace(stream, delivery=Delivery.CUMULATIVE, choices=(choice,))

    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    by_two = cumulative(ids[:1], ids[:3], ids[:5], ids[:7], ids, interval=2)
    by_three = cumulative(ids[:1], ids[:4], ids[:7], ids, interval=3)
    assert {"stream-interval", "cumulative"} <= present(by_two, by_three)
    assert "stream-interval" not in present(by_two, cumulative(ids[:1], ids[:3], ids[:5], ids, interval=3))


# Modes and what is advertised


def test_chat_streams_without_ids_do_not_make_a_cumulative_server_incremental() -> None:
    native = replace(ids_stream([1], [1, 2]), delivery=Delivery.CUMULATIVE)
    chat = replace(with_emissions(ids_stream([1], [2]), output_ids=None), dialect="sglang-chat")
    assert present(native, chat) & {"cumulative", "incremental"} == {"cumulative"}
    assert present(chat) & {"cumulative", "incremental"} == {"incremental"}


def test_chat_capabilities_need_a_chat_dialect() -> None:
    stream = with_emissions(ids_stream([1]), prompt_token_ids=[1, 2])
    assert not present(stream) & {"chat", "tito-chat", "response-token-ids"}
    assert {"chat", "tito-chat", "response-token-ids"} <= present(replace(stream, dialect="sglang-chat"))


def test_what_is_advertised_counts_where_the_effect_could_be_hidden_by_a_fault() -> None:
    assert {"mirror-sampler", "customized-info"} <= present(advertised=Advertised(sampling_backend="mirror"))
    assert present(advertised=Advertised(sampling_backend="pytorch")) == set()
    assert "advertised-mode" in present(advertised=Advertised(delivery=Delivery.CUMULATIVE))


# Three sources


def test_a_capability_names_its_three_sources() -> None:
    stream = ids_stream([1], [2], name="here")
    known = capabilities([stream], Advertised(sampling_backend="mirror"), declared=("logprobs", "text"))
    assert (known["text"].declared, known["text"].seen) == (True, True)
    assert (known["logprobs"].declared, known["logprobs"].present) == (True, False)
    assert (known["mirror-sampler"].present, known["mirror-sampler"].seen) == (True, False)
    assert "sampling_backend 'mirror'" in known["mirror-sampler"].advertised
    assert (known["output-ids"].declared, known["output-ids"].seen) == (False, True)


def test_a_declaration_establishes_nothing() -> None:
    assert not capabilities((), Advertised(), declared=("logprobs",))["logprobs"].present


def test_a_mode_that_is_advertised_and_not_seen_is_not_there() -> None:
    known = capabilities([ids_stream([1], [2])], Advertised(delivery=Delivery.CUMULATIVE))
    assert not known["cumulative"].present
    assert known["cumulative"].advertised == "the server advertises cumulative streams"
    assert known["incremental"].advertised == ""


# token-count


def test_tokens_are_counted_by_usage_too() -> None:
    words = with_emissions(ids_stream([1], [2]), output_ids=None)
    assert "token-count" not in present(words)
    assert "token-count" not in present(replace(words, usage={"prompt_tokens": 2}))
    assert "token-count" in present(replace(words, usage={"completion_tokens": 2}))


def test_cached_tokens_are_counted_by_the_usage_of_responses_too() -> None:
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
    assert "cached-tokens" not in present(ids_stream([1]))
    assert "cached-tokens" in present(replace(ids_stream([1]), usage=usage))


def test_right_answers_are_known_of_a_parrot_and_its_logprobs_of_ours_alone() -> None:
    known = capabilities((), Advertised(), model=MODEL)
    assert known["parrot"].established == "seen in a probe"
    assert known["parrot-logprobs"].seen
    other = capabilities((), Advertised(), model=replace(MODEL, law=Repeater(320)))
    assert (other["parrot"].present, other["parrot-logprobs"].present) == (True, False)
    assert "another parrot" in other["parrot-logprobs"].established
    assert not capabilities((), Advertised())["parrot"].present


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def dropped(dialect: str) -> Stream:
    """A chat that wants an object and gets a part of one, with finish `stop`."""
    message = {"role": "assistant", "content": '{"b": tru'}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {"messages": [{"role": "user", "content": "q"}], "response_format": SCHEMA}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return answered(dialect, body, answer)


@pytest.mark.parametrize(
    ("dialect", "verdict"),
    [("sglang-chat", Verdict.FAIL), ("vllm-chat", Verdict.FAIL), ("openai-chat", Verdict.UNSUPPORTED)],
)
def test_who_drops_each_constraint_breaks_the_promise_of_its_family(dialect: str, verdict: Verdict) -> None:
    run = Run((dropped(dialect),))
    (judged,) = judge([run], [load_requirements()["finished-text-is-a-word"]])
    assert judged.verdict is verdict
    remarked = [words for words in remarks(run) if "constraint" in words]
    assert bool(remarked) is (verdict is Verdict.UNSUPPORTED), "where it is no violation, a remark tells it"
