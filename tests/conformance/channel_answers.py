"""Answers with channels, as a chat server writes them: whole, and streamed in deltas."""

from __future__ import annotations

import re
from typing import Any

from wire_answers import DONE, answered

from tokenwire.checks.check import Target
from tokenwire.dialects.markup import Markup, load_markup
from tokenwire.record import Stream

_THOUGHTS, FORMS = load_markup()
HERMES = Target(markup=Markup(_THOUGHTS["think"], FORMS["hermes"]))
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "ping")]
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "max_tokens": 400,
    "logprobs": True,
    "tools": TOOLS,
}
CITY = {"city": "Paris"}
THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = FORMS["hermes"].spelled(("get_weather", CITY))
PING = FORMS["hermes"].spelled(("ping", {}))


def piece(name: str | None = None, arguments: str = "", index: Any = 0, **more: Any) -> dict[str, Any]:
    """A piece of a tool call: the first one, where it has a name."""
    function = {"name": name, "arguments": arguments}
    kind = {"id": f"call_{index}", "type": "function"} if name else {"id": None}
    return {"index": index, **kind, "function": function, **more}


def _logprobs(text: str) -> dict[str, Any]:
    entries = [
        {"token": word, "bytes": list(word.encode()), "logprob": -0.5, "top_logprobs": []}
        for word in re.findall(r"\s+|\w+|\W", text)
    ]
    return {"content": entries}


def _usage(text: str, reasoning: int | None) -> dict[str, Any]:
    count = len(_logprobs(text)["content"])
    found = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": count + 3}
    return found if reasoning is None else {**found, "reasoning_tokens": reasoning}


def whole(
    sampled: str,
    content: str | None = "",
    *calls: dict[str, Any],
    reasoning: str | None = None,
    finish: str | None = None,
    counted: int | None = None,
    matched: str | None = None,
    **body: Any,
) -> Stream:
    """A whole answer: what was sampled, and what of it stands in which channel."""
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    choice = {
        "index": 0,
        "message": {**message, **({"tool_calls": list(calls)} if calls else {})},
        "logprobs": _logprobs(sampled),
        "finish_reason": finish or ("tool_calls" if calls else "stop"),
        "matched_stop": matched,
    }
    found = {"id": "w", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return answered(
        "sglang-chat", {**BODY, **body}, {**found, "usage": _usage(sampled, counted)}, label="whole"
    )


def streamed(
    sampled: str,
    *deltas: dict[str, Any],
    finish: str | None = None,
    counted: int | None = None,
    short: int = 0,
    second: str | None = None,
    label: str = "stream",
    dialect: str = "sglang-chat",
    **body: Any,
) -> Stream:
    """A stream: the role, a chunk for each delta, the finish with the logprobs (but the last `short`), usage.

    A delta may name its `choice`; what a second one says is `second`.
    """
    called = any("tool_calls" in delta for delta in deltas)
    stop = finish or ("tool_calls" if called else "stop")

    def chunk(choice: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        written = {"index": choice, "delta": delta, "finish_reason": None, "matched_stop": None, **more}
        found = {"object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [written]}
        return {"id": f"s{choice}", **found}

    texts = [sampled] if second is None else [sampled, second]
    chunks = [chunk(index, {"role": "assistant", "content": ""}) for index in range(len(texts))]
    for delta in deltas:
        fields = dict(delta)
        chunks.append(chunk(fields.pop("choice", 0), fields))
    for index, text in enumerate(texts):
        entries = _logprobs(text)["content"]
        found = {"content": entries[: len(entries) - short]}
        chunks.append(chunk(index, {}, logprobs=found, finish_reason=stop))
    usage = {**chunks[0], "choices": [], "usage": _usage("".join(texts), counted)}
    asked = {**BODY, "stream": True, "stream_options": {"include_usage": True}, **body}
    return answered(
        dialect, {**asked, "n": len(texts)} if second else asked, *chunks, usage, DONE, label=label
    )


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": content, **more}


def thought(reasoning: str, **more: Any) -> dict[str, Any]:
    return {"reasoning_content": reasoning, **more}


def call(*pieces: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tool_calls": list(pieces), **more}
