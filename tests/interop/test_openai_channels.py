"""The `openai` package, unmodified, joins our streams to the channels of our whole answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionToolParam

TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "ping")
]
THOUGHT = "<think>\nLet me see: 1 < 2.\n</think>\n\n"
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀", "q": {"a": "}]{"}}}\n</tool_call>'
)
PING = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
SCRIPTS = {
    "content": "Hello there, é 😀 done. end <",
    "reasoning": f"{THOUGHT}The answer is 4.",
    "a call": CALL,
    "reasoning, content and two calls": f"{THOUGHT}Looking.\n{CALL}\n{PING}",
    "a call that is cut": CALL[:60],
}


@pytest.fixture(scope="module")
def calling(start_reference: Callable[..., str]) -> Iterator[OpenAI]:
    """A client of a server whose model says what a request tells it to, and of its parsers."""
    url = start_reference(
        *("--model", "builtin:scripted", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    )
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def channels(answer: ChatCompletion) -> dict[str, Any]:
    """The message as the package has it, without what is drawn at random."""
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    functions = [call.function for call in calls if call.type == "function"]
    return {
        "reasoning": (choice.message.model_extra or {}).get("reasoning_content") or "",
        "content": choice.message.content or "",
        "calls": [(one.name, one.arguments) for one in functions],
        "ids": len({call.id for call in calls}),
        "finish": choice.finish_reason,
        "usage": answer.usage.completion_tokens if answer.usage else None,
    }


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_stream_joins_to_the_channels_of_the_whole_answer(calling: OpenAI, script: str) -> None:
    model = calling.models.list().data[0].id
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "max_tokens": 400,
        "tools": TOOLS,
        "extra_body": {"custom_params": {"script": [script]}},
    }
    whole = channels(calling.chat.completions.create(**asked))
    with calling.chat.completions.stream(stream_options={"include_usage": True}, **asked) as stream:
        joined = channels(stream.get_final_completion())
    assert joined == whole
    assert whole["ids"] == len(whole["calls"])
    if whole["finish"] == "tool_calls":
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole["calls"])
