"""Faults are off unless the server was started with them, and then strike the request that names one."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import loopback
import pytest

from tokenwire_faults.catalogue import load_faults

BODY = {
    "input_ids": [5, 6, 7],
    "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
}


@pytest.fixture
def post(start_reference) -> Callable[..., httpx.Response]:
    """Post to a server with faults, or to one with other flags."""

    def send(
        fault: str = "", *, path: str = "/generate", flags=("--enable-faults",), **more
    ) -> httpx.Response:
        url = start_reference(*flags)
        headers = {"x-tokenwire-fault": fault} if fault else {}
        return loopback.post(url + path, json={**BODY, **more}, headers=headers)

    return send


def comparable(answer: httpx.Response) -> dict:
    """What an answer says, without what is new in each."""
    content = answer.json()
    content["meta_info"] = {
        name: value
        for name, value in content["meta_info"].items()
        if name not in {"id", "e2e_latency", "response_sent_to_client_ts", "cached_tokens"}
        and not name.startswith("cached")
    }
    return content


def test_a_server_without_faults_refuses_a_request_that_names_one(post):
    answer = post("finish-lost", flags=())
    assert answer.status_code == 400
    assert "--enable-faults" in answer.json()["error"]["message"]


def test_an_unknown_fault_is_refused_with_the_nearest_name(post):
    answer = post("finish-lots")
    assert answer.status_code == 400
    assert "'finish-lost'" in answer.json()["error"]["message"]
    answer = post("finish-lots", flags=("--enable-faults", "--api-dialect=vllm"), path="/v1/completions")
    assert "'finish-lost'" in answer.json()["error"]["message"]


def test_only_the_request_that_names_a_fault_has_it(post):
    plain = comparable(post(flags=()))
    assert comparable(post()) == plain
    faulty = comparable(post("id-out-of-range"))
    assert len(faulty["output_ids"]) == 4
    assert comparable(post()) == plain


def test_a_fault_shows_in_the_text_of_a_stream(post):
    with_done = post(stream=True).text
    without = post("done-missing", stream=True).text
    assert with_done.endswith("data: [DONE]\n\n")
    assert "[DONE]" not in without
    assert '"type":"length"' in without


def test_a_refusal_passes_through_the_fault_as_it_was(post):
    answer = post("finish-lost", input_ids=[-1])
    assert answer.status_code == 400
    assert "input_ids[0]" in answer.json()["error"]["message"]


def test_the_server_tells_which_faults_it_makes(start_reference):
    def faults(*flags: str) -> list[str]:
        return loopback.get(start_reference(*flags) + "/server_info").json()["tokenwire_reference"]["faults"]

    assert faults() == []
    assert faults("--enable-faults") == list(load_faults())


@pytest.mark.parametrize("name", load_faults())
def test_every_fault_is_over_with_its_request(post, name):
    """Whatever was done to a request, the server answers the next one."""
    for path, body in (
        ("/generate", {}),
        ("/generate", {"stream": True, "return_logprob": True, "top_logprobs_num": 2}),
        ("/generate", {"input_ids": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
    ):
        try:
            post(name, path=path, **body)
        except httpx.RemoteProtocolError:
            assert name == "stream-cut-off"
    control = post()
    assert control.status_code == 200
    assert json.loads(control.content)["meta_info"]["completion_tokens"] == 4


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_fault_errs_at_the_endpoints_of_items_as_elsewhere(post, path):
    """What they have beside other endpoints, or lack, is no reason for a failure of another kind."""
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "b"},
    ]
    body = {"model": "m", "max_tokens": 4, "max_output_tokens": 4, "messages": messages, "input": messages}
    failing = post("stream-fails", path=path, stream=True, **body).text
    assert failing.count("event: error") == 1
    assert post("usage-of-one-choice", path=path, **body).status_code == 200
    assert post("own-items-are-refused", path=path, **body).status_code == 400
    if path == "/v1/responses":
        assert post("own-items-are-refused", path=path, **body | {"input": ["a"]}).status_code == 400
