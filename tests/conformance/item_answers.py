"""Answers of typed items, as `/v1/responses` and `/v1/messages` write them: whole, and streamed."""

from __future__ import annotations

from typing import Any

from wire_answers import answered

from tokenwire.record import Stream

Event = dict[str, Any]
ASKED: dict[str, Any] = {"role": "user", "content": "hi"}
CITY = '{"city": "Paris"}'


def message(text: str = "Yes.", status: str = "completed", name: str = "msg_1") -> Event:
    """An item with one text."""
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": name, "type": "message", "role": "assistant", "status": status, "content": parts}


def thought(text: str = "Hm.") -> Event:
    """An item of reasoning."""
    parts = [{"type": "reasoning_text", "text": text}]
    return {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [], "content": parts}


def call(arguments: str = CITY, name: str = "fc_1") -> Event:
    """An item that calls a function."""
    head = {"id": name, "type": "function_call", "status": "completed", "call_id": f"call_{name}"}
    return {**head, "name": "get_weather", "arguments": arguments}


def free_call(text: str = "a {b}\n", name: str = "ctc_1") -> Event:
    """An item that calls a custom tool."""
    head = {"id": name, "type": "custom_tool_call", "status": "completed", "call_id": f"call_{name}"}
    return {**head, "name": "apply_patch", "input": text}


_OF_CALLS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""The field of a call with its text, and the beginning of the types of its events."""


def response(*items: Event, status: str = "completed", prompt: int = 5, name: str = "resp_1") -> Event:
    """A response with items."""
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    usage = {"input_tokens": prompt, "output_tokens": 2, "total_tokens": prompt + 2}
    head = {"id": name, "object": "response", "created_at": 1, "model": "m", "status": status}
    return {**head, "error": None, "incomplete_details": details, "output": list(items), "usage": usage}


def events(*items: Event, status: str = "completed", kind: str = "", prompt: int = 5) -> list[Event]:
    """The events that build a response, each delta two characters; numbered."""
    begun = {**response(), "status": "in_progress", "usage": None}
    written: list[Event] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(items):
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] in _OF_CALLS:
            field, deltas = _OF_CALLS[item["type"]]
            added, text = {**item, field: "", "status": "in_progress"}, item[field]
            done = {field: text}
        else:
            added = {**item, "content": [], "status": "in_progress"}
            part = item["content"][0]
            text, deltas, done = part["text"], f"response.{part['type']}", {"text": part["text"]}
            where |= {"content_index": 0}
        written.append({"type": "response.output_item.added", "output_index": index, "item": added})
        if "content_index" in where:
            written.append({"type": "response.content_part.added", **where, "part": {**part, "text": ""}})
        written += [
            {"type": f"{deltas}.delta", **where, "delta": text[place : place + 2]}
            for place in range(0, len(text), 2)
        ]
        written.append({"type": f"{deltas}.done", **where, **done})
        if "content_index" in where:
            written.append({"type": "response.content_part.done", **where, "part": part})
        written.append({"type": "response.output_item.done", "output_index": index, "item": item})
    last = response(*items, status=status, prompt=prompt)
    written.append({"type": kind or f"response.{status}", "response": last})
    return [{**event, "sequence_number": number} for number, event in enumerate(written)]


def responded(*events: Event, label: str = "stream", **body: Any) -> Stream:
    """A stream of `/v1/responses`."""
    asked = {"model": "m", "input": [ASKED], "temperature": 0, "stream": True, **body}
    return answered("openai-responses", asked, *events, label=label)


def responded_whole(response: Event, label: str = "whole", status: int = 200, **body: Any) -> Stream:
    """A whole answer of `/v1/responses`."""
    asked = {"model": "m", "input": [ASKED], "temperature": 0, **body}
    return answered("openai-responses", asked, response, label=label, status=status)


def blocks(*content: Event, reason: str = "end_turn", sequence: str | None = None) -> list[Event]:
    """The events that build a message, each delta two characters."""
    begun = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    begun |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 0}}
    written: list[Event] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(content):
        kind = block["type"]
        text, opened, delta, name = {
            "text": (block.get("text"), {**block, "text": ""}, "text_delta", "text"),
            "thinking": (block.get("thinking"), {**block, "thinking": ""}, "thinking_delta", "thinking"),
            "tool_use": (block.get("input"), {**block, "input": {}}, "input_json_delta", "partial_json"),
        }[kind]
        assert isinstance(text, str)
        written.append({"type": "content_block_start", "index": index, "content_block": opened})
        written += [
            {
                "type": "content_block_delta",
                "index": index,
                "delta": {"type": delta, name: text[place : place + 2]},
            }
            for place in range(0, len(text), 2)
        ]
        written.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": reason, "stop_sequence": sequence}
    written.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 2}})
    return [*written, {"type": "message_stop"}]


def text_block(text: str = "Yes.") -> Event:
    return {"type": "text", "text": text}


def use_block(arguments: str = CITY) -> Event:
    """A call, its input as the text that the deltas bring."""
    return {"type": "tool_use", "id": "c1", "name": "get_weather", "input": arguments}


def messaged(*events: Event, named: bool = True, **body: Any) -> Stream:
    """A stream of `/v1/messages`."""
    asked = {"model": "m", "max_tokens": 64, "messages": [ASKED], "temperature": 0, "stream": True, **body}
    return answered("anthropic-messages", asked, *events, label="stream", named=named)


def messaged_whole(
    content: list[Event],
    reason: str = "end_turn",
    prompt: int = 5,
    status: int = 200,
    sequence: str | None = None,
    **body: Any,
) -> Stream:
    """A whole answer of `/v1/messages`."""
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": content}
    message |= {
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": {"input_tokens": prompt, "output_tokens": 2},
    }
    asked = {"model": "m", "max_tokens": 64, "messages": [ASKED], "temperature": 0, **body}
    return answered("anthropic-messages", asked, message, label="whole", status=status)
