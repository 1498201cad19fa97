"""The `openai` package, unmodified, against the chat endpoint of the reference engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Name three rivers."},
]
IDS = [73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243]


def test_the_model_is_listed_and_found(client: OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.models.retrieve("no-such-model")


def test_a_whole_answer(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, temperature=0)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert isinstance(choice.message.content, str)
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_a_stream_joins_to_the_whole_answer(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    assert chunks[-1].choices == []


def test_a_stream_without_options_has_no_usage(client: OpenAI, model: str) -> None:
    chunks = list(client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, stream=True))
    assert all(chunk.choices and not chunk.usage for chunk in chunks)


def test_an_asynchronous_stream(reference_url: str, model: str) -> None:
    async def pieces() -> list[str]:
        async with AsyncOpenAI(base_url=f"{reference_url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=8, temperature=0, stream=True
            )
            return [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(asyncio.run(pieces()))


def test_samples(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, n=3, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 36
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, n=3, seed=1, stream=True
    )
    finished = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: OpenAI, model: str, stream: bool) -> None:
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(logprobs=True, top_logprobs=2, stream=stream, **asked)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    found = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or []]
    assert len(found) == 6
    for entry in found:
        assert entry.logprob <= 0
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy: the sampled token is the likeliest"


def test_a_stop_string(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 32, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = whole[len(whole) // 2 :][:3]
    answer = client.chat.completions.create(stop=[stop], **asked).choices[0]
    assert answer.message.content == whole[: whole.find(stop)]
    assert answer.finish_reason == "stop"
    chunks = client.chat.completions.create(stop=[stop], stream=True, **asked)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer.message.content


def test_ids_in_and_ids_out_by_extra_fields(client: OpenAI, model: str, reference_url: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "-"}],
        max_tokens=8,
        temperature=0,
        extra_body={
            "input_ids": IDS,
            "ignore_eos": True,
            "return_prompt_token_ids": True,
            "return_token_ids": True,
            "return_meta_info": True,
        },
    )
    extra = answer.choices[0].model_extra
    assert extra is not None
    assert extra["prompt_token_ids"] == IDS
    assert extra["meta_info"]["completion_tokens"] == 8
    native = httpx.post(
        f"{reference_url}/generate",
        json={
            "input_ids": IDS,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
        },
    ).json()
    assert extra["response_token_ids"] == native["output_ids"]
    assert answer.choices[0].message.content == native["text"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(IDS)


def test_extra_fields_come_only_on_request(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2)
    extra = answer.choices[0].model_extra or {}
    assert not extra.keys() & {"prompt_token_ids", "response_token_ids", "meta_info"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": -1.0}, "temperature"),
        ({"n": 0}, "n"),
        ({"extra_body": {"input_ids": []}}, "input_ids"),
        ({"extra_body": {"input_ids": ["a"]}}, "input_ids"),
        ({"stream": True, "extra_body": {"return_prompt_token_ids": True}}, "return_prompt_token_ids"),
        ({"stream": True, "extra_body": {"return_meta_info": True}}, "return_meta_info"),
    ],
)
def test_a_refusal_is_a_bad_request_that_names_the_field(
    client: OpenAI, model: str, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, "max_tokens": 2, **asked})
    assert refused.value.status_code == 400
    assert field in refused.value.message.lower()


def test_nothing_there_is_not_found(reference_url: str) -> None:
    with (
        OpenAI(base_url=f"{reference_url}/no/such/door", api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀", "days": 2}}\n</tool_call>'
SPOKEN = f"<think>\nWhere is it?\n</think>\n\nI will look.\n{CALL}\n{CALL}"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
]


@pytest.mark.parametrize(("dialect", "reasoning"), [("sglang", "reasoning_content"), ("vllm", "reasoning")])
def test_the_clients_objects_of_tools_and_reasoning_are_those_of_the_whole_answer(
    start_reference: Callable[..., str], dialect: str, reasoning: str
) -> None:
    flags = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--api-dialect", dialect)
    url = start_reference("--model", "builtin:scripted", *flags)
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": "builtin:scripted",
            "messages": MESSAGES,
            "tools": TOOLS,
            "temperature": 0,
            "extra_body": {"custom_params": {"script": [SPOKEN]}},
        }
        whole = client.chat.completions.create(**asked).choices[0]
        with client.chat.completions.stream(**asked) as stream:
            events = list(stream)
            joined = stream.get_final_completion().choices[0]
    assert joined.finish_reason == whole.finish_reason == "tool_calls"
    assert joined.message.content == whole.message.content == "I will look."
    assert getattr(joined.message, reasoning) == getattr(whole.message, reasoning) == "Where is it?"
    found = [
        [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        for message in (joined.message, whole.message)
    ]
    assert found[0] == found[1] == [("get_weather", '{"city": "Köln 😀", "days": 2}')] * 2
    assert len({call.id for call in joined.message.tool_calls or ()}) == 2
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.arguments for event in done] == [arguments for _, arguments in found[1]]
