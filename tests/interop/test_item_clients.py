"""The `openai` and `anthropic` packages, unmodified, against the reference's endpoints of typed items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

FLAGS = ("--model", "builtin:scripted", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
ARGUMENTS = '{"city": "Köln 😀", "days": 2}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
SCRIPT = {"custom_params": {"script": [f"<think>\nWhere is it?\n</think>\n\nI will look.\n{CALL}\n{CALL}"]}}
MODEL, TURN = "builtin:scripted", {"role": "user", "content": "How is the weather?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(scope="module")
def url(start_reference: Callable[..., str]) -> str:
    return start_reference(*FLAGS)


@pytest.fixture
def openai(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def response_asked() -> dict[str, Any]:
    tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
    return {"model": MODEL, "input": [TURN], "tools": [tool], "temperature": 0, "extra_body": SCRIPT}


def message_asked() -> dict[str, Any]:
    tool = {"name": "get_weather", "input_schema": PARAMETERS}
    asked = {"model": MODEL, "max_tokens": 400, "messages": [TURN], "tools": [tool]}
    return {**asked, "extra_body": {**SCRIPT, "temperature": 0}}


def contents_of(items: Any) -> list[Any]:
    """What the items of a response say, without their ids."""
    return [
        (item.name, item.arguments) if item.type == "function_call" else (item.type, item.content[0].text)
        for item in items
    ]


def test_the_response_that_a_client_joins_is_the_whole_one(openai: OpenAI) -> None:
    whole = openai.responses.create(**response_asked())
    with openai.responses.stream(**response_asked()) as stream:
        events = list(stream)
        joined = stream.get_final_response()
    assert contents_of(whole.output) == [
        ("reasoning", "Where is it?"),
        ("message", "I will look."),
        ("get_weather", ARGUMENTS),
        ("get_weather", ARGUMENTS),
    ]
    assert contents_of(joined.output) == contents_of(whole.output)
    assert whole.output_text == joined.output_text == "I will look."
    assert joined.usage == whole.usage
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta")
        == "I will look."
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_items_of_a_response_are_taken_back(openai: OpenAI) -> None:
    first = openai.responses.create(**response_asked())
    call = next(item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."}
    history = [TURN, *(item.to_dict() for item in first.output), result]
    second = openai.responses.create(**{**response_asked(), "input": history})
    named = openai.responses.create(
        **{**response_asked(), "input": [result], "previous_response_id": first.id}
    )
    assert second.usage is not None
    assert named.usage is not None
    assert second.usage.input_tokens == named.usage.input_tokens > first.usage.input_tokens  # type: ignore[union-attr]


def test_the_message_that_a_client_joins_is_the_whole_one(anthropic: Anthropic) -> None:
    whole = anthropic.messages.create(**message_asked())
    with anthropic.messages.stream(**message_asked()) as stream:
        joined = stream.get_final_message()
    contents = [
        [block.to_dict() | {"id": "", "signature": ""} for block in item.content] for item in (whole, joined)
    ]
    assert contents[0] == contents[1]
    assert [block.type for block in joined.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert joined.content[3].input == {"city": "Köln 😀", "days": 2}  # type: ignore[union-attr]
    assert (joined.stop_reason, joined.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert joined.stop_reason == "tool_use"


def test_a_stop_sequence_is_named(anthropic: Anthropic) -> None:
    asked = {**message_asked(), "stop_sequences": ["will"], "tools": []}
    with anthropic.messages.stream(**asked) as stream:
        joined = stream.get_final_message()
    assert (joined.stop_reason, joined.stop_sequence) == ("stop_sequence", "will")
    assert joined.content[-1].text == "I "  # type: ignore[union-attr]


def test_the_tokens_of_a_conversation_are_counted(anthropic: Anthropic) -> None:
    asked = message_asked()
    counted = anthropic.messages.count_tokens(model=MODEL, messages=asked["messages"], tools=asked["tools"])
    assert counted.input_tokens == anthropic.messages.create(**asked).usage.input_tokens
