"""What a parser takes out of the content becomes channels of the record: reasoning, and tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_live_answers import violated
from wire_answers import DONE, answered

from tokenwire.dialects.answer_binding import AnswerBinding
from tokenwire.record import Choice
from tokenwire.target.determinism import Comparison

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
ARGUMENTS = '{"city": "Paris", "days": 2}'


def document(message: dict[str, Any], finish: str = "tool_calls") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}


def whole(dialect: str, message: dict[str, Any]) -> Choice:
    [choice] = answered(dialect, BODY, document(message)).choices
    return choice


def streamed(dialect: str, *chunks: dict[str, Any]) -> Choice:
    [choice] = answered(dialect, {**BODY, "stream": True}, *chunks, DONE).choices
    return choice


def channels_of(choice: Choice) -> tuple[Any, ...]:
    return choice.reasoning, choice.text, [(call.index, call.name, call.arguments) for call in choice.calls]


def sglang(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A piece as SGLang 0.5.23 writes it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{index}" if name else None, "index": index, "type": "function", "function": function}


SGLANG_STREAM = (
    chunk(role="assistant", content="", reasoning_content=None),
    chunk(reasoning_content="hm\n"),
    chunk(reasoning_content=None, content="Look."),
    chunk(reasoning_content=None, tool_calls=[sglang(0, "", "get_weather")]),
    chunk(reasoning_content=None, tool_calls=[sglang(0, '{"city": "Paris",')]),
    chunk(reasoning_content=None, tool_calls=[sglang(0, ' "days": 2}')]),
    chunk(reasoning_content=None, tool_calls=[sglang(1, "", "ping")]),
    chunk(reasoning_content=None, tool_calls=[sglang(1, "{}")]),
    chunk(finish="tool_calls"),
)


def test_sglangs_channels_are_the_same_whole_and_joined() -> None:
    calls = [sglang(0, ARGUMENTS, "get_weather"), sglang(1, "{}", "ping")]
    message = {"content": "Look.", "reasoning_content": "hm\n", "tool_calls": calls}
    expected = ("hm\n", "Look.", [(0, "get_weather", ARGUMENTS), (1, "ping", "{}")])
    assert channels_of(whole("sglang-chat", message)) == expected
    joined = streamed("sglang-chat", *SGLANG_STREAM)
    assert channels_of(joined) == expected
    assert [call.id for call in joined.calls] == ["call_0", "call_1"]
    assert joined.parsed
    emission, piece = joined.calls[0].pieces[2]
    assert (emission.event.index, piece.pointer) == (5, "/choices/0/delta/tool_calls/0")


def test_vllms_channels_are_the_same_whole_and_joined() -> None:
    """No index in a whole answer, no `arguments` in the first piece, which the first fragment
    may follow in the same chunk; reasoning and content in one delta (0.32.0).
    """
    opened = {"id": "t-0", "type": "function", "index": 0, "function": {"name": "get_weather"}}
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    calls = [
        {"id": "t-0", "type": "function", "function": function},
        {"id": "t-1", "type": "function", "function": {"name": "ping", "arguments": "{}"}},
    ]
    expected = ("hm\n", "Look.", [(0, "get_weather", ARGUMENTS), (1, "ping", "{}")])
    assert (
        channels_of(whole("vllm-chat", {"content": "Look.", "reasoning": "hm\n", "tool_calls": calls}))
        == expected
    )
    fragments = [
        {"index": 0, "function": {"arguments": part}} for part in ('{"city":', ' "Paris", "days": 2}')
    ]
    chunks = (
        chunk(role="assistant", content=""),
        chunk(content="Look.", reasoning="hm\n"),
        chunk(content=None, tool_calls=[opened, fragments[0]]),
        chunk(tool_calls=[fragments[1]]),
        chunk(tool_calls=[{**calls[1], "index": 1}], finish="tool_calls"),
    )
    assert channels_of(streamed("vllm-chat", *chunks)) == expected


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_by_either_name_in_any_openai_chat(name: str) -> None:
    other = {"reasoning_content", "reasoning"} - {name}
    message = {"content": None, name: "hm", **dict.fromkeys(other)}
    assert channels_of(whole("openai-chat", message)) == ("hm", None, [])
    chunks = [chunk(**{name: part, **dict.fromkeys(other)}) for part in ("h", "m")]
    assert channels_of(streamed("openai-chat", *chunks, chunk(finish="stop"))) == ("hm", None, [])


def test_an_answer_without_channels_is_content_alone() -> None:
    message = {"content": "ab", "reasoning_content": None}
    choice = whole("sglang-chat", message)
    assert (channels_of(choice), choice.parsed) == ((None, "ab", []), False)


def test_what_is_no_call_is_none() -> None:
    """A call without fields keeps its place; what is no object is no call."""
    calls = [7, {}, {"index": "x", "id": 3, "function": {"name": ["n"], "arguments": {"a": 1}}}, None]
    choice = whole("sglang-chat", {"content": "", "tool_calls": calls})
    assert [(call.index, call.id, call.name, call.arguments) for call in choice.calls] == [
        (1, None, None, ""),
        (2, 3, ["n"], ""),
    ]
    assert whole("sglang-chat", {"content": "", "tool_calls": {"a": 1}}).calls == ()
    assert json.dumps(choice.calls[0].type) == "null"


def test_a_table_with_a_field_that_no_call_has_is_refused() -> None:
    table = {"choices": "/choices", "tool_calls": {"at": "/message/tool_calls", "colour": "/colour"}}
    with pytest.raises(ValueError, match="dialect d: unknown key 'colour' in tool_calls"):
        AnswerBinding.load("d", table)


def test_what_a_parser_took_apart_is_compared_by_the_chapter_on_channels() -> None:
    """Elsewhere its text is not: white space between channels comes in one stream and not in another."""
    baseline = answered(
        "sglang-chat", BODY, document({"content": "Look.", "reasoning_content": "hm"}, "stop")
    )
    plain = answered("sglang-chat", BODY, document({"content": "Look."}, "stop"))
    chunks = (chunk(reasoning_content="hm\n"), chunk(content="\n\nLook."), chunk(finish="stop"))
    stream = answered("sglang-chat", {**BODY, "stream": True}, *chunks, DONE)
    for requirement in ("stream-text-equals-whole", "stream-is-legal-delivery"):
        assert violated(requirement, Comparison(baseline, stream)) == []
    other = answered("sglang-chat", {**BODY, "stream": True}, *chunks[1:], DONE)
    assert violated("stream-text-equals-whole", Comparison(plain, other))
