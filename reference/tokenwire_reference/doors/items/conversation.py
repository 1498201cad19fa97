"""Conversations of items as chat messages, for the chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.items.free_input import INPUT
from tokenwire_reference.doors.json_answer import to_json

Message = dict[str, Any]
_TEXT = ("input_text", "output_text", "reasoning_text", "text")


def of_input(value: str | Sequence[Mapping[str, Any]], instructions: str | None = None) -> list[Message]:
    """Convert the `input` of `/v1/responses` into chat messages, and return them.

    Raises RefusalError for an unknown kind of item.
    """
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    for position, item in enumerate(items):
        name = f"input[{position}]"
        match item:
            case {"type": "reasoning"}:
                _add_reasoning(messages, _text(item.get("content") or (), name))
            case {"type": "function_call", "name": str(called), "arguments": str(arguments)}:
                _add_call(messages, item.get("call_id"), called, arguments)
            case {"type": "custom_tool_call", "name": str(called), "input": str(text)}:
                _add_call(messages, item.get("call_id"), called, to_json({INPUT: text}).decode())
            case {
                "type": "function_call_output" | "custom_tool_call_output",
                "call_id": call_id,
                "output": output,
            }:
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(output, name)})
            case {"role": "assistant", "content": content}:
                _add_text(messages, _text(content, name))
            case {"role": role, "content": content}:
                role = "system" if role == "developer" else role
                messages.append({"role": role, "content": _text(content, name)})
            case _:
                raise RefusalError(
                    f"{name} is of type {item.get('type')!r}; the reference engine takes messages, "
                    "reasoning, calls of functions and custom tools, and their outputs",
                    param="input",
                )
    return messages


def of_messages(turns: Sequence[Mapping[str, Any]], system: Any = None) -> list[Message]:
    """Convert the turns of `/v1/messages`, whose content may be blocks, into chat messages.

    Raises RefusalError for an unknown kind of block.
    """
    messages = [] if system is None else [{"role": "system", "content": _text(system, "system")}]
    for position, turn in enumerate(turns):
        name = f"messages[{position}]"
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [block for block in blocks if block.get("type") == "text"]
        for block in blocks:
            match block:
                case {"type": "tool_use", "id": call_id, "name": str(called), "input": given}:
                    _add_call(messages, call_id, called, to_json(given).decode())
                case {"type": "tool_result", "tool_use_id": call_id}:
                    output = _text(block.get("content") or "", name)
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
                case {"type": "thinking", "thinking": str(thought)}:
                    _add_reasoning(messages, thought)
                case {"type": "thinking" | "text"}:
                    continue
                case _:
                    raise RefusalError(
                        f"{name} has a block of type {block.get('type')!r}; the reference engine takes text, "
                        "thinking, tool_use and tool_result",
                        param="messages",
                    )
        if turn["role"] == "assistant":
            _add_text(messages, _text(texts, name))
        elif texts:
            messages.append({"role": turn["role"], "content": _text(texts, name)})
    return messages


def _text(content: str | Iterable[Mapping[str, Any]], name: str) -> str:
    if isinstance(content, str):
        return content
    parts = list(content)
    wrong = next((part.get("type") for part in parts if part.get("type") not in _TEXT), None)
    if wrong is not None:
        raise RefusalError(f"{name} has a part of type {wrong!r}; this endpoint takes text only")
    return "".join(str(part.get("text", "")) for part in parts)


def _assistant(messages: list[Message]) -> Message:
    """Return the assistant's turn at the end of a conversation; a new one if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _add_reasoning(messages: list[Message], text: str) -> None:
    """Add reasoning to the turn of the assistant.

    The chat template decides if the prompt contains the reasoning.
    """
    turn = _assistant(messages)
    if text:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text


def _add_text(messages: list[Message], text: str) -> None:
    _assistant(messages)["content"] += text


def _add_call(messages: list[Message], call_id: Any, name: str, arguments: str) -> None:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    _assistant(messages).setdefault("tool_calls", []).append(call)
