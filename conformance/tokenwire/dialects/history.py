"""Writes earlier turns of a conversation (reasoning, tool calls and their results) in the format of an
endpoint.
"""

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
    """The format of an earlier answer and of the results of its calls.

    Templates have placeholders in capitals.
    """

    call: Mapping[str, Any]
    """Template of a call: ID, NAME, and ARGUMENTS as a JSON text, or INPUT as an object."""
    result: Mapping[str, Any]
    """Template of the result of a call: ID and RESULT."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """Template of a text part: TEXT. Empty if a text is not a separate part."""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """Template of a reasoning part: REASONING. Empty if reasoning is not a separate part."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """Template of an answer: PARTS; or TEXT, REASONING and CALLS. Empty if each part is an entry of its own.

    TEXT becomes null if there is no text. The field with REASONING is removed if there is no reasoning.
    """
    results: Mapping[str, Any] = field(default_factory=dict)
    """Template of an object with all RESULTS; empty if each result is an entry of its own."""

    def turn(
        self, calls: Sequence[SentCall], *, text: str = "", reasoning: str = ""
    ) -> list[Mapping[str, Any]]:
        """Return the entries for an answer with calls, and for the results of the calls."""
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
    """A conversation in a form that allows comparisons: with and without tool results, with and without
    reasoning.
    """

    messages: tuple[Any, ...]
    without_results: tuple[Any, ...]
    """The conversation with the text of all tool results removed."""
    results: tuple[str, ...]
    without_reasoning: tuple[Any, ...]
    reasoning: str
    """The reasoning of all earlier answers."""
    has_turns: bool
    """True if the conversation has an answer of the assistant, a tool call or a tool result."""


_REASONING_KEYS = ("reasoning_content", "reasoning")
_REASONING_TYPES = ("reasoning", "thinking")


def parted(messages: Sequence[Any]) -> Parted:
    """Parse the messages of a conversation in the format of any endpoint."""
    results: list[str] = []
    thoughts: list[str] = []
    turns = [False]

    def emptied(entry: Any) -> Any:
        """Return an entry or a block with its tool results emptied.

        The results are collected in `results`.
        """
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
        """Return entries or blocks without reasoning. The reasoning is collected in `thoughts`."""
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
