"""Texts that are words of what was asked for, whatever the model would say, at every door."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.extras.builtin import byte_level_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "c": {"enum": ["red", "blue"]}},
    "required": ["a", "c"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "s", "schema": SCHEMA}
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": HELLO, "max_tokens": 60, "temperature": 0}
TOOL = {"name": "f", "parameters": SCHEMA, "strict": True}
VLLM = {"api_dialect": "vllm"}
"""The flags of vLLM's shapes."""
GRAMMAR = 'root ::= "yes" | "no"'


@pytest.fixture
def engine(tiny):
    return make_engine(tiny)


def texts(answered):
    """All texts of an answer, wherever its endpoint has them."""
    match answered:
        case {"choices": choices}:
            return [choice.get("text") or choice.get("message", {}).get("content") for choice in choices]
        case {"output": [{"content": [{"text": text}]}]} | {"content": [{"text": text}]} | {"text": text}:
            return [text]
    raise AssertionError(answered)


@pytest.mark.parametrize(
    ("path", "body", "flags"),
    [
        ("/v1/chat/completions", CHAT | {"response_format": FORMAT}, {}),
        ("/v1/chat/completions", CHAT | {"response_format": FORMAT, "n": 2, "temperature": 1}, {}),
        ("/v1/chat/completions", CHAT | {"structured_outputs": {"json": SCHEMA}}, VLLM),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 60, "response_format": FORMAT}, {}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 60, "json_schema": json.dumps(SCHEMA)}, {}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 60, "response_format": FORMAT}, VLLM),
        ("/generate", {"text": "Hello", "sampling_params": {"json_schema": json.dumps(SCHEMA)}}, {}),
        ("/v1/responses", {"input": "Hello", "text": {"format": FLAT}}, {}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 60, "output_config": {"format": FLAT}}, {}),
    ],
)
def test_a_text_fits_its_schema(answer, engine, path, body, flags):
    response = answer(engine, path, body, tokenizer=byte_level_tokenizer(), **flags)
    assert response.status_code == 200, response.text
    for text in texts(response.json()):
        jsonschema_rs.validate(SCHEMA, json.loads(text))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"regex": "(yes|no)-[0-9]"}, {f"{word}-{digit}" for word in ("yes", "no") for digit in range(10)}),
        ({"ebnf": GRAMMAR}, {"yes", "no"}),
        ({"regex": "yes", "ignore_eos": True}, {"yes"}),
        ({"regex": "yes", "min_new_tokens": 30}, {"yes"}),
        ({"regex": "a{8}", "frequency_penalty": 2.0}, {"a" * 8}),
        ({"regex": "(yes|no)", "logit_bias": {"50": 100}}, {"yes", "no"}),
        ({"regex": "a{0}"}, {""}),
    ],
)
def test_nothing_else_that_is_asked_leads_out_of_a_constraint(answer, engine, fields, words):
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 40, **fields}}
    answered = answer(engine, "/generate", body, tokenizer=byte_level_tokenizer()).json()
    assert answered["text"] in words
    assert answered["meta_info"]["finish_reason"]["type"] == "stop"


def test_what_the_budget_cuts_begins_a_word(answer, engine):
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 4, "regex": "[ab]{30}"}}
    answered = answer(engine, "/generate", body, tokenizer=byte_level_tokenizer()).json()
    assert answered["meta_info"]["finish_reason"]["type"] == "length"
    assert set(answered["text"]) <= {"a", "b"}


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(["},
        {"ebnf": "root ::= nothing"},
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {"type": "null"}}}}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": FORMAT, "regex": "a"},
        {"regex": "(" * 20_000},
    ],
)
def test_what_cannot_be_kept_is_refused(answer, engine, fields):
    response = answer(engine, "/v1/chat/completions", CHAT | fields, tokenizer=byte_level_tokenizer())
    assert response.status_code == 400
    assert "The constraint cannot be kept" in response.json()["message"]


def test_a_schema_that_is_nested_too_deep_is_refused(answer, engine):
    body = {"text": "Hello", "sampling_params": {"json_schema": "[" * 20_000}}
    response = answer(engine, "/generate", body, tokenizer=byte_level_tokenizer())
    assert response.status_code == 400
    assert "nested too deep" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "prompt"),
    [
        ("required", {}),
        ({"type": "function", "function": {"name": "f"}}, {}),
        ("required", {"input_ids": [5, 6, 7]}),
    ],
)
def test_a_call_that_is_demanded_comes(answer, engine, choice, prompt):
    """Also behind ids: messages beside them are left out, and what tools demand is not."""
    body = CHAT | {"max_tokens": 200, "tool_choice": choice} | prompt
    body["tools"] = [{"type": "function", "function": TOOL}]
    flags = {"tool_call_parser": "hermes", "tokenizer": byte_level_tokenizer()}
    (choice,) = answer(engine, "/v1/chat/completions", body, **flags).json()["choices"]
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == "f"
    jsonschema_rs.validate(SCHEMA, json.loads(call["arguments"]))
