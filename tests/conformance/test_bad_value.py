"""What is wrong with a request, and what only looks so: lenient readers have their say."""

from __future__ import annotations

from typing import Any

import pytest
from stream_builder import refusal
from wire_answers import answered

from tokenwire.ask import Ask, Asked, SentField
from tokenwire.checks.reading.bad_values import (
    BadValue,
    impossible_values,
    misfitting_lists,
    unknown_chosen_ids,
    unknown_parameter_ids,
    unknown_prompt_ids,
    unreadable_body,
    wrong_types,
)
from tokenwire.dialects.dialect import load_dialects, vocabulary_told
from tokenwire.wire.exchange import HttpRequest

GENERATE = load_dialects()["sglang-generate"]


def asked(**params: Any) -> Asked:
    return GENERATE.read_asked(
        HttpRequest("POST", "/generate", {"input_ids": [1], "sampling_params": params})
    )


def problems(found: Any) -> list[str]:
    return [item.problem for item in found]


@pytest.mark.parametrize(
    "params",
    [
        {"max_new_tokens": "5"},
        {"max_new_tokens": 5.0},
        {"max_new_tokens": None},
        {"ignore_eos": "true"},
        {"ignore_eos": 1},
        {"temperature": "0.5"},
        {"stop": None},
        {"stop": ["a", None]},
        {"stop_token_ids": ["7"]},
        {"stop_token_ids": 7},
    ],
)
def test_what_a_lenient_reader_understands_is_not_wrong(params: dict[str, Any]) -> None:
    assert list(wrong_types(asked(**params))) == []


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"max_new_tokens": "many"}, "is not an integer"),
        ({"max_new_tokens": 2.5}, "is not an integer"),
        ({"n": {}}, "is not an integer"),
        ({"temperature": "warm"}, "is not a number"),
        ({"ignore_eos": "perhaps"}, "is not a boolean"),
        ({"stop": 5}, "is not a string or a list of strings"),
        ({"stop_token_ids": {"id": 2}}, "is not a list of token ids"),
    ],
)
def test_what_no_reader_understands_is_wrong(params: dict[str, Any], problem: str) -> None:
    assert problems(wrong_types(asked(**params))) == [problem]


def test_each_item_of_a_batch_may_be_wrong() -> None:
    body = {"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": "two"}]}
    read = GENERATE.read_asked(HttpRequest("POST", "/generate", body))
    assert [wrong_type.value for wrong_type in wrong_types(read)] == ["two"]
    flags = {"input_ids": [[1], [2]], "return_logprob": [True, False]}
    assert list(wrong_types(GENERATE.read_asked(HttpRequest("POST", "/generate", flags)))) == []


def test_a_dialect_may_give_a_meaning_to_odd_numbers() -> None:
    minus_one = asked(max_new_tokens=-1)
    assert problems(impossible_values(minus_one, {})) == ["is below 0"]
    assert list(impossible_values(minus_one, {"max_new_tokens": -2})) == []
    assert list(impossible_values(asked(stream_interval=-7), {"stream_interval": None})) == []


def test_a_least_number_of_tokens_fits_the_budget() -> None:
    assert list(impossible_values(asked(min_new_tokens=4, max_new_tokens=4), {})) == []
    assert problems(impossible_values(asked(min_new_tokens=5, max_new_tokens=4), {})) == [
        "is above the budget of 4"
    ]


def test_ids_are_unknown_beyond_the_vocabulary_where_it_is_told() -> None:
    read = GENERATE.read_asked(HttpRequest("POST", "/generate", {"input_ids": [0, 256, 2**31 - 1]}))
    assert list(unknown_prompt_ids(read, None)) == []
    assert [token.value for token in unknown_prompt_ids(read, 256)] == [256, 2**31 - 1]
    beyond = GENERATE.read_asked(HttpRequest("POST", "/generate", {"input_ids": [2**31, -1]}))
    assert [token.value for token in unknown_prompt_ids(beyond, None)] == [2**31, -1]


def test_ids_of_parameters_are_found_wherever_they_stand() -> None:
    body = {"input_ids": [1], "token_ids_logprob": [[3], [-2]], "return_logprob": True}
    params = {"stop_token_ids": [5, -5], "logit_bias": {"7": 1, "-7": 1, "none": 1}}
    read = answered("sglang-generate", {**body, "sampling_params": params}, {})
    assert [token.value for token in unknown_chosen_ids(read.asked, None)] == [-2]
    assert [token.value for token in unknown_parameter_ids(read, None)] == [-5, -7]


@pytest.mark.parametrize(("dialect", "unknown"), [("openai-chat", [-7]), ("anthropic-messages", [])])
def test_a_bias_is_an_unknown_field_where_its_endpoint_has_none(dialect: str, unknown: list[int]) -> None:
    read = answered(dialect, {"messages": [], "logit_bias": {"-7": 1}}, {})
    assert [token.value for token in unknown_parameter_ids(read, None)] == unknown


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b'{"a": ', "not JSON"),
        (b"[1]", "list"),
        (b"null", "nothing"),
        (b'"a"', "str"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "deep"),
    ],
)
def test_a_body_that_is_no_object_is_unreadable(body: bytes, word: str) -> None:
    assert word in unreadable_body(HttpRequest("POST", "/generate", raw_body=body))


@pytest.mark.parametrize("body", [b'{"a": NaN}', b'{"a": 1, "a": 2}', b"{}"])
def test_a_body_that_many_readers_take_is_readable(body: bytes) -> None:
    assert unreadable_body(HttpRequest("POST", "/generate", raw_body=body)) == ""


def test_lists_for_each_prompt_are_counted() -> None:
    body = {
        "input_ids": [[1], [2]],
        "rid": ["a"],
        "sampling_params": [{}, {}, {}],
        "return_logprob": [True] * 2,
    }
    request = HttpRequest("POST", "/generate", body)
    found = list(misfitting_lists(GENERATE.read_asked(request), request))
    assert [item.wire_name for item in found] == ["rid", "sampling_params"]


def test_a_wrong_field_is_written_where_the_dialect_has_it() -> None:
    ask = Ask(input_ids=((1,),), wrong={"n": "two", "input_ids": [2**70]})
    request = GENERATE.render(ask)
    assert isinstance(request, HttpRequest)
    assert request.body == {"input_ids": [2**70], "sampling_params": {"n": "two", "temperature": 0.0}}
    assert GENERATE.read_asked(request).sent["n"] == SentField("n", ("two",))


def test_a_bad_value_says_what_it_is() -> None:
    assert BadValue("n", 0, "is below 1").words == "n 0, which is below 1"


@pytest.mark.parametrize(
    ("dialect", "words", "size"),
    [
        (
            "vllm-chat",
            "token_id(s) [-1] in logit_bias contain out-of-vocab token ids. Vocabulary size: 1024",
            1024,
        ),
        ("sglang-generate", "token_ids_logprob has 2147483648; valid range is [0, 2000).", 2000),
        ("openai-chat", "token_id(s) [-1] in logit_bias. Vocabulary size: 1024", None),
        ("sglang-generate", "max_new_tokens must be at least 0, got -1.", None),
    ],
)
def test_a_refusal_may_tell_the_size_of_the_vocabulary(dialect: str, words: str, size: int | None) -> None:
    assert vocabulary_told([refusal(dialect=dialect, error={"error": {"message": words}})]) == size
    assert vocabulary_told([]) is None
