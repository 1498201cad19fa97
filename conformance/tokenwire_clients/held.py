"""Reports of clients about the content that they have parsed, and the differences from the report of a
correct client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jsonschema_rs

from tokenwire.checks.difference import first_difference
from tokenwire.record import Choice, Stream, as_list

SINGLE = (
    "text",
    "reasoning",
    "signatures",
    "calls",
    "output_ids",
    "logprobs",
    "customized_info",
    "weight_versions",
    "finish",
)
"""The fields of a choice in a report. A field that a client does not report is not judged."""
_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "incomplete": "length",
    "tool_use": "tool_calls",
}
"""The finish reasons of other endpoints, with the equivalent finish reason of the abstract record.

A client may report either of them.
"""
_COUNTED = ("prompt_tokens", "completion_tokens")
_CALLS = {"type": ["array", "null"], "items": {"type": "object"}}
_INDEX = {"type": ["integer", "number", "string", "boolean", "null"]}
"""The type of a choice's index. It is permissive, because a client may copy a wrong index from a stream."""
_CHOICE = {"type": "object", "properties": {"index": _INDEX, "calls": _CALLS}}
_REPORT = jsonschema_rs.Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "choices": {"type": "array", "items": _CHOICE},
            "usage": {"type": ["object", "null"]},
        },
    }
)


class Difference(NamedTuple):
    """A field with a wrong value in a client's report."""

    field: str
    choice: Any
    """The index of the choice. None for a field outside of the choices."""
    expected: Any
    actual: Any

    @property
    def position(self) -> int | None:
        """The index of the first wrong character or entry.

        None if the compared values are not texts or lists. A missing value counts as empty.
        """
        values = self.expected, self.actual
        if not any(isinstance(value, str | list) for value in values):
            return None
        if not all(value is None or isinstance(value, str | list) for value in values):
            return None
        return first_difference(self.expected or "", self.actual or "")


def _plain(field: str, value: Any) -> Any:
    """Return a value in a canonical form: None for all empty values, and the record's finish reasons."""
    if field == "finish":
        return (_FINISHES.get(value, value) if isinstance(value, str) else value) or None
    if isinstance(value, str):  # a report may have surrogate pairs as two characters
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if field == "calls":
        return [(call.get("id"), call.get("name"), _arguments(call.get("arguments"))) for call in value or ()]
    return value or None


def _arguments(text: Any) -> Any:
    """Parse the arguments of a call as JSON, because clients may keep only the parsed value.

    If the arguments are not valid JSON, return the text.
    """
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def problem_of(report: Any) -> str:
    """Explain why a value is not a valid report, with a JSON pointer.

    Empty if the value is a valid report.
    """
    error = next(_REPORT.iter_errors(report), None)
    return f"no report, at /{'/'.join(map(str, error.instance_path))}: {error.message}" if error else ""


def differences(record: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between the correct content (`record`) and a client's report, field by field."""
    if record["error"] is not None:  # the client must report the error, and may drop the content before it
        if not report.get("error"):
            yield Difference("error", None, record["error"], report.get("error"))
        return
    if report.get("error"):
        yield Difference("error", None, None, report["error"])
        return
    held = {choice.get("index", 0): choice for choice in report.get("choices", ())}
    for choice in record["choices"]:
        index = choice["index"]
        if index not in held:
            yield Difference("choices", index, choice["text"], None)
            continue
        for field in (name for name in SINGLE if name in choice and name in held[index]):
            expected, actual = _plain(field, choice[field]), _plain(field, held[index][field])
            if expected != actual:
                shown = held[index][field] if actual is None else actual
                yield Difference(field, index, expected, shown)
    for index in sorted(held.keys() - {choice["index"] for choice in record["choices"]}, key=str):
        yield Difference("choices", index, None, held[index].get("text"))
    if record["usage"] and "usage" in report:
        counts = [
            {name: (usage or {}).get(name) for name in _COUNTED}
            for usage in (record["usage"], report["usage"])
        ]
        if counts[0] != counts[1]:
            yield Difference("usage", None, *counts)


def finished(record: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """True if a client treats its content as complete.

    In this case, its report has no error, and has a finish for each choice.
    """
    held = {choice.get("index", 0): choice.get("finish") for choice in report.get("choices", ())}
    return not report.get("error") and all(held.get(choice["index"]) for choice in record["choices"])


def reported_fields(report: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of all fields in a client's report, within and outside of the choices."""
    return frozenset(report).union(*report.get("choices", ()))


def held_by(stream: Stream) -> dict[str, Any]:
    """Return the content that our own parser finds in an answer, in the form of a client's report."""
    usage = {name: stream.usage.get(name) for name in _COUNTED} if stream.usage else None
    return {"choices": [_held(choice) for choice in stream.choices], "usage": usage, "error": stream.error}


def _held(choice: Choice) -> dict[str, Any]:
    logprobs = choice.series("logprobs_content") or choice.series("output_token_logprobs")
    weight_versions = [spans for spans in choice.details("weight_versions") if spans is not None]
    return {
        "index": choice.index,
        "text": choice.text,
        "reasoning": choice.reasoning,
        "signatures": [signature for signature in choice.details("signature") if signature is not None],
        "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in choice.calls],
        "output_ids": choice.output_ids,
        "logprobs": [entry["logprob"] if isinstance(entry, dict) else entry[0] for entry in logprobs or ()],
        "customized_info": {name: as_list(choice.series(name)) for name in choice.customized},
        "weight_versions": weight_versions[-1] if weight_versions else None,
        "finish": choice.finish.type if choice.finish else None,
    }
