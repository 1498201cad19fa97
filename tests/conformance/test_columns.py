"""The columns of a choice say what its emissions say, whatever a server wrote."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_answers import DONE, answered

from tokenwire.record import Columns, Emissions, Stream

_META = {
    "id": "r-1",
    "finish_reason": None,
    "completion_tokens": 1,
    "prompt_tokens": None,
    "output_token_logprobs": [[-1.5, 7, None]],
    "x": [7],
    "weight_version": "default",
}
_ENTRY = {"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}
_PARALLEL = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}
_DELTA = {
    "role": "assistant",
    "content": "a",
    "reasoning_content": None,
    "reasoning": "b",
    "tool_calls": None,
}
_CALL = [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}, 1]
_HEAD = {"id": "r-1", "object": "chunk", "created": 1, "model": "m", "usage": None}
_CHAT = _HEAD | {
    "prompt_token_ids": [1],
    "choices": [
        {
            "index": 0,
            "delta": _DELTA,
            "logprobs": {"content": [_ENTRY]},
            "finish_reason": None,
            "token_ids": [7],
            "meta_info": _META,
        }
    ],
}
_TEXT = {"index": 0, "text": "a", "logprobs": _PARALLEL, "finish_reason": None, "token_ids": [7]}
_COMPLETION = _HEAD | {"choices": [_TEXT]}
_GENERATE = {"text": "a", "output_ids": [7], "index": 0, "meta_info": _META}
EVENTS: dict[str, dict[str, Any]] = {
    "sglang-generate": _GENERATE,
    "lmdeploy-generate": _GENERATE,
    "sglang-chat": _CHAT,
    "vllm-chat": _CHAT,
    "openai-chat": _CHAT,
    "sglang-completions": _COMPLETION,
    "vllm-completions": _COMPLETION,
}
"""An event of each kind of endpoint, as servers write them."""

_ODD = [
    None,
    [],
    [8, 9],
    ["a"],
    {},
    "b",
    "",
    3,
    -1,
    0,
    1.5,
    True,
    _CALL,
    [_ENTRY],
    {"type": "length"},
    "stop",
]


def _objects(value: Any) -> list[Any]:
    """All objects and lists of objects in an event."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if isinstance(value, dict) else []) + [each for one in inner for each in _objects(one)]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Some events of one endpoint, each like the one before it but for a few keys."""
    dialect = draw(st.sampled_from(sorted(EVENTS)))
    event, events = deepcopy(EVENTS[dialect]), []
    for _ in range(draw(st.integers(1, 5))):
        event = deepcopy(event)
        for _ in range(draw(st.integers(0, 2))):
            edited = draw(st.sampled_from(_objects(event)))
            key = draw(st.sampled_from([*edited, "x", "y"]))
            if draw(st.booleans()):
                edited[key] = deepcopy(draw(st.sampled_from(_ODD)))
            else:
                edited.pop(key, None)
        choices = event.get("choices")
        if isinstance(choices, list) and draw(st.integers(0, 9)) == 0:
            event["choices"] = draw(st.sampled_from([[], [*choices, *deepcopy(choices)]]))
        events.append(event)
    return answered(dialect, {"stream": True, "logprobs": True}, *events, DONE)


def said(columns: Columns) -> dict[str, Any]:
    told = {one.name: getattr(columns, one.name) for one in fields(columns)}
    return told | {"keys": [set(keys) for keys in columns.keys], "calls": list(map(tuple, columns.calls))}


@given(streams())
@settings(deadline=None, max_examples=400)
def test_the_columns_of_a_stream_are_those_of_its_emissions(stream: Stream) -> None:
    for choice in stream.choices:
        assert said(choice.columns) == said(Columns.of(tuple(choice.emissions)))


@pytest.mark.parametrize("dialect", sorted(EVENTS))
def test_a_stream_that_a_server_sends_is_read_by_columns(dialect: str) -> None:
    stream = answered(dialect, {"stream": True}, EVENTS[dialect], EVENTS[dialect], DONE)
    (choice,) = stream.choices
    assert isinstance(choice.emissions, Emissions)
    assert choice.columns.events == [0, 1]
    assert choice.emissions[0] is choice.emissions[0] == choice.emissions[-2]


def test_an_event_is_made_when_it_is_looked_at() -> None:
    stream = answered("sglang-generate", {"stream": True}, _GENERATE, "{", _GENERATE, DONE)
    problem = stream.events[1].problem
    assert problem.startswith("not strict JSON")
    assert stream.choices[0].columns.events == [0, 2]
    assert [event.index for event in stream.events] == [0, 1, 2, 3]
    assert [event.done for event in stream.events[-2:]] == [False, True]
    assert stream.events[2].place.time == pytest.approx(0.3)
    assert stream.events[2].place.excerpt.startswith('data: {"text": "a"')
