"""What answers without token ids show: by their text, their usage, the tokens that logprobs name."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from control_calls import sent_at
from test_checks_pairs import observe
from test_live_answers import DONE, answered, violated

from tokenwire.checks.check import Target
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import capabilities
from tokenwire.target.determinism import Comparison

COMPLETIONS, CHAT = "openai-completions", "openai-chat"


def body(prompt: Any = "The sea", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "temperature": 0.0, "max_tokens": 4, **fields}


def choice(text: str, finish: str | None = "length", **more: Any) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish, "logprobs": None, **more}


def document(*choices: dict[str, Any], counted: int | None = None) -> dict[str, Any]:
    usage = {"prompt_tokens": 2, "completion_tokens": counted, "total_tokens": 2 + (counted or 0)}
    head = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": list(choices)}
    return head | ({"usage": usage} if counted is not None else {})


def completed(
    asked: dict[str, Any], *choices: dict[str, Any], label: str, counted: int | None = None
) -> Stream:
    return answered(COMPLETIONS, asked, document(*choices, counted=counted), label=label)


def streamed(
    asked: dict[str, Any], *pieces: dict[str, Any], label: str, counted: int | None = None
) -> Stream:
    asked = {**asked, "stream": True}
    last = [{**document(counted=counted), "choices": []}] if counted is not None else []
    return answered(COMPLETIONS, asked, *(document(piece) for piece in pieces), *last, DONE, label=label)


def held(requirement: str, *subjects: Any) -> bool:
    """Whether something was seen, and nothing of it violated."""
    seen = [item for subject in subjects for item in observe(requirement, subject)]
    return bool([observation for observation in seen if not observation.condition_only]) and all(
        observation.holds for observation in seen
    )


UNSTOPPED = completed(body(), choice(" is blue and deep", "length"), label="unstopped")
STOPS = body(stop=[" and"])


@pytest.mark.parametrize(("shown", "holds"), [(" is blue", True), (" is blue and", False)])
def test_a_stop_that_nobody_names_is_known_by_the_request_without_it(shown: str, holds: bool) -> None:
    stopped = completed(STOPS, choice(shown, "stop"), label="stopped")
    assert capabilities([stopped], Advertised())["stop-strings"].present
    assert held("stop-string-not-shown", (UNSTOPPED, stopped)) is holds
    if holds:
        assert observe("stop-string-not-shown", (stopped,)) == [], "its own end may have come there"


@pytest.mark.parametrize(("pieces", "holds"), [((" is", " blue"), True), ((" is", " blue a"), False)])
def test_text_that_a_stop_takes_away_is_not_shown_where_nobody_names_the_stop(
    pieces: tuple[str, ...], holds: bool
) -> None:
    whole = completed(STOPS, choice(" is blue", "stop"), label="whole")
    ends = [choice(piece, "stop" if piece == pieces[-1] else None) for piece in pieces]
    stream = streamed(STOPS, *ends, label="stream")
    assert held("stop-prefix-held-back", (UNSTOPPED, whole, stream)) is holds


@pytest.mark.parametrize(
    ("budget", "finish", "holds"), [(3, "length", True), (4, "stop", True), (5, "length", False)]
)
def test_an_end_of_the_model_may_be_counted_or_not(budget: int, finish: str, holds: bool) -> None:
    """It ends behind four tokens: four are spent where the end is a fifth, as llama.cpp has it."""

    def ended(budget: int, finish: str) -> Stream:
        asked = {**body(max_tokens=budget), "temperature": 0}
        return completed(asked, choice(" is blue", finish), label=f"{budget}", counted=min(budget, 4))

    known = ended(32, "stop"), ended(16, "stop")
    assert held("stop-wins-within-the-budget", (*known, ended(budget, finish))) is holds
    assert held("stop-wins-within-the-budget", (*known, ended(4, "length")))


def test_no_stop_is_blamed_where_whole_answers_and_streams_say_different_things() -> None:
    """The whole answer has lost its beginning, and the stream shows it: the stop took nothing away."""
    whole = completed(STOPS, choice("blue", "stop"), label="whole")
    stream = streamed(STOPS, choice(" is"), choice(" blue", "stop"), label="stream")
    assert observe("stop-prefix-held-back", (UNSTOPPED, whole, stream)) == []
    assert not held("stream-text-equals-whole", Comparison(whole, stream)), "this says it"


@pytest.mark.parametrize(("second", "holds"), [("lo and deep", True), ("lo, and wide", False)])
def test_a_prompt_in_a_batch_gives_the_text_that_it_gives_alone(second: str, holds: bool) -> None:
    alone = [completed(body("b"), choice("lo and deep"), label=f"alone-{turn}") for turn in range(2)]
    batch = completed(body(["a", "b"]), choice("high"), choice(second) | {"index": 1}, label="batch")
    assert held("batch-items-stand-alone", (*alone, batch)) is holds


@pytest.mark.parametrize(("text", "holds"), [(" is deep", True), (" is wide", False)])
def test_asking_for_logprobs_leaves_the_text_as_it_is(text: str, holds: bool) -> None:
    plain = completed(body(), choice(text), label="plain")
    scored = completed(body(logprobs=2), choice(" is deep"), label="scored")
    assert held("asking-for-more-changes-nothing", (plain, scored)) is holds


def lists(*tokens: str, top: list[dict[str, float] | None] | None = None) -> dict[str, Any]:
    numbers: list[float | None] = [-1.0 - place for place in range(len(tokens))]
    found = top or [{token: number} for token, number in zip(tokens, numbers, strict=True)]
    if found[0] is None:
        numbers[0] = None
    return {"tokens": list(tokens), "token_logprobs": numbers, "top_logprobs": found, "text_offset": None}


@pytest.mark.parametrize(("counted", "holds"), [(2, True), (3, False)])
def test_entries_are_as_many_as_the_usage_counts_where_there_are_no_ids(counted: int, holds: bool) -> None:
    asked = body(logprobs=1, max_tokens=counted)
    whole = completed(asked, choice("ab", logprobs=lists("a", "b")), label="whole", counted=counted)
    assert held("logprobs-whole", whole) is holds
    pieces = [choice("a", None, logprobs=lists("a")), choice("b", logprobs=lists("b"))]
    asked |= {"stream_options": {"include_usage": True}}
    assert held("logprobs-incremental", streamed(asked, *pieces, label="s", counted=counted)) is holds


def test_the_token_of_a_stop_may_have_no_entry() -> None:
    asked = body(logprobs=1, max_tokens=9)
    whole = completed(asked, choice("ab", "stop", logprobs=lists("a", "b")), label="whole", counted=3)
    assert observe("logprobs-whole", whole) == []


@pytest.mark.parametrize(("entries", "holds"), [(60, True), (59, False)])
def test_a_long_answer_without_ids_has_an_entry_for_each_token_that_it_counts(
    entries: int, holds: bool
) -> None:
    asked = body(logprobs=1, max_tokens=60)
    whole = completed(asked, choice("a" * 60, logprobs=lists(*"a" * entries)), label="whole", counted=60)
    assert held("whole-accumulates", whole) is holds


@pytest.mark.parametrize(("counted", "holds"), [(12, True), (6, False)])
def test_the_usage_of_several_choices_counts_the_budgets_that_all_of_them_spent(
    counted: int, holds: bool
) -> None:
    """One answer of vLLM PR #4061's kind: the usage is that of one choice."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 6, "n": 2}
    usage = {"prompt_tokens": 2, "completion_tokens": counted, "total_tokens": 2 + counted}
    choices = [
        {"index": index, "message": {"role": "assistant", "content": "one"}, "finish_reason": "length"}
        for index in range(2)
    ]
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    assert (
        held("usage-counts-ids", answered(CHAT, asked, {**head, "choices": choices, "usage": usage})) is holds
    )
    choices[0]["finish_reason"] = "stop"
    assert (
        observe("usage-counts-ids", answered(CHAT, asked, {**head, "choices": choices, "usage": usage})) == []
    )


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"sea": -2.0, "sky": -1.5}, ""),
        ({"sky": -1.5}, ""),
        ({"sea": -2.5, "sky": -1.5}, "gives the prompt token 'sea' -2.5"),
        ({"sky": -2.5}, "has at most -2.5, although the prompt token has the higher -2.0"),
        ({"sea": -2.0, "sky": -1.5, "a": -3.0}, "holds 3 entries for 1 and the prompt token's own"),
        ({"sea": 2.0}, "which are not logprobs"),
    ],
)
def test_the_alternatives_of_an_echoed_prompt_belong_to_their_tokens(
    row: dict[str, float], fault: str
) -> None:
    top = [None, row, {" is": -3.0}]
    asked = body("The sea", echo=True, logprobs=1, max_tokens=1)
    echoed = choice("The sea is", logprobs=lists("The ", "sea", " is", top=top))
    stream = completed(asked, echoed, label="echo", counted=1)
    assert [
        fault in observation.message
        for observation in violated("prompt-top-logprobs-belong-to-position", stream)
    ] == ([True] if fault else [])
    assert len(observe("prompt-top-logprobs-belong-to-position", stream)) == 1


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        (((39, -7.0), (313, -4.4)), ""),
        (((39, -4.4),), ""),
        (((313, -4.4),), "lacks the prompt id 39"),
        (((39, -7.0), (313, -4.4), (12, -4.5)), "holds 3 entries for 1 and the prompt id's own"),
        (((39, 7.0), (313, -4.4)), "which are not logprobs"),
        (((313, -4.4), (39, -7.0)), ""),
    ],
)
def test_ranked_alternatives_hold_the_prompt_id_and_as_many_as_were_asked_for(
    entries: tuple[tuple[int, float], ...], fault: str
) -> None:
    """As vLLM tells the logprobs of a prompt: the prompt's own id first. A gateway may sort the keys."""
    ranked = sorted((logprob for _, logprob in entries), reverse=True)
    entry = {
        str(token): {"logprob": logprob, "rank": ranked.index(logprob) + 1, "decoded_token": "x"}
        for token, logprob in entries
    }
    asked = {"prompt": [73, 39], "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 1, "temperature": 0.0}
    written = choice("a", token_ids=[5], prompt_logprobs=[None, entry])
    stream = answered("vllm-completions", asked, document(written, counted=1))
    found = violated("prompt-top-logprobs-belong-to-position", stream)
    assert [fault in seen.message for seen in found] == ([True] if fault else [])
    assert len(observe("prompt-top-logprobs-belong-to-position", stream)) == 1


def test_logprobs_that_do_not_fall_with_their_ranks_are_found_in_any_order_of_keys() -> None:
    rows = [("39", -4.5, 2), ("313", -4.4, 1), ("12", -4.6, 3)]
    asked = {"prompt": [73, 39], "logprobs": 1, "prompt_logprobs": 2, "max_tokens": 1, "temperature": 0.0}
    for order in permutations(rows):
        for exchanged, faults in ((False, 0), (True, 1)):
            found = {
                key: {"logprob": number, "rank": 4 - rank if exchanged else rank, "decoded_token": "x"}
                for key, number, rank in order
            }
            written = choice("a", token_ids=[5], prompt_logprobs=[None, found])
            stream = answered("vllm-completions", asked, document(written, counted=1))
            assert len(violated("prompt-top-logprobs-belong-to-position", stream)) == faults


@pytest.mark.parametrize(("scale", "holds"), [(1.0, True), (2.0, True), (1.5, False)])
def test_whether_logprobs_are_divided_by_the_temperature_is_told_by_texts_too(
    scale: float, holds: bool
) -> None:
    def top(scale: float) -> Any:
        return {**lists("a"), "top_logprobs": [{"a": -1.0 * scale, "b": -3.0 * scale}]}

    greedy = completed(body(logprobs=2, max_tokens=1), choice("a", logprobs=top(1.0)), label="greedy")
    asked = body(logprobs=2, max_tokens=1) | {"temperature": 0.5, "seed": 7}
    warm = completed(asked, choice("a", logprobs=top(scale)), label="warm")
    assert held("logprobs-follow-one-rule", (greedy, warm)) is holds


@pytest.mark.parametrize(("times", "holds"), [(46, True), (60, False)])
def test_a_penalised_token_gives_way_where_only_its_text_is_told(times: int, holds: bool) -> None:
    tokens = ["x"] * times + [chr(200 + place) for place in range(64 - times)]
    asked = body(logit_bias={"40": 40.0}, frequency_penalty=2.0, logprobs=1, max_tokens=64)
    stream = completed(asked, choice("".join(tokens), logprobs=lists(*tokens)), label="whole", counted=64)
    assert held("frequency-penalty-is-kept", (stream,)) is holds


def test_ids_that_count_otherwise_than_the_usage_are_seen_on_any_completions_endpoint() -> None:
    good = completed(body([5, 6]), choice("a"), label="ids", counted=4)
    assert held("prompt-tokens-count-the-input-ids", good)
    assert violated(
        "prompt-tokens-count-the-input-ids", completed(body([5, 6, 7]), choice("a"), label="ids", counted=4)
    )


def test_a_dialect_that_takes_texts_has_another_in_words() -> None:
    dialects = load_dialects()
    in_words = dialects[COMPLETIONS].in_words
    assert in_words is not None
    assert dialects[COMPLETIONS].takes_ids
    assert not in_words.takes_ids
    assert in_words.in_words is None
    assert dialects["sglang-completions"].in_words is not None  # as behind a router that takes no ids
    assert all(dialect.in_words is None for dialect in dialects.values() if dialect.chat)
    assert dialects["vllm-generate"].in_words is None


def test_a_door_without_ids_owes_none_where_the_server_has_no_tokenizer() -> None:
    """SGLang's completions without a tokenizer, before its family is known: 500 to a prompt of ids."""
    target = Target(advertised=Advertised(tokenizer=False))
    failed = answered(COMPLETIONS, body([5, 6]), {"error": {"message": "'text'"}}, status=500)
    assert observe("ids-need-no-tokenizer", failed, target) == []
    failed = answered("sglang-completions", body([5, 6]), {"error": {"message": "'text'"}}, status=500)
    assert [seen.holds for seen in observe("ids-need-no-tokenizer", failed, target)] == [False]


@pytest.mark.parametrize(("last", "count"), [(False, 1), (True, 1), (True, 2)])
def test_usage_of_an_event_with_a_choice_counts_that_choice_alone(last: bool, count: int) -> None:
    body = {"prompt": [10], "n": 2, "max_tokens": 1, "stream": True, "return_token_ids": True}
    options = {"include_usage": last, "continuous_usage_stats": True}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    events: list[dict[str, Any]] = [
        {
            **head,
            "choices": [{"index": index, "text": "a", "finish_reason": "length", "token_ids": [5]}],
            "usage": usage,
        }
        for index in (0, 1)
    ]
    final = {**head, "choices": [], "usage": {**usage, "completion_tokens": count, "total_tokens": 1 + count}}
    stream = answered(
        "sglang-completions",
        {**body, "stream_options": options},
        *events,
        *([final] if last else []),
        "[DONE]",
    )
    assert [seen.holds for seen in observe("usage-counts-ids", stream)] == ([count == 2] if last else [])


@pytest.mark.parametrize(("budget", "violations"), [(4, 1), (48, 0)])
def test_a_text_is_no_beginning_of_what_another_budget_gives(budget: int, violations: int) -> None:
    """A server may parse what is whole: what it drops depends on where the answer ends."""
    plain = completed(body(), choice(" is wide"), label="plain")
    scored = completed(body(logprobs=2, max_tokens=budget), choice(" is deep"), label="scored")
    assert len(violated("asking-for-more-changes-nothing", (plain, scored))) == violations


@pytest.mark.parametrize(("among", "violations"), [(completed, 1), (streamed, 0)])
def test_a_stream_in_a_crowd_is_not_held_against_whole_texts(among: Any, violations: int) -> None:
    alone = [sent_at(completed(body(), choice(" is deep"), label=f"alone-{n}"), 3.0 * n) for n in range(2)]
    others = [sent_at(completed(body(f"q{n}"), choice("x"), label=f"q{n}"), 10.0, 2.0) for n in range(5)]
    crowded = sent_at(among(body(), choice(" is wide"), label="among"), 10.5)
    assert len(violated("neighbours-change-nothing", (*alone, crowded, *others))) == violations
