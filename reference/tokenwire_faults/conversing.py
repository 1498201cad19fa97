"""Faults in the conversation that the chat template gets: in earlier turns, results of
tools, or reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object
from tokenwire_faults.fault import Fault
from tokenwire_reference.extras.channels.parser import Channel, Delta

_PLACES = ("messages", "input")
_RESULTS = {"tool": "content", "function_call_output": "output", "tool_result": "content"}
"""The field that contains the text of a tool result, by the role or the type of the entry."""


def _entries(body: Object) -> list[Any]:
    """Return the entries of the conversation in a body of any endpoint."""
    held: list[Any] = next((body[place] for place in _PLACES if isinstance(body.get(place), list)), [])
    return list(held)


def _with_entries(body: Object, entries: list[Any]) -> Object:
    place = next((place for place in _PLACES if isinstance(body.get(place), list)), None)
    return body if place is None else {**body, place: entries}


def _is_result(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool({entry.get("role"), entry.get("type")} & _RESULTS.keys())


def _ends_in_a_result(body: Object) -> bool:
    last = (_entries(body) or [None])[-1]
    blocks = last.get("content") if isinstance(last, Mapping) else None
    return _is_result(last) or (isinstance(blocks, list) and any(map(_is_result, blocks)))


@act_at("asked")
def _history_is_dropped(body: Object) -> Object:
    return _with_entries(body, _entries(body)[-1:])


@act_at("asked")
def _tool_results_are_dropped(body: Object) -> Object:
    def without(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return entry
        if _is_result(entry):
            kind = next(kind for kind in (entry.get("role"), entry.get("type")) if kind in _RESULTS)
            return {**entry, _RESULTS[str(kind)]: ""}
        blocks = entry.get("content")
        return {**entry, "content": list(map(without, blocks))} if isinstance(blocks, list) else entry

    return _with_entries(body, list(map(without, _entries(body))))


@act_at("asked")
def _text_parts_are_run_together(body: Object) -> Object:
    def joined(entry: Any) -> Any:
        content = entry.get("content") if isinstance(entry, Mapping) else None
        if not isinstance(content, list) or not all("text" in part for part in content):
            return entry
        return {**entry, "content": "".join(str(part["text"]) for part in content)}

    return _with_entries(body, list(map(joined, _entries(body))))


@act_at("asked")
def _text_parts_are_shown_as_lists(body: Object) -> Object:
    def shown(entry: Any) -> Any:
        content = entry.get("content") if isinstance(entry, Mapping) else None
        return {**entry, "content": str(content)} if isinstance(content, list) else entry

    return _with_entries(body, list(map(shown, _entries(body))))


@act_at("asked")
def _arguments_of_earlier_calls_are_text(body: Object) -> Object:
    def quoted(entry: Any) -> Any:
        if not isinstance(entry, Mapping) or not entry.get("tool_calls"):
            return entry
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in entry["tool_calls"]
        ]
        return {**entry, "tool_calls": calls}

    return _with_entries(body, list(map(quoted, _entries(body))))


@act_at("asked")
def _earlier_reasoning_is_dropped(body: Object) -> Object:
    return _with_entries(body, list(_without_reasoning(_entries(body))))


def _without_reasoning(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if not isinstance(entry, Mapping):
            yield entry
        elif entry.get("type") not in ("reasoning", "thinking"):
            kept = {
                key: value for key, value in entry.items() if key not in ("reasoning_content", "reasoning")
            }
            if isinstance(kept.get("content"), list):
                kept["content"] = list(_without_reasoning(kept["content"]))
            yield kept


@act_at("deltas")
def _reasoning_leaks_behind_a_result(fault: Fault, deltas: list[Delta]) -> Iterator[Delta]:
    leaks = _ends_in_a_result(dict(fault.request))
    for delta in deltas:
        moved = leaks and delta.channel is Channel.REASONING
        yield replace(delta, channel=Channel.CONTENT) if moved else delta


@act_at("deltas")
def _call_lost_without_logprobs(fault: Fault, deltas: list[Delta]) -> Iterator[Delta]:
    for delta in deltas:
        if delta.channel is not Channel.CALL or fault.request.get("logprobs"):
            yield delta


@act_at("answers")
def _hidden_reasoning_is_not_counted(fault: Fault, answer: Json) -> None:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if isinstance(usage, dict) and fault.request.get("include_reasoning") is False:
        usage["completion_tokens"] -= 5
        usage["total_tokens"] -= 5


@act_at("asked")
def _reasoning_budget_ends_early(body: Object) -> Object:
    budget = body.get("thinking_token_budget")
    return {**body, "thinking_token_budget": budget - 1} if type(budget) is int and budget else body


_INPUT = "response.custom_tool_call_input"


def _items(value: Json) -> Iterator[Object]:
    """Yield the calls of custom tools in an answer or in an event."""
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _items(member)
    if isinstance(value, dict) and value.get("type") == "custom_tool_call":
        yield value


@act_at("answers")
def _custom_input_is_wrapped(answer: Json) -> None:
    for item in _items(answer):
        item["input"] = item["input"] and json.dumps({"input": item["input"]})
    if isinstance(answer, dict) and answer.get("type") == f"{_INPUT}.done":
        answer["input"] = json.dumps({"input": answer["input"]})
    elif isinstance(answer, dict) and answer.get("type") == f"{_INPUT}.delta":
        answer["delta"] = json.dumps({"input": answer["delta"]})


@act_at("answers")
def _custom_call_is_a_function(answer: Json) -> None:
    for item in list(_items(answer)):
        item["type"], text = "function_call", item.pop("input")
        item["arguments"] = text and json.dumps({"input": text})
    if isinstance(answer, dict) and str(answer.get("type")).startswith(_INPUT):
        kind = answer["type"].rpartition(".")[2]
        answer["type"] = f"response.function_call_arguments.{kind}"
        if "input" in answer:
            answer["arguments"] = json.dumps({"input": answer.pop("input")})


@act_at("events")
def _custom_input_is_never_done(event: Object) -> Iterable[Object]:
    return [] if event.get("type") == f"{_INPUT}.done" else [event]


@act_at("event")
def _custom_input_loses_a_piece(event: Object) -> None:
    if event.get("type") == f"{_INPUT}.delta" and event.get("delta") == "d":
        event["delta"] = ""


@act_at("events")
def _event_of_another_type(event: Object) -> Iterable[Object]:
    first = event.get("type") in ("response.created", "message_start")
    return [event, {"type": "tokenwire.extra.delta", "delta": "?"}] if first else [event]


@act_at("asked")
def _content_in_parts_is_lost(body: Object) -> Object:
    def emptied(entry: Any) -> Any:
        plain = isinstance(entry, Mapping) and not _is_result(entry) and entry.get("role") == "user"
        return {**entry, "content": ""} if plain and isinstance(entry.get("content"), list) else entry

    return _with_entries(body, list(map(emptied, _entries(body))))
