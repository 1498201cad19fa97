"""Checks of the chapter on framing: media types, UTF-8, strict JSON, the end of a stream, and its keys."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import EVENTS, about
from tokenwire.checks.check import Target, check
from tokenwire.checks.evidence import Observation, Row, expect, expect_each, witnessed
from tokenwire.checks.reading.channels import offered
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.dialects.dialect import policy_of
from tokenwire.record import Choice, Place, Stream
from tokenwire.wire.exchange import Ending

_DONE = "[DONE]"


def _media_type(stream: Stream) -> str:
    return (stream.exchange.header("content-type") or "").partition(";")[0].strip().lower()


@check("answer-content-type")
def _answer_content_type(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that whole answers have the content type application/json. Requests whose `stream` is not a
    boolean are skipped.
    """
    stated = stream.asked.sent.get("stream")
    clear = all(value is None or isinstance(value, bool) for value in (stated.values if stated else ()))
    if not stream.asked.stream and stream.answered and clear:
        yield expect(start_place(stream), "application/json", _media_type(stream))


@check("stream-content-type", EVENTS)
def _stream_content_type(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an event stream has the media type text/event-stream."""
    if stream.answered:
        yield expect(start_place(stream), "text/event-stream", _media_type(stream))


@check("stream-is-utf8", EVENTS)
def _stream_is_utf8(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the whole body of a stream is valid UTF-8."""
    offset = stream.undecodable_at
    place = end_place(stream)
    if offset is not None:
        place = Place(stream.exchange.name, start=offset, end=offset + 1)
    message = f"byte {offset} of the body is not UTF-8"
    seen = expect(place, "UTF-8", "UTF-8" if offset is None else offset, message, holds=offset is None)
    yield from witnessed(stream, [seen])


@check("events-are-json-objects", EVENTS)
def _events_are_json_objects(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every event except the end mark is one strict JSON object."""

    def rows() -> Iterator[Row]:
        for event in stream.events:
            if not event.done:
                holds = not event.problem and isinstance(event.data, dict)
                what = event.problem or f"the data is a JSON {type(event.data).__name__}, not an object"
                yield event, "", holds, "one strict JSON object", "one" if holds else what

    yield from witnessed(stream, expect_each(rows(), "{actual}"))


@check("events-fit-schema", EVENTS)
def _events_fit_schema(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that every event fits the schema of its endpoint."""
    expected = f"an event valid against {stream.schema}"
    rows: Iterator[Row] = (
        (event, "", not event.schema_errors, expected, list(event.schema_errors[:5]) or "valid")
        for event in stream.events
        if not event.done and not event.problem
    )
    if stream.schema:
        yield from witnessed(stream, expect_each(rows, "{actual[0]}"))


@check("done-ends-the-stream", EVENTS)
def _done_ends_the_stream(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that there is exactly one end mark, and nothing after it. A stream that was cut off may lack the
    mark.
    """
    policy = policy_of(stream)
    if not stream.events or not policy.end_mark:
        return
    marks = [position for position, event in enumerate(stream.events) if event.done]
    if not marks and (policy.end_mark_is_optional or stream.exchange.ending is not Ending.COMPLETE):
        return
    last = len(stream.events) - 1
    if not marks:
        place, actual = end_place(stream), f"no {_DONE}"
    elif marks[0] != last:
        place, actual = stream.events[marks[0] + 1].place, f"{last - marks[0]} events after {_DONE}"
    elif stream.unterminated.strip():
        place, actual = end_place(stream), f"{len(stream.unterminated)} bytes after {_DONE}"
    else:
        place, actual = end_place(stream), f"one {_DONE} at the end"
    expected = f"one {_DONE} at the end"
    message = f"the stream has {actual}"
    seen = expect(place, expected, actual, message, holds=actual == expected)
    yield from witnessed(stream, [seen])


@check("stream-ends-cleanly", EVENTS)
def _stream_ends_cleanly(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the body and its last event are complete. Streams that the suite ended are skipped."""
    ending = stream.exchange.ending
    if ending not in {Ending.COMPLETE, Ending.TRUNCATED}:
        return
    left = stream.unterminated.decode("utf-8", "replace").strip("\r\n")
    if ending is Ending.TRUNCATED:
        message = f"the connection ended inside the body: {stream.exchange.detail or 'no reason known'}"
    else:
        message = f"{len(stream.unterminated)} bytes of an event without its blank line are at the end"
    expected = "a complete body and no unterminated event"
    actual = left[:80] if left and ending is Ending.COMPLETE else str(ending)
    seen = expect(end_place(stream), expected, actual, message, holds=ending is Ending.COMPLETE and not left)
    yield from witnessed(stream, [seen])


_HEARD_AS_MESSAGES = frozenset({"", "message"})
"""Event names that readers treat as unnamed events."""


@check("events-are-unnamed", about(event_stream=True, items=False))
def _events_are_unnamed(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that events have no name, so that clients which listen for `message` events get every event."""
    header, sent = policy_of(stream).named_events_header, stream.exchange.request.headers
    if any(name.lower() == header for name, _ in sent):
        return

    rows: Iterator[Row] = (
        (event, "", event.name in _HEARD_AS_MESSAGES, "no event name", event.name) for event in stream.events
    )
    yield from witnessed(stream, expect_each(rows, "the event is named {actual!r}"))


_FEWEST = 3
"""The minimum number of emissions. A key can come and go only between the first and the last emission."""
_OF_CHANNELS = frozenset({"text", "content", "reasoning", "tool_calls"})


def _keys_of_all(choice: Choice) -> frozenset[str]:
    """Return the known keys that both the first and the last emission of a choice have."""
    emissions = choice.delivered
    if len(emissions) < _FEWEST:
        return frozenset()
    return frozenset(emissions[0].pointers.keys() & emissions[-1].pointers.keys())


@check("keys-do-not-come-and-go", about(streamed=True, ended=True))
def _keys_do_not_come_and_go(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that keys of the first and the last emission of a choice are in all emissions between them."""
    for choice in stream.choices:
        expected = _keys_of_all(choice)
        parsed = choice.parsed or offered(stream) is not None or "channels" in target.capabilities
        if parsed:  # the keys of a channel appear only when the parser has decided for this channel
            expected -= _OF_CHANNELS
        yield from expect_each(
            _with_keys(choice, expected), "choice {emission.choice} is in this event {actual}"
        )


def _with_keys(choice: Choice, keys: frozenset[str]) -> Iterator[Row]:
    words = f"the {len(keys)} keys of the first and the last emission"
    for emission in choice.emissions[1:-1] if keys else ():
        missing = sorted(keys - emission.pointers.keys())
        yield emission, "", not missing, words, f"without {', '.join(missing)}" if missing else "all of them"
