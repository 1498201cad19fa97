"""The turns of a conversation in an endpoint's form: reasoning, calls and their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.dialects.demands import filled_in


@dataclass(frozen=True)
class SentCall:
    """A tool call of an earlier turn, with its result."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True)
class HistoryBinding:
    """The form of an earlier answer and of the results of its calls, with capitals as placeholders."""

    call: Mapping[str, Any]
    """A call, with ID, NAME and ARGUMENTS as JSON, or INPUT as an object."""
    result: Mapping[str, Any]
    """The result of a call, with ID and RESULT."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """A part of content, with TEXT; empty if content is not a part."""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """A part of reasoning, with REASONING; empty if reasoning is not a part."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The object of an answer, with PARTS, or with TEXT, REASONING and CALLS; empty if the parts are separate
    entries.

    TEXT is null without a text, and REASONING is missing without reasoning.
    """
    results: Mapping[str, Any] = field(default_factory=dict)
    """The object with RESULTS; empty if each result is a separate entry."""

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
    """A conversation as it was sent, independent of the endpoint, and the parts that distinguish its
    turns.
    """

    messages: tuple[Any, ...]
    without_results: tuple[Any, ...]
    """The conversation with empty tool results."""
    results: tuple[str, ...]
    without_reasoning: tuple[Any, ...]
    reasoning: str
    """The reasoning of all earlier turns."""
    has_turns: bool
    """True if it contains an answer of the assistant, a call or a result."""


_REASONING_KEYS = ("reasoning_content", "reasoning")
_REASONING_TYPES = ("reasoning", "thinking")


def parted(messages: Sequence[Any]) -> Parted:
    """Return the parts that distinguish the turns of a conversation."""
    results: list[str] = []
    thoughts: list[str] = []
    turns = [False]

    def emptied(entry: Any) -> Any:
        """Return an entry or a block with its results emptied and collected."""
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
        """Return entries or blocks with their reasoning removed and collected."""
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
