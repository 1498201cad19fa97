"""The `openai` package, unmodified, against completions and embeddings of the reference engine."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

IDS = [73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243]
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


def test_text_and_its_stream(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "One, two,", **GREEDY}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
    assert whole.object == "text_completion"
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12


def test_ids_are_a_prompt(client: OpenAI, model: str, reference_url: str) -> None:
    answer = client.completions.create(model=model, prompt=IDS, extra_body={"ignore_eos": True}, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(IDS)
    native = httpx.post(
        f"{reference_url}/generate",
        json={
            "input_ids": IDS,
            "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True},
        },
    ).json()
    assert answer.choices[0].text == native["text"]


def test_a_batch_of_prompts_with_samples(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=["a", "b"], n=2, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_the_prompt_is_echoed(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "One, two,", **GREEDY}
    plain = client.completions.create(**asked).choices[0].text
    assert client.completions.create(echo=True, **asked).choices[0].text == "One, two," + plain


def test_logprobs_stand_in_four_lists_of_one_length(client: OpenAI, model: str) -> None:
    choice = client.completions.create(model=model, prompt="a", logprobs=2, **GREEDY).choices[0].logprobs
    assert choice is not None
    lengths = {
        len(entries or [])
        for entries in (choice.tokens, choice.token_logprobs, choice.text_offset, choice.top_logprobs)
    }
    assert lengths == {12}


def test_a_stop_string(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "One, two,", **GREEDY}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    choice = client.completions.create(stop=[stop], **asked).choices[0]
    assert choice.text == whole[: whole.find(stop)]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("asked", "field"), [({"prompt": []}, "prompt"), ({"prompt": "a", "temperature": -1.0}, "temperature")]
)
def test_a_refusal_names_the_field(client: OpenAI, model: str, asked: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": model, "max_tokens": 2, **asked})
    assert field in refused.value.message.lower()


def test_embeddings(client: OpenAI, model: str) -> None:
    answer = client.embeddings.create(model=model, input=["a", "b", "a"])
    vectors = [row.embedding for row in answer.data]
    assert [row.index for row in answer.data] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
