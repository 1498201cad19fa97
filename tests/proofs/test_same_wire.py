"""The comparison of two checkouts: what it overlooks, and what it must not."""

from __future__ import annotations

import json

import httpx
import pytest
from proofs.same_wire import differences, normal, read, setups


def stream(*events, status=200):
    content = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return httpx.Response(status, headers={"content-type": "text/event-stream"}, text=content)


def test_every_door_is_asked_and_some_hundred_requests():
    asked = [item for setup in setups().values() for item in setup.asked]
    assert len(asked) > 500
    assert {item.path for item in asked} >= {
        *("/generate", "/v1/completions", "/v1/chat/completions", "/inference/v1/generate"),
        *("/tokenize", "/detokenize", "/v1/embeddings", "/encode", "/abort_request", "/openapi.json"),
    }


def test_ids_and_times_are_no_difference():
    ours = {"id": "chatcmpl-" + "0a" * 16, "created": 1, "meta_info": {"e2e_latency": 0.5, "x_ts": 1.5}}
    theirs = {"id": "chatcmpl-" + "1b" * 16, "created": 2, "meta_info": {"e2e_latency": 0.7, "x_ts": 2.5}}
    assert list(differences(normal(ours), normal(theirs))) == []
    assert normal({"id": "mine", "completion_tokens": 3}) == {"id": "mine", "completion_tokens": 3}


@pytest.mark.parametrize(
    ("theirs", "place"),
    [
        (stream({"text": "ab", "ids": [1, 3]}), "/body/0/data:/ids/1: 2 here, 3 there"),
        (stream({"text": "ab", "ids": [1, 2.0]}), "/body/0/data:/ids/1: 2 here, 2.0 there"),
        (stream({"ids": [1, 2], "text": "ab"}), "/body/0/keys/0: 'text' here, 'ids' there"),
        (stream({"text": "ab", "ids": [1, 2], "more": None}), "/body/0/data:/more: '(absent)' here"),
        (stream({"text": "a"}, {"text": "b"}), "/body: "),
        (stream({"text": "ab", "ids": [1, 2]}, status=500), "/status: 200 here, 500 there"),
    ],
    ids=["a value", "a type", "the order of keys", "a key", "the cut of a stream", "the status"],
)
def test_what_a_client_can_see_is_a_difference(theirs, place):
    ours = stream({"text": "ab", "ids": [1, 2]})
    assert list(differences(read(ours), read(ours))) == []
    assert any(line.startswith(place) for line in differences(read(ours), read(theirs)))
