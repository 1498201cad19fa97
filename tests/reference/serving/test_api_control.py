"""Pausing and continuing, and a queue that is full."""

from __future__ import annotations

import pytest

STEPS = [[5], [6]]


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place", None])
def test_a_pause_reaches_the_engine(answer, scripted_engine, mode):
    engine = scripted_engine(STEPS)
    body = answer(engine, "/pause_generation", {} if mode is None else {"mode": mode}).json()
    assert (engine.paused, body["status"]) == (mode or "abort", "ok")
    assert answer(engine, "/continue_generation", {"torch_empty_cache": True}).json()["status"] == "ok"
    assert engine.paused is None


def test_continuing_needs_no_body(answers, scripted_engine, call):
    engine = scripted_engine(STEPS)
    (answer,) = answers(engine, call("/continue_generation", content=b""))
    assert answer.json()["status"] == "ok"


@pytest.mark.parametrize("mode", ["", "stop", 5, None])
def test_an_unknown_mode_is_refused(answer, scripted_engine, mode):
    engine = scripted_engine(STEPS)
    refused = answer(engine, "/pause_generation", {"mode": mode})
    assert (refused.status_code, "mode: " in refused.json()["message"]) == (400, True)
    assert engine.paused is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [5], "rid": "full"}),
        ("/v1/completions", {"prompt": [5], "rid": "full"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "rid": "full"}),
    ],
)
def test_a_full_queue_is_answered_with_503(answer, scripted_engine, path, body, stream):
    engine = scripted_engine(STEPS)
    engine.too_many = "full"
    refused = answer(engine, path, body | {"stream": stream})
    assert refused.status_code == 503
    assert refused.json() == {
        "object": "error",
        "message": "The request queue is full.",
        "type": "503",
        "param": None,
        "code": 503,
    }
