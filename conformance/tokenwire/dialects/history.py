"""The turns of a conversation, as an endpoint takes them: reasoning, calls and their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.dialects.demands import filled_in


@dataclass(frozen=True)
class SentCall:
    """A tool call of an earlier turn, and the result that goes back."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True)
class HistoryBinding:
    """The form of an earlier answer and of the results of its calls. Words in capitals are replaced."""

    call: Mapping[str, Any]
    """With ID, NAME and ARGUMENTS, as JSON; INPUT is the same as an object."""
    result: Mapping[str, Any]
    """With ID and RESULT."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """A part of content, with TEXT; empty where content is no part."""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """A part of reasoning, with REASONING; empty where reasoning is no part."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """What holds an answer, with PARTS, or with TEXT (null without text), REASONING (left out without any)
    and CALLS; empty where the parts are entries of their own.
    """
    results: Mapping[str, Any] = field(default_factory=dict)
    """What holds RESULTS; empty where each is an entry of its own."""

    def turn(
        self, calls: Sequence[SentCall], *, text: str = "", reasoning: str = ""
    ) -> list[Mapping[str, Any]]:
        """Return the entries of an answer with calls, and of their results."""
        made = [
            filled_in(
                self.call,
                {
                    "ID": call.id,
                    "NAME": call.name,
                    "ARGUMENTS": json.dumps(call.arguments, ensure_ascii=False),
                    "INPUT": call.arguments,
                },
            )
            for call in calls
        ]
        given = [filled_in(self.result, {"ID": call.id, "RESULT": call.result}) for call in calls]
        parts = [filled_in(self.reasoning, {"REASONING": reasoning})] if self.reasoning and reasoning else []
        parts += [filled_in(self.text, {"TEXT": text})] if self.text and text else []
        values = {"PARTS": [*parts, *made], "TEXT": text or None, "REASONING": reasoning, "CALLS": made}
        told = {name: value for name, value in self.answer.items() if reasoning or value != "REASONING"}
        held = filled_in(told, values)
        return [
            *([held] if held else [*parts, *made]),
            *([filled_in(self.results, {"RESULTS": given})] if self.results else given),
        ]


@dataclass(frozen=True)
class Parted:
    """A conversation as it was sent, in the form of any endpoint, and what tells its turns apart."""

    messages: tuple[Any, ...]
    without_results: tuple[Any, ...]
    """The same, each tool result empty."""
    results: tuple[str, ...]
    without_reasoning: tuple[Any, ...]
    reasoning: str
    """All reasoning of earlier turns."""
    has_turns: bool
    """It brings an answer of the assistant, a call or a result."""


_REASONING_KEYS = ("reasoning_content", "reasoning")
_REASONING_TYPES = ("reasoning", "thinking")


def parted(messages: Sequence[Any]) -> Parted:
    """Return what tells the turns of a conversation apart."""
    results: list[str] = []
    thoughts: list[str] = []
    turns = [False]

    def emptied(entry: Any) -> Any:
        """Return an entry or a block with empty results, which are collected."""
        match entry:
            case {"role": "tool", "content": str(text)}:
                results.append(text)
                return {**entry, "content": ""}
            case {"type": "function_call_output", "output": str(text)}:
                results.append(text)
                return {**entry, "output": ""}
            case {"type": "tool_result", "content": str(text)}:
                results.append(text)
                return {**entry, "content": ""}
            case {"content": [*blocks]}:
                return {**entry, "content": [emptied(block) for block in blocks]}
        return entry

    def thoughtless(entries: Sequence[Any]) -> list[Any]:
        """Return entries or blocks without reasoning, which is collected."""
        kept: list[Any] = []
        for entry in entries:
            if not isinstance(entry, Mapping):
                kept.append(entry)
                continue
            turns[0] = turns[0] or entry.get("role") in ("assistant", "tool") or "call_id" in entry
            if entry.get("type") in _REASONING_TYPES:
                thoughts.append(str(entry.get("thinking") or entry.get("content")))
                continue
            thoughts.extend(str(entry[key]) for key in _REASONING_KEYS if entry.get(key))
            bare = {key: value for key, value in entry.items() if key not in _REASONING_KEYS}
            if isinstance(bare.get("content"), list):
                bare["content"] = thoughtless(bare["content"])
            kept.append(bare)
        return kept

    bare, empty = thoughtless(messages), [emptied(entry) for entry in messages]
    return Parted(tuple(messages), tuple(empty), tuple(results), tuple(bare), "".join(thoughts), turns[0])
