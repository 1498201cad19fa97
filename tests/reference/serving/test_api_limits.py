"""Whatever a client says is bounded: beyond a limit it is refused, and the refusal names the limit."""

from __future__ import annotations

import json

import pytest

from tokenwire_reference.api import limits

DOORS = {
    "/generate": ("input_ids", True),
    "/v1/chat/completions": ("input_ids", False),
    "/v1/completions": ("prompt", False),
    "/inference/v1/generate": ("token_ids", True),
}
TOO_MUCH = [
    ("temperature", 2**63, "0 to 100"),
    ("temperature", 101, "0 to 100"),
    ("repetition_penalty", 1e-300, "0.01 to 2"),
    ("logit_bias", {"5": 1e39}, "-10000 to 10000"),
    ("logit_bias", {"9" * 5000: 1}, "ids are 0 to 1999"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "may have 1024"),
    ("n", 129, "1 to 128"),
    ("n", 10**9, "1 to 128"),
    ("stop", "x" * 1025, "may have 1024"),
]


def refusal(response) -> str:
    body = response.json()
    return body["error"]["message"] if "error" in body else body["message"]


@pytest.mark.parametrize(("name", "value", "said"), TOO_MUCH)
@pytest.mark.parametrize("path", DOORS)
def test_a_sampling_parameter_beyond_its_range_is_refused(  # noqa: PLR0917
    answer, scripted_engine, path, name, value, said
):
    prompt, nested = DOORS[path]
    fields = {"sampling_params": {name: value}} if nested else {name: value}
    body = {"messages": [{"role": "user", "content": "x"}], prompt: [5], **fields}
    engine = scripted_engine([[5]])
    response = answer(engine, path, body)
    assert response.status_code == 400
    assert name in refusal(response)
    assert said in refusal(response)
    assert not engine.live


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/generate", {"input_ids": [[5]] * 1025}, "1025 prompts, and may have 1024"),
        ("/generate", {"input_ids": [[5]] * 100, "sampling_params": {"n": 50}}, "may have 4096"),
        ("/v1/completions", {"prompt": [[5]] * 100, "n": 50}, "may have 4096"),
        ("/generate", {"input_ids": [5], "rid": "x" * 257}, "may have 256"),
        ("/v1/completions", {"prompt": [5], "rid": "x" * 257}, "may have 256"),
        ("/generate", {"input_ids": [5], "rid": ""}, "rid"),
        ("/generate", {"input_ids": [[5], [6]], "rid": ["a", ""]}, "rid"),
        ("/generate", {"input_ids": [[5], [6]], "rid": ["a", "a"]}, "rid 'a' stands twice"),
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
        (
            "/generate",
            {"input_ids": [5], "sampling_params": {"min_new_tokens": 1, "stop_token_ids": list(range(2000))}},
            "every id of the vocabulary stops",
        ),
    ],
)  # fmt: skip
def test_more_than_one_request_may_ask_for_is_refused(answer, scripted_engine, path, body, said):
    engine = scripted_engine([[5]])
    body = {**body, "messages": [{"role": "user", "content": "x"}]} if "messages" in body else body
    response = answer(engine, path, body)
    assert (response.status_code, engine.live) == (400, {})
    assert said in refusal(response)


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
    long, short = (answer(engine, "/generate", one).json() for one in (body, {**body, "text": "x"}))
    assert long["output_ids"] == short["output_ids"] == [5]


def test_the_ranges_keep_every_logit_finite():
    """Bias, penalties over a long text and the smallest temperature together stay in float32."""
    logit, times = 1e3, 1e6
    least_penalty, _ = limits.RANGES["repetition_penalty"]
    worst = (logit + 2 * times + 2 + limits.MOST_BIAS) / least_penalty / 1e-6
    assert worst < 3.4e38
