"""Whatever a client says is bounded: beyond a limit it is refused, and the refusal names the limit."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.limits import LIMITS, refuse_many_samples
from tokenwire_reference.doors.sampling_fields import read_sampling_params
from tokenwire_reference.doors.sglang import generate
from tokenwire_reference.server_args import ServerArgs

DOORS = {
    "/generate": ("input_ids", True),
    "/v1/chat/completions": ("input_ids", False),
    "/v1/completions": ("prompt", False),
    "/inference/v1/generate": ("token_ids", True),
}
TOO_MUCH = [
    ("temperature", 2**63, "maximum of 100"),
    ("temperature", 101, "maximum of 100"),
    ("repetition_penalty", 1e-300, "minimum of 0.01"),
    ("logit_bias", {"5": 1e39}, "maximum of 10000"),
    ("logit_bias", {"5": -10001}, "minimum of -10000"),
    ("logit_bias", {"9" * 5000: 1}, "ids are 0 to 1999"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "more than 1024 properties"),
    ("n", 129, "maximum of 128"),
    ("n", 10**9, "maximum of 128"),
    ("stop", "x" * 1025, "longer than 1024 characters"),
    ("stop", ["y", "x" * 100_000], "longer than 1024 characters"),
    ("stop", ["x"] * 33, "more than 32 items"),
]


def refusal(response) -> str:
    body = response.json()
    return body["error"]["message"] if "error" in body else body["message"]


@pytest.mark.parametrize(("name", "value", "reason"), TOO_MUCH)
@pytest.mark.parametrize("path", DOORS)
def test_a_sampling_parameter_beyond_its_range_is_refused(  # noqa: PLR0917
    answer, scripted_engine, path, name, value, reason
):
    prompt, nested = DOORS[path]
    fields = {"sampling_params": {name: value}} if nested else {name: value}
    body = {"messages": [{"role": "user", "content": "x"}], prompt: [5], **fields}
    engine = scripted_engine([[5]])
    response = answer(engine, path, body)
    assert response.status_code == 400
    assert name in refusal(response)
    assert reason in refusal(response)
    assert not engine.live


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/generate", {"input_ids": [[5]] * 1025}, "more than 1024 items"),
        ("/generate", {"input_ids": [[5]] * 100, "sampling_params": {"n": 50}}, "may have 4096"),
        ("/v1/completions", {"prompt": [[5]] * 100, "n": 50}, "may have 4096"),
        ("/v1/completions", {"prompt": ["x"] * 1025}, "more than 1024 items"),
        ("/v1/embeddings", {"input": [[5]] * 1025}, "more than 1024 items"),
        ("/encode", {"text": ["x"] * 1025}, "more than 1024 items"),
        ("/tokenize", {"prompt": ["x"] * 1025}, "more than 1024 items"),
        ("/detokenize", {"tokens": [[5]] * 1025}, "more than 1024 items"),
        ("/generate", {"input_ids": [5], "rid": "x" * 257}, "longer than 256 characters"),
        ("/encode", {"input_ids": [5], "rid": "x" * 257}, "longer than 256 characters"),
        ("/v1/completions", {"prompt": [5], "rid": "x" * 257}, "longer than 256 characters"),
        (
            "/inference/v1/generate",
            {"token_ids": [5], "sampling_params": {}, "request_id": "x" * 257},
            "longer than 256 characters",
        ),
        ("/generate", {"input_ids": [5], "rid": ""}, "rid: "),
        ("/generate", {"input_ids": [[5], [6]], "rid": ["a", ""]}, "shorter than 1 character"),
        ("/generate", {"input_ids": [[5], [6]], "rid": ["a", "a"]}, "rid 'a' occurs twice"),
        ("/v1/completions", {"prompt": [5], "rid": ""}, "rid"),
        ("/v1/chat/completions", {"messages": [], "rid": ""}, "rid"),
        ("/v1/chat/completions", {"messages": [], "input_ids": [5], "rid": "x" * 257}, "rid"),
        ("/generate", {"text": "x" * (64 * 512 + 1)}, "32769 characters"),
        (
            "/generate",
            {
                **{"input_ids": [5], "return_logprob": True, "top_logprobs_num": 2000},
                "sampling_params": {"max_new_tokens": 300},
            },
            "600000 entries",
        ),
        ("/generate", {"input_ids": [5], "sampling_params": {"stop_regex": r"(?=a)"}}, "RE2"),
        ("/generate", {"input_ids": [5], "sampling_params": {"stop_regex": "a{1001}"}}, "RE2"),
        ("/generate", {"input_ids": [5], "sampling_params": {"stop_regex": ["a{999}"] * 5}}, "at most 4096"),
        ("/generate", {"input_ids": [[5]], "extra_key": "x" * 257}, "longer than 256 characters"),
        (
            "/generate",
            {"input_ids": [5], "sampling_params": {"stop_token_ids": [5] * 1025}},
            "more than 1024 items",
        ),
        ("/v1/completions", {"prompt": [5], "model": "x" * 257}, "longer than 256 characters"),
        ("/v1/completions", {"prompt": [5], "best_of": [1]}, "best_of"),
        ("/v1/completions", {"prompt": [5], "stop_regex": 7}, "stop_regex"),
    ],
)  # fmt: skip
def test_more_than_one_request_may_ask_for_is_refused(answer, scripted_engine, path, body, reason):
    engine = scripted_engine([[5]])
    body = {**body, "messages": [{"role": "user", "content": "x"}]} if "messages" in body else body
    response = answer(engine, path, body)
    assert (response.status_code, engine.live) == (400, {})
    assert reason in refusal(response)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_vocabulary_of_stop_ids_leaves_nothing_to_say_first(ignore_eos):
    """Before `min_new_tokens` no stop id may be chosen, whether the end of sequence stops or not."""
    model = SimpleNamespace(vocab_size=600, eos_token_ids=frozenset({2}))
    given = {"min_new_tokens": 1, "ignore_eos": ignore_eos, "stop_token_ids": [*range(2), *range(3, 600)]}
    with pytest.raises(RefusalError, match="every id of the vocabulary stops"):
        read_sampling_params(given, SimpleNamespace(model=model, tokenizer=None))


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("vllm", "/v1/completions", {"prompt": [5]}),
        ("vllm", "/inference/v1/generate", {"token_ids": [5]}),
        ("sglang", "/v1/responses", {"input": "x"}),
        ("sglang", "/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ],
)
def test_a_field_that_its_schema_does_not_name_is_not_read(answer, scripted_engine, dialect, path, body):
    """There are no patterns in vLLM, and few fields beside items: whatever they are, nobody reads them."""
    more = {"stop_regex": 7, "sampling_params": {"stop_regex": 7, "max_tokens": 1}}
    more |= {} if dialect == "vllm" else {"logit_bias": [1], "stop_token_ids": ["x"], "min_p": "x"}
    assert answer(scripted_engine([[5]]), path, body | more, api_dialect=dialect).status_code == 200


def test_one_object_for_all_prompts_is_read_once(answer, scripted_engine, monkeypatch):
    """And kept once: 1,024 copies of a list of two million ids were 15 GB."""
    read, engine = [], scripted_engine([[5]])
    monkeypatch.setattr(
        generate, "read_sampling", lambda *given: read.append(given) or read_sampling_params(*given)
    )
    body = {"input_ids": [[5, 6]] * 20, "sampling_params": {"n": 2, "stop_token_ids": [7]}}
    added = []
    monkeypatch.setattr(
        engine, "add", lambda request: added.append(request) or type(engine).add(engine, request)
    )
    assert len(answer(engine, "/generate", body).json()) == 40
    assert len(read) == 1
    assert len({id(request.sampling) for request in added}) == 1
    assert len({id(request.prompt_token_ids) for request in added}) == 20


def test_prompt_ids_of_all_samples_together_are_bounded():
    refuse_many_samples([[5] * 2048] * 32, 128)
    with pytest.raises(RefusalError, match="8392704 prompt ids"):
        refuse_many_samples([[5] * 2049] * 32, 128)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(answer, scripted_engine):
    body = {"input_ids": [5], "text": "x" * 200}
    response = answer(scripted_engine([[5]]), "/generate", body, max_body_bytes=100)
    assert response.status_code == 413
    assert "--max-body-bytes" in refusal(response)


def test_a_deep_body_is_refused(answers, scripted_engine, call):
    deep = b'{"input_ids": ' + b"[" * 600 + b"]" * 600 + b"}"
    sent = call("/generate", content=deep, headers={"content-type": "application/json"})
    (response,) = answers(scripted_engine([[5]]), sent)
    assert response.status_code == 400
    assert "nest less" in refusal(response)


def test_a_long_body_is_read_beside_the_event_loop(answer, scripted_engine, monkeypatch):
    """The same answer, whichever thread reads the body."""
    engine = scripted_engine([[5]])
    body = {"input_ids": [5], "rid": "short", "text": "x" * 40_000}
    assert len(json.dumps(body)) > 32 * 1024
    long, short = (answer(engine, "/generate", item).json() for item in (body, {**body, "text": "x"}))
    assert long["output_ids"] == short["output_ids"] == [5]


def test_a_client_that_left_while_its_body_was_read_asks_nothing(serving, scripted_engine, tiny_tokenizer):
    engine = scripted_engine([[5]])
    added, sent = [], []
    engine.add = added.append
    body = json.dumps({"input_ids": [5], "text": "x" * 40_000}).encode()
    messages = [{"type": "http.request", "body": body}]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "headers": headers}

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def ask():
        async with serving(engine, tiny_tokenizer, ServerArgs(model_path="scripted")) as app:
            await app(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 499
    assert not added


def test_a_list_of_ids_is_one_prompt_however_long_it_is(answer, scripted_engine):
    for path, body in (
        ("/generate", {"input_ids": [[5] * 1025]}),
        ("/generate", {"input_ids": [5] * 1025}),
        ("/v1/completions", {"prompt": [5] * 1025}),
    ):
        assert "context length of 512" in refusal(answer(scripted_engine([[5]]), path, body))
    assert len(answer(scripted_engine([[5]]), "/detokenize", {"tokens": [5] * 1025}).json()["text"]) > 1000


def test_a_long_id_in_the_header_is_refused(answers, scripted_engine, call):
    ask = call(
        "/inference/v1/generate",
        {"token_ids": [5], "sampling_params": {}},
        headers={"x-request-id": "x" * 257},
    )
    (response,) = answers(scripted_engine([[5]]), ask)
    assert (response.status_code, "may have 256" in refusal(response)) == (400, True)


def test_the_limits_keep_every_logit_finite():
    """Bias, penalties over a long text and the smallest temperature together stay in float32."""
    logit, times = 1e3, 1e6
    least_penalty = LIMITS["repetition_penalty"]["minimum"]
    worst = (logit + 2 * times + 2 + LIMITS["logit_bias"]["maximum"]) / least_penalty / 1e-6
    assert worst < 3.4e38
