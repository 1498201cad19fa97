"""Every bad request gets a 4xx that names the field, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tokenwire_reference.server_args import ServerArgs

HELLO = [{"role": "user", "content": "x"}]
DOORS = {
    "/generate": ("input_ids", {}),
    "/v1/chat/completions": ("input_ids", {"messages": HELLO}),
    "/v1/completions": ("prompt", {}),
    "/v1/embeddings": ("input", {}),
    "/encode": ("input_ids", {}),
    "/inference/v1/generate": ("token_ids", {"sampling_params": {}}),
    "/detokenize": ("tokens", {}),
}
BAD_IDS = {
    "negative": [5, -1],
    "out of vocabulary": [5, 2000],
    "beyond 32 bits": [5, 2**31],
    "beyond 64 bits": [5, 2**63],
    "a fraction": [5, 1.5],
    "an integral float": [5, 6.0],
    "a string": [5, "6"],
    "a boolean": [5, True],
    "null": [5, None],
    "empty": [],
    "mixed": [5, [6]],
    "an object": {"0": 5},
    "a number": 5,
    "deep": [[[5]]],
}


def refusal(response):
    """The message of an error in any of the shapes."""
    body = response.json()
    error = body.get("error", body)
    return error if isinstance(error, str) else error["message"]


# No ids at all are the empty text.
BAD_HERE = [(path, bad) for path in DOORS for bad in BAD_IDS if (path, bad) != ("/detokenize", "empty")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "bad"), BAD_HERE)
def test_bad_ids_are_named(answer, scripted_engine, path, bad, stream):
    field, rest = DOORS[path]
    engine = scripted_engine([[5]])
    response = answer(engine, path, {**rest, field: BAD_IDS[bad], "stream": stream})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    # An integer beyond 64 bits ends the parsing of the body, before there are fields.
    assert (field if bad != "beyond 64 bits" else "") in refusal(response).lower()
    assert not engine.live


SAMPLING = [
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.5),
    ("min_p", 2),
    ("n", 0),
    ("n", 1.5),
    ("stop", 5),
    ("stop", [""]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "x"),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"99999": 1}),
    ("frequency_penalty", 3),
    ("repetition_penalty", 0),
]


@pytest.mark.parametrize(("name", "value"), SAMPLING)
@pytest.mark.parametrize(
    "path", ["/generate", "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"]
)
def test_bad_sampling_parameters_are_named(answer, scripted_engine, path, name, value):
    field, rest = DOORS[path]
    nested = path in ("/generate", "/inference/v1/generate")
    fields = {"sampling_params": {name: value}} if nested else {name: value}
    response = answer(scripted_engine([[5]]), path, {**rest, field: [5], **fields})
    assert (response.status_code, name in refusal(response)) == (400, True)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"sampling_params": {"max_new_token": 5}}, "max_new_token"),
        ({"sampling_params": [{}, {}, {}]}, "sampling_params"),
        ({"return_logprob": [True]}, "return_logprob"),
        ({"rid": ["a"]}, "rid"),
        ({"rid": ["a", "a"]}, "rid"),
        ({"rid": 5}, "rid"),
        ({"logprob_start_len": 9, "return_logprob": True}, "logprob_start_len"),
        ({"top_logprobs_num": -1, "return_logprob": True}, "top_logprobs_num"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_batch_of_wrong_lengths_or_unknown_parameters_is_named(answer, scripted_engine, body, named):
    response = answer(scripted_engine([[5]]), "/generate", {"input_ids": [[5], [6]], **body})
    assert (response.status_code, named in refusal(response)) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/generate", {}, "input_ids"),
        ("/encode", {}, "input_ids"),
        ("/v1/chat/completions", {"input_ids": [5]}, "messages"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": [5], "dimensions": 4000}, "dimensions"),
        ("/v1/embeddings", {"input": [5], "encoding_format": "int8"}, "encoding_format"),
        ("/encode", {"input_ids": [[5], [6]], "rid": ["a"]}, "rid"),
        ("/inference/v1/generate", {"token_ids": [5]}, "sampling_params"),
        ("/inference/v1/abort_requests", {}, "request_ids"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/abort_request", {"rid": 5}, "rid"),
        ("/v1/completions", {"prompt": [5], "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": [5] * 513}, "prompt"),
        ("/v1/completions", {"prompt": [5], "logprobs": 3000}, "logprobs"),
        ("/v1/completions", {"prompt": [5], "suffix": "x"}, "suffix"),
        ("/v1/completions", {"prompt": [5], "best_of": 2}, "best_of"),
    ],
)
def test_what_is_missing_or_wrong_is_named(answer, scripted_engine, path, body, named):
    engine = scripted_engine([[5]])
    response = answer(engine, path, body)
    assert (response.status_code, named in refusal(response)) == (400, True)
    assert not engine.live


BODIES = {
    "cut": b'{"input_ids": [5',
    "not JSON": b"input_ids=5",
    "NaN": b'{"input_ids": [NaN]}',
    "half a surrogate": b'{"text": "\\ud800"}',
    "invalid UTF-8": b'{"text": "\xff"}',
    "a list": b"[]",
    "nothing": b"",
    "deep": b"[" * 5000 + b"]" * 5000,
}


@pytest.mark.parametrize("bad", BODIES)
@pytest.mark.parametrize("path", [*DOORS, "/tokenize", "/abort_request", "/pause_generation"])
def test_a_body_that_is_no_object_is_refused(answers, scripted_engine, call, path, bad):
    sent = call(path, content=BODIES[bad], headers={"content-type": "application/json"})
    (response,) = answers(scripted_engine([[5]]), sent)
    assert (response.status_code, "body" in refusal(response)) == (400, True)


@pytest.mark.parametrize("path", DOORS)
def test_a_body_that_is_cut_is_no_failure_of_the_server(serving, scripted_engine, path, caplog):
    engine = scripted_engine([[5]])
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    scope = {"type": "http", "path": path, "method": "POST", "headers": [], "query_string": b""}

    async def receive():
        return messages.pop(0)

    async def send(message):
        assert message.get("status", 499) == 499

    async def cut():
        async with serving(engine, None, ServerArgs()) as app:
            await app(scope, receive, send)

    asyncio.run(cut())
    assert (engine.live, messages, caplog.records) == ({}, [], [])


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("path", DOORS)
def test_another_content_type_is_refused(answers, scripted_engine, call, path, content_type):
    field, rest = DOORS[path]
    body = json.dumps({**rest, field: [5]}).encode()
    headers = {"content-type": content_type} if content_type else {}
    (response,) = answers(scripted_engine([[5]]), call(path, content=body, headers=headers))
    assert (response.status_code, "content-type" in refusal(response)) == (400, True)


def test_a_control_request_works_after_each(start_reference):
    """Of a real server: the answers of good requests are what they were before the bad ones."""
    url = start_reference()
    good = {"input_ids": [72, 101], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    with httpx.Client(base_url=url, timeout=120) as client:
        expected = client.post("/generate", json=good).json()["output_ids"]
        for path, (field, rest) in DOORS.items():
            for bad in (BAD_IDS["negative"], BAD_IDS["mixed"], [], [10**9]):
                client.post(path, json={**rest, field: bad})
            for content in BODIES.values():
                client.post(path, content=content, headers={"content-type": "application/json"})
            assert client.post("/generate", json=good).json()["output_ids"] == expected
        assert client.post("/flush_cache").status_code == 200
