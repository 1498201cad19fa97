"""What the checks of logprobs, prompts and echoes promise beyond their pairs: shapes, exemptions, words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logprob_pairs import (
    COMPLETIONS,
    GREEDY,
    PLAIN,
    PROMPT_KEY,
    biased,
    chat,
    completion,
    content,
    lists,
    penalised,
    placeholder,
    ranked,
    ranked_prompt,
    scored,
    warm,
)
from stream_builder import IDS, Reply, change, cumulative, incremental, logprobs, named, top_logprobs, whole
from test_checks_pairs import observe

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.chat_logprobs import is_spelled, is_spelled_by_some
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.checks.prompt import Pair, observe_agreement
from tokenwire.dialects.logprobs import (
    CONTENT,
    NAMED,
    NAMED_TOP,
    RANKED,
    SAMPLED,
    TOP,
    Logprob,
    LogprobSeries,
    read_series,
    series_along,
)
from tokenwire.record import Place, Stream


def seen(requirement: str, *streams: Stream) -> list[Observation]:
    check = CHECKS[requirement]
    if check.on_run is not None:
        return list(check.on_run(streams, Target()))
    assert check.on_stream is not None
    return [item for stream in streams for item in check.on_stream(stream, Target())]


def violated(requirement: str, *streams: Stream) -> list[Observation]:
    return [observation for observation in seen(requirement, *streams) if not observation.holds]


def read(name: str, value: object) -> LogprobSeries:
    return read_series(name, [value])


@pytest.mark.parametrize(
    ("name", "value", "token_id"),
    [
        (SAMPLED, [-1.0, 7], 7),
        (SAMPLED, [-1.0, 7, None], 7),
        (CONTENT, {"logprob": -1.0, "token_id": 7}, 7),
        (CONTENT, {"logprob": -1.0, "id": 7, "token": "x"}, 7),
        (CONTENT, {"logprob": -1.0, "token": "token_id:7"}, 7),
        (CONTENT, {"logprob": -1.0, "token": "x"}, None),
        (NAMED, -1.0, None),
    ],
)
def test_an_entry_is_read_in_every_shape(name: str, value: object, token_id: int | None) -> None:
    (entry,) = read(name, value).tokens
    assert entry is not None
    assert (entry.value, entry.id) == (-1.0, token_id)


@pytest.mark.parametrize("value", [None, 1, "x", [], [-1.0], [[-1.0, 7, None]], {"token": "x"}])
def test_a_value_that_is_no_entry_stands_for_itself(value: object) -> None:
    series = read(SAMPLED, value)
    assert (series.tokens, series.illegal, series.ids) == ([None], [value], [])


@pytest.mark.parametrize(
    ("name", "value", "ids"),
    [
        (SAMPLED, [-1.0, 7, None], [7]),
        (SAMPLED, [-1.0, None, None], [None]),
        (SAMPLED, [-1.0, "7", None], ["7"]),
        (SAMPLED, [-1.0, None, "x"], []),
        (TOP, [[-1.0, 7, None], [-2.0, 8, None]], [7, 8]),
        (TOP, [[-1.0, 7, None], [-2.0, None, "x"]], [7]),
        (TOP, [[-1.0, 7, None], [-2.0, None, None]], [7, None]),
        (TOP, [], []),
        (CONTENT, {"logprob": -1.0, "token": "x"}, []),
        (CONTENT, {"logprob": -1.0, "id": 7, "top_logprobs": [{"logprob": -1.0, "id": 8}]}, [7, 8]),
        (NAMED, -1.0, []),
    ],
)
def test_an_entry_names_an_id_or_should_but_where_it_stands_by_its_text(
    name: str, value: object, ids: list[Any]
) -> None:
    assert read(name, value).ids == ids


def test_alternatives_are_read_by_id_and_by_text() -> None:
    by_id, by_text = read(RANKED, {"7": {"logprob": -1.0, "rank": 2}}), read(NAMED_TOP, {"x": -2.0})
    assert by_id.positions == [[Logprob(-1.0, 7)]]
    assert by_text.positions == [[Logprob(-2.0, None, "x")]]
    assert read(RANKED, {"x": {"logprob": -1.0}}).positions == [None]


@pytest.mark.parametrize(
    "requirement", ["logprob-values-are-legal", "logprobs-vary", "greedy-logprobs-are-likely"]
)
def test_a_placeholder_is_no_witness(requirement: str) -> None:
    assert seen(requirement, placeholder()) == []
    assert requirement != "logprob-values-are-legal" or seen(requirement, placeholder(-80.5))


def test_a_placeholder_of_a_forced_token_is_not_judged() -> None:
    answer = placeholder()
    forced = replace(answer, asked=replace(answer.asked, other_sampling="bias"))
    assert violated("sampled-ids-have-logprobs", answer)
    assert violated("sampled-ids-have-logprobs", forced) == []


def test_candidates_that_truncation_left_out_are_no_witness() -> None:
    entries = [{**entry, "logprob": -9999.0} for entry in content()]
    left_out = [{**content()[0], "top_logprobs": entries[:2]}, *content()[1:]]
    assert seen("top-logprobs-fall", chat(left_out, top_logprobs=2)) == []


def test_digits_without_end_are_no_id() -> None:
    """Python refuses to read so many, and a check would end there."""
    digits = "9" * 5000
    assert read(RANKED, {digits: {"logprob": -1.0}}).positions == [None]
    assert read(CONTENT, {"token": f"token_id:{digits}", "logprob": -1.0}).ids == []


@pytest.mark.parametrize(
    ("name", "value", "illegal"),
    [
        (NAMED, -1.5, []),
        (NAMED, 0.5, [0.5]),
        (NAMED, None, [None]),
        (CONTENT, {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": 3.0}]}, [3.0]),
        (NAMED_TOP, {"a": -1.0, "b": 2.0}, [2.0]),
        (RANKED, {"5": {"logprob": 1.0}}, [1.0]),
        (TOP, [[-1.0, 7, None], [float("inf"), 8, None], [True, 9, None]], [float("inf"), True]),
    ],
)
def test_illegal_logprobs_are_found_in_every_shape(name: str, value: object, illegal: list[Any]) -> None:
    assert read(name, value).illegal == illegal


@pytest.mark.parametrize("data", [2**40, "x", [256], [-1], ["x"], {}])
def test_bytes_that_are_none_take_no_memory(data: object) -> None:
    """A number is no list of bytes: `bytes(2**40)` would make so many."""
    (entry,) = read(CONTENT, {"token": "x", "logprob": -1.0, "bytes": data}).tokens
    assert entry is not None
    assert entry.bytes is None


@pytest.mark.parametrize(
    ("text", "tokens", "spelled"),
    [
        ("abc", [b"a", b"b", b"c"], True),
        ("ab", [b"a", b"b", b"<|end|>"], True),
        ("ab", [b"a", b"<|special|>", b"b"], True),
        ("a", [b"a", b"bc"], True),  # a stop cut the rest off
        ("abc", [b"a", b"b"], False),
        ("abc", [b"a", b"a", b"a"], False),
        ("é", [b"\xc3", b"\xa9"], True),
        ("é", [b"\xa9"], False),
        ("a\ufffd\ufffdb", [b"a", b"\xff", b"b"], True),
        ("a\ufffd", [b"a", b"\xc3"], True),
        ("Hi", [b" Hi"], True),  # some tokenizers drop the first space
    ],
)
def test_tokens_spell_a_text(text: str, tokens: list[bytes], spelled: bool) -> None:
    assert is_spelled(text, tokens) is spelled


pieces = st.lists(
    st.sampled_from([b" ", b"a", b" a", b"b", "\u00e9".encode(), b"\xc3", b"\xa9", b"<s>", b""]), max_size=6
)


@given(pieces, pieces, st.integers(0, 8))
def test_tokens_spell_a_text_at_once_as_they_do_one_by_one(
    tokens: list[bytes], others: list[bytes], cut: int
) -> None:
    for text in (b"".join(tokens), b"".join(tokens)[:cut], b"".join(tokens)[1:], b"".join(others)):
        shown = re.sub("\ufffd+", "\ufffd", text.decode(errors="replace"))
        assert is_spelled(shown, tokens) == is_spelled_by_some(shown, tokens)


def test_an_entry_without_bytes_and_text_is_not_judged() -> None:
    unknown = [{"token": "", "logprob": -1.0, "bytes": [], "top_logprobs": []}, *content("bcdef")]
    assert seen("chat-logprobs-spell-the-text", chat(unknown)) == []


def test_a_finding_says_what_is_wrong_with_chat_logprobs() -> None:
    (first,) = violated("chat-logprobs-have-content", chat([{"token": 5, "logprob": -1.0}]))
    assert first.message == "logprobs 0 of content has the token 5"


def test_two_texts_are_quoted_from_where_they_part() -> None:
    long = "ab" * 50
    (found,) = violated("chat-logprobs-spell-the-text", chat(content(f"{long}X."), text=f"{long}Y."))
    assert "spell 'ababababababababababX.'" in found.message
    assert "the text is 'ababababababababababY.'" in found.message
    assert found.message.startswith("from character 80 on")


def test_null_chat_logprobs_are_another_requirements_matter() -> None:
    assert seen("chat-logprobs-have-content", chat(None)) == []
    assert seen("chat-logprobs-count-the-tokens", chat(None)) == []


def test_a_stop_id_has_its_entry_where_the_dialect_does_not_leave_it_open() -> None:
    one_short = chat(content()[:5], stop=True)
    assert violated("chat-logprobs-count-the-tokens", one_short) == []
    assert violated("chat-logprobs-count-the-tokens", replace(one_short, dialect="sglang-chat"))


def test_offsets_that_a_dialect_does_not_tell_are_not_judged() -> None:
    untold = lists(text_offset=[-1] * len(IDS))
    assert seen("text-offsets-add-up", completion(untold, dialect="sglang-completions")) == []
    assert violated("text-offsets-add-up", completion(untold, dialect="vllm-completions"))


@pytest.mark.parametrize(
    ("tokens", "offsets", "holds"),
    [
        (["a", "<|eot|>", "b", "c"], [0, 1, 1, 2], True),  # only what is shown is counted
        (["a", "<|eot|>", "b", "c"], [0, 1, 8, 9], True),  # vLLM 0.32.0 counts names
        (["a", "<|eot|>", "b", "c"], [0, 1, 2, 3], False),
        (["a", "b", "c", ""], [0, 0, 0, 0], False),  # the text shows each of them
        (["ab", "", "", "\u00e9", "c"], [0, 2, 2, 2, 3], True),  # vLLM: the last part has the character
        (["ab", "", "", "c"], [0, 2, 2, 3], True),
        (["ab", "", "", "c"], [0, 2, 2, 4], False),
        (["ab", "", "", "c"], [0, 2, 1, 3], False),
        (["ab", "", "", "<|eot|>"], [0, 2, 2, 4], True),  # hidden
        (["p", "", "<|eot|>", "", "i"], [0, 1, 1, 1, 3], True),  # hidden, it ends no character
        (["p", "", "<|eot|>", "", "i"], [0, 1, 2, 1, 3], True),
        (["p", "", "<|eot|>", "i"], [0, 1, 1, 3], True),
        (["p", "", "<|eot|>", "i"], [0, 1, 1, 8], True),
        (["p", "", "<|eot|>", "i"], [0, 1, 1, 0], False),
        (["p", "", "<|eot|>", "i"], [0, 1, 1, 4], False),
        (["p", "", "", "i", "", "a"], [0, 1, 1, 3, 4, 5], True),  # "" shows two characters at once
        (["p", "", "", "i", "", "a"], [0, 1, 1, 4, 5, 6], False),
        (["it", "is"], [0, 3], True),  # alone, a tokenizer may write a token without its blank
    ],
)
def test_a_token_that_the_text_does_not_show_need_not_be_counted(tokens, offsets, holds) -> None:
    text = {"ab": "ab\u00e9c", "it": " it is", "p": "p\ufffd\ufffdi\ufffda"}.get(tokens[0], "abc")
    found = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens), "text_offset": offsets}
    stream = whole(Reply(text=text, details={"logprobs": found}), logprobs=True, dialect="vllm-completions")
    assert (not violated("text-offsets-add-up", stream)) is holds


def test_offsets_go_on_across_events() -> None:
    parts = [
        {"tokens": ["a"], "token_logprobs": [-1.0], "text_offset": [offset]} for offset in range(len(IDS))
    ]
    stream = incremental(dialect="vllm-completions", logprobs=True)
    for index, part in enumerate(parts):
        stream = change(stream, index, details={"logprobs": part})
    assert violated("text-offsets-add-up", stream) == []
    again = change(stream, 3, details={"logprobs": {**parts[3], "text_offset": [0]}})
    assert violated("text-offsets-add-up", again)[0].place.event == 3


@pytest.mark.parametrize("other", [None, [], {}, 5, "x"], ids=repr)
def test_an_alternative_that_is_no_entry_is_found_beside_one_that_is(other: object) -> None:
    rows: list[list[Any]] = top_logprobs()
    rows[2] = [rows[2][0], other]
    series = {"output_token_logprobs": logprobs(), "output_top_logprobs": rows}
    stream = whole(Reply(series=series), logprobs=True, top_logprobs=2)
    assert violated("logprob-values-are-legal", stream)
    assert violated("top-logprobs-have-k", stream)


def test_an_empty_list_of_alternatives_is_legal_where_none_were_asked_for() -> None:
    stream_ = lists(top_logprobs=[])
    reply = Reply(series=stream_, details={"logprobs": stream_})
    stream = whole(reply, dialect="sglang-completions", logprobs=True)
    assert violated("completion-logprobs-are-parallel", stream) == []
    assert violated("logprobs-whole", stream) == []
    assert violated("logprobs-whole", replace(stream, asked=replace(stream.asked, top_logprobs=2)))


def top_by_text(rows: list[Any], **asked: Any) -> Stream:
    series = {**lists(), "top_logprobs": rows}
    return whole(Reply(series=series), dialect="vllm-completions", logprobs=True, top_logprobs=1, **asked)


def test_the_sampled_token_may_stand_beside_the_likeliest_of_a_completion() -> None:
    rows = [{name: -0.5 - place, "other": -9.0} for place, name in enumerate("abcdef")]
    assert violated("top-logprobs-have-k", top_by_text(rows)) == []
    rows[2] = {**rows[2], "third": -9.5}
    assert "position 2" in violated("top-logprobs-have-k", top_by_text(rows))[0].message


def test_greedy_sampling_takes_the_greatest_where_tokens_have_no_ids() -> None:
    rows = [{name: -0.5 - place} for place, name in enumerate("abcdef")]
    assert violated("top-logprobs-belong-to-position", top_by_text(rows)) == []
    rows[1] = rows[0]
    assert violated("top-logprobs-belong-to-position", top_by_text(rows))
    assert violated("top-logprobs-belong-to-position", top_by_text(rows, greedy=False)) == []


def test_the_sampled_token_may_come_first_where_the_dialect_says_so() -> None:
    entries = [[[-3.0, 11, None], [-1.0, 90, None], [-2.0, 91, None]]]
    reply = Reply(
        ids=(11,), text="a", series={"output_token_logprobs": [[-3.0, 11]], "output_top_logprobs": entries}
    )
    stream = whole(reply, logprobs=True, top_logprobs=3, greedy=False)
    assert violated("top-logprobs-fall", replace(stream, dialect="vllm-generate")) == []
    assert violated("top-logprobs-fall", stream)


def test_a_bias_that_changes_nothing_may_have_been_dropped() -> None:
    """Then logprobs that it does not move are no other rule than the declared one."""
    of_sampling = Target(capabilities=frozenset({"logprobs-at-the-temperature"}))
    judged = [
        list(CHECKS["logprobs-follow-the-declared-rule"].on_run((GREEDY, answer), of_sampling))
        for answer in (biased(0.0, chosen=0), biased(0.0), biased(10.0))
    ]
    assert [[seen.holds for seen in of_answer] for of_answer in judged] == [[], [False], [True]]
    on_run = CHECKS["logprobs-follow-one-bias-rule"].on_run
    dropped, taken = ([*on_run((penalised(0.0, 0.0), penalised(shift)), Target())] for shift in (0.0, 1.0))
    assert ([seen.holds for seen in dropped], [seen.holds for seen in taken]) == ([], [True])


def test_a_bias_may_leave_the_model_no_choice() -> None:
    ids = tuple(range(20, 28))
    reply = Reply(
        ids=ids, text="abcdefgh", series={"output_token_logprobs": [[-1.0, token, None] for token in ids]}
    )
    assert violated("logprobs-vary", whole(reply, logprobs=True))
    assert seen("logprobs-vary", whole(reply, logprobs=True, other_sampling='{"regex":"a*"}')) == []


def sure(first: int, count: int, logprob: float = 0.0) -> Stream:
    """An answer that gives so many ids one logprob."""
    ids = range(first, first + count)
    series = {"output_token_logprobs": [[logprob, token, None] for token in ids]}
    return whole(
        Reply(ids=tuple(ids), text="x" * count, series=series), name=f"generate/{first}", logprobs=True
    )


def test_few_ids_may_have_one_logprob() -> None:
    assert seen("logprobs-vary", sure(10, 6, -1.0)) == []


def test_a_model_may_be_sure_of_token_after_token_and_not_of_all() -> None:
    """Ten ids in a row whose logprob is exactly 0.0, as a large model writes what it knows by heart."""
    assert violated("logprobs-vary", sure(10, 10)) == []
    assert violated("logprobs-vary", *(sure(start, 20) for start in (10, 30, 50)), sure(70, 20, -0.5)) != []
    assert violated("logprobs-vary", *(sure(start, 20) for start in (10, 30, 50)), sure(70, 6, -0.5)) == []
    assert len(violated("logprobs-vary", *(sure(start, 20) for start in (10, 30, 50, 70)))) == 4


def agreement(apart: int, of: int) -> Observation:
    pairs = [Pair(position, -1.0, -2.0 if position < apart else -1.1) for position in range(of)]
    return observe_agreement(Place("x"), pairs, what="the logprob of position", source="there")


def test_one_in_ten_may_lie_apart() -> None:
    assert agreement(1, 10).holds
    assert not agreement(2, 10).holds
    assert not agreement(1, 9).holds
    assert (
        agreement(2, 10).message
        == "the logprob of position 0 is -1.0, but -2.0 there; 2 of 10 positions differ"
    )


def test_null_agrees_with_nothing() -> None:
    assert not Pair(0, None, -1.0).agrees
    assert not Pair(0, True, -1.0).agrees


def test_prompts_of_one_start_are_not_compared() -> None:
    assert seen("prompt-logprobs-independent-of-start", scored(), scored(shift=3.0)) == []


def test_ranked_prompt_logprobs_are_read_by_the_id_of_the_prompt() -> None:
    """As vLLM tells them; scored from the beginning, beside a series that SGLang tells from position 2."""
    entries = [None, *({str(token): {"logprob": -1.0 - token, "rank": 1}} for token in (2, 3, 4, 5))]
    ranked = whole(
        Reply(ids=IDS[:1], text="a", prompt_series={"prompt_logprobs": entries}),
        input_ids=((1, 2, 3, 4, 5),),
        logprobs=True,
    )
    shown = [[-1.0 - token if token > 3 else None, token, None] for token in (3, 4, 5)]
    from_two = scored(start=2)
    same = change(from_two, prompt_series={"input_token_logprobs": shown})
    assert [
        observation.holds for observation in seen("prompt-logprobs-independent-of-start", ranked, same)
    ] == [True]
    assert violated("prompt-logprobs-independent-of-start", ranked, from_two)


def test_output_that_was_sampled_at_a_temperature_is_not_rescored() -> None:
    reply = Reply(series={"output_token_logprobs": logprobs()})
    warm = whole(reply, logprobs=True, greedy=False, temperature=0.7)
    assert seen("prompt-logprobs-rescore-the-output", warm, scored((1, 2, 3, *IDS))) == []


def test_a_refusal_of_another_prompt_is_no_refusal_of_own_ids() -> None:
    other = whole(input_ids=((9, 9),))
    assert seen("own-ids-are-accepted", whole(), other) == []


def test_an_echo_that_begins_again_in_later_events_is_no_chance() -> None:
    """How often depends on how the stream was cut, so it is not the same when it is asked again."""
    texts = {"input_ids": None, "texts": ("Say ",), "prompt_key": PROMPT_KEY, "dialect": COMPLETIONS}

    def by_chance(*events: str) -> list[bool]:
        echo = incremental(echo=True, **texts)
        for index, text in enumerate(events):
            echo = change(echo, index, text=text, output_ids=None)
        stream = named(echo, "completions/echo-stream")
        return [
            observation.by_chance
            for observation in seen("echo-adds-only-the-prompt", PLAIN, stream)
            if not observation.holds
        ]

    assert by_chance("Say ab", "Say cd", "Say ef", "", "", "") == [False]
    assert by_chance("Say ab", "xx", "Say", " it", "", "") == [True]


def test_a_rule_of_the_logprobs_is_told_with_the_answer_that_follows_another() -> None:
    (alone,) = violated("logprobs-follow-one-rule", GREEDY, warm(0.5))
    assert alone.message == "the logprobs are 0.50 times as far apart as at temperature 1"
    (second,) = violated("logprobs-follow-one-rule", GREEDY, warm(2.0), warm(1.0, "generate/again"))
    assert second.message == (
        "the logprobs are not divided by the temperature, but divided by the temperature in generate/warm"
    )


def test_names_in_a_cumulative_stream_are_those_of_its_new_numbers() -> None:
    names, numbers = ["a", "b", "c", "d", "e", "f"], [-0.5, -1.5, -2.5, -3.5, -4.5, -5.5]
    stream = cumulative(Reply(ids=IDS, series={"token_logprobs": numbers, "tokens": names}))
    (choice,) = stream.choices
    read = [token for _, series in series_along(choice) for token in series.tokens if token]
    assert [(token.text, token.value) for token in read] == list(zip(names, numbers, strict=True))


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (ranked(3, 1, 2), ""),
        (ranked(5, 1, 2), ""),
        (ranked(1), ""),
        (ranked(6), ""),
        (ranked(1, 2, 1, number=-1.0), "has the rank 1 for 9, but 2 listed tokens are more likely"),
        (ranked(2, 1, 2), "has the rank 2 for 7, but 2 listed tokens are more likely"),
        (ranked(3, 2, 3), "has the rank 2 for 8, but it is among the first 1"),
        (ranked(0, 1, 2), "has the rank 0 for 7, but ranks count from 1"),
        (ranked(1, number=0.0, again=[-1.8]), ""),
        (ranked(7), "has the rank 7 for 7, but fewer tokens are as likely as -1.8"),
        (ranked_prompt(1, 1), "has the rank 1 for '6', but 1 listed tokens are more likely"),
    ],
)
def test_a_rank_is_the_place_of_its_token_by_the_logprobs_beside_it(stream: Stream, fault: str) -> None:
    (found,) = observe("rank-is-the-rank", stream)
    assert found.holds is (not fault)
    assert fault in found.message


def test_equals_may_stand_in_any_order_and_chosen_ids_have_any_rank() -> None:
    for ranks in ((2, 1), (1, 2), (2, 2)):
        assert observe("rank-is-the-rank", ranked(ranks[0], ranks[1], number=-1.0))[0].holds
    chosen = ranked(4, 2, number=-4.0)
    assert not observe("rank-is-the-rank", chosen)[0].holds
    asked = replace(chosen.asked, chosen_ids=(7, 8))
    assert observe("rank-is-the-rank", replace(chosen, asked=asked))[0].holds
