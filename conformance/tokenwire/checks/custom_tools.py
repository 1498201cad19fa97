"""Checks of custom tools, whose input is a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenwire.checks.about import about, undisturbed_choices
from tokenwire.checks.check import Target, check
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import Channels, piece_place
from tokenwire.checks.reading.right_channels import known_marked_text
from tokenwire.dialects.demands import ToolBinding
from tokenwire.dialects.dialect import dialect_of
from tokenwire.dialects.item_binding import INPUT
from tokenwire.dialects.markup import as_object
from tokenwire.record import Choice, Stream


def _due(stream: Stream, choice: Choice, target: Target, free: frozenset[str]) -> list[str] | None:
    """Return the inputs of the calls of custom tools in the text of a choice; None if they are unknown."""
    said = known_marked_text(stream, choice, target)
    if said is None or said.markup.form is None or not said.settled or said.reading.cut is not None:
        return None
    calls = [call.arguments.get(INPUT) for call in said.reading.calls if call.name in free]
    texts = [text for text in calls if isinstance(text, str)]
    return texts if len(texts) == len(calls) else None


@check("custom-calls-are-custom", about(chat=True, answered=True, ended=True))
def _custom_calls_are_custom(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check the type and the input of calls to custom tools.

    If the text of the tokens is unknown, the check is only that the input is not wrapped in a JSON object.
    """
    dialect, body = dialect_of(stream), stream.exchange.request.body
    tool = dialect.request.tool if dialect is not None else None
    free = tool.free_names(body) if tool is not None else frozenset()
    if tool is None or not free:
        return
    for choice in undisturbed_choices(stream):
        yield from _calls(stream, choice, tool, _due(stream, choice, target, free), free)


def _calls(
    stream: Stream, choice: Choice, tool: ToolBinding, due: list[str] | None, free: frozenset[str]
) -> Iterator[Observation]:
    calls = [call for call in Channels.of(stream, choice).calls if call.name in free]
    if due is not None and len(calls) != len(due):
        message = f"the text calls custom tools {len(due)} times, and the answer has {len(calls)} such calls"
        yield expect(choice.last_at("tool_calls"), len(due), len(calls), message)
        return
    for number, call in enumerate(calls):
        place = piece_place(*call.pieces[-1])
        if call.type != tool.free_call:
            message = f"the call of the custom tool {call.name} is of type {call.type}"
            yield expect(place, tool.free_call, call.type, message)
            continue
        text = (as_object(call.arguments) or {}).get(INPUT)
        inside = as_object(text) if isinstance(text, str) else None
        wrapped = isinstance(inside, Mapping) and inside.keys() == {INPUT}
        expected = due[number] if due is not None else "a text"
        holds = text == expected if due is not None else not wrapped
        message = f"the input of {call.name} is {'JSON around the text' if wrapped else 'another text'}"
        yield expect(place, expected, text, message, holds=holds)
