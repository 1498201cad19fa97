"""/v1/completions in SGLang's shapes."""

from __future__ import annotations

import pytest

from tokenwire_reference.core.request import FinishReason

PATH = "/v1/completions"
# 語 in three byte tokens, "spec", and the end of the message.
IDS = [168, 107, 256, 1262, 2]
STEPS = [[i] for i in IDS]
STOP = FinishReason("stop", matched=2)


def ask(prompt=(5, 6), **fields):
    return {"prompt": prompt if isinstance(prompt, str) else list(prompt), **fields}


def test_a_whole_answer(answer, scripted_engine):
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, ask(model="m", rid="mine")).json()
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "mine",
        "object": "text_completion",
        "model": "m",
        "choices": [
            {"index": 0, "text": "語spec", "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
        ],
        "usage": {
            "prompt_tokens": 2,
            "total_tokens": 7,
            "completion_tokens": 5,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": 5}],
        },
    }


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ("Hello", [[43, 72, 363, 82]]),
        (["Hello", "Hello"], [[43, 72, 363, 82]] * 2),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_choice_has_the_ids_of_its_prompt(answer, scripted_engine, prompt, prompts, n):
    asked = ask(n=n, return_token_ids=True) | {"prompt": prompt}
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, asked).json()
    given = [(choice["index"], choice["prompt_token_ids"]) for choice in body["choices"]]
    assert given == list(enumerate(ids for ids in prompts for _ in range(n)))
    assert [choice["token_ids"] for choice in body["choices"]] == [IDS] * len(prompts) * n
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert body["usage"]["completion_tokens"] == 5 * len(prompts) * n


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_is_the_whole_answer_in_parts(answer, scripted_engine, read_events, n):
    asked = ask([[5, 6], [7]], n=n, return_token_ids=True, logprobs=1, echo=True)
    asked["prompt"] = [[5, 6], [7]]
    whole = answer(scripted_engine(STEPS, finish=STOP), PATH, asked).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = read_events(answer(scripted_engine(STEPS, finish=STOP), PATH, asked | options))
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    assert all(chunk["usage"] is None for chunk in chunks)
    for expected in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == expected["index"]]
        assert len(parts) == 5
        assert [part["finish_reason"] for part in parts] == [None] * 4 + ["stop"]
        assert ["prompt_token_ids" in part for part in parts] == [True] + [False] * 4
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert [i for part in parts for i in part["token_ids"]] == expected["token_ids"]
        for name, values in expected["logprobs"].items():
            assert [v for part in parts for v in part["logprobs"][name]] == values
    assert last["choices"] == []
    assert last["usage"] == {k: v for k, v in whole["usage"].items() if v is not None}


def test_an_echo_stands_before_the_text_with_the_logprobs_of_the_prompt(answer, scripted_engine):
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, ask("Hello", echo=True, logprobs=1)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "Hello語spec"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25] + [-0.5] * 5
    assert logprobs["tokens"][:4] == ["H", "e", "ll", "o"]
    assert logprobs["top_logprobs"][:2] == [None, {"e": -0.25}]
    assert logprobs["text_offset"] == [-1] * 9


def test_an_echo_of_ids_leaves_special_tokens_out(answer, scripted_engine):
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, ask([2, 43, 72, 363, 82], echo=True)).json()
    assert body["choices"][0]["text"] == "Hello語spec"
    assert body["choices"][0]["logprobs"] is None


def test_logprobs_without_alternatives(answer, scripted_engine):
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, ask(logprobs=0)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([-0.5] * 5, [])


def test_usage_can_come_with_every_chunk(answer, scripted_engine, read_events):
    asked = ask(stream=True, stream_options={"continuous_usage_stats": True})
    chunks = read_events(answer(scripted_engine(STEPS, finish=STOP), PATH, asked))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5]


def test_without_a_tokenizer_ids_are_answered_with_ids(answer, scripted_engine):
    skip = {"tokenizer": None, "skip_tokenizer_init": True}
    asked = ask(return_token_ids=True, logprobs=1)
    (choice,) = answer(scripted_engine(STEPS, finish=STOP), PATH, asked, **skip).json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("", IDS)
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in IDS]
    for body in (ask("Hello"), ask(echo=True), ask(stop="x")):
        refused = answer(scripted_engine(STEPS), PATH, body, **skip)
        assert refused.status_code == 400
        assert "tokenizer" in refused.json()["message"]


def test_a_server_abort_in_the_middle_ends_the_stream_with_an_error(answer, scripted_engine, read_events):
    broken = FinishReason("abort", message="out of memory", status_code=500)
    *_, last = read_events(answer(scripted_engine(STEPS, finish=broken), PATH, ask(stream=True)))
    assert last == {
        "error": {"object": "error", "message": "out of memory", "type": "500", "param": None, "code": 500}
    }
