"""Checks of the chapter on framing: media types, UTF-8, strict JSON, the end of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.about import EVENTS
from tokenwire.checks.check import Observation, Target, check, demand, observe
from tokenwire.checks.walk import end_place, start_place, witnessed
from tokenwire.dialects.dialect import policy_of
from tokenwire.record import Place, Stream
from tokenwire.wire.exchange import Ending

_DONE = "[DONE]"


def _media_type(stream: Stream) -> str:
    return (stream.exchange.header("content-type") or "").partition(";")[0].strip().lower()


@check("answer-content-type")
def answer_content_type(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Whole answers have the content type application/json. Not judged if `stream` is no boolean."""
    said = stream.asked.sent.get("stream")
    unclear = said is not None and not all(value is None or isinstance(value, bool) for value in said.values)
    if not stream.asked.stream and stream.answered and not unclear:
        yield observe(start_place(stream), expected="application/json", actual=_media_type(stream))


@check("stream-content-type", EVENTS)
def stream_content_type(stream: Stream, _target: Target) -> Iterator[Observation]:
    """An event stream calls itself one."""
    if stream.answered:
        yield observe(start_place(stream), expected="text/event-stream", actual=_media_type(stream))


@check("stream-is-utf8", EVENTS)
def stream_is_utf8(stream: Stream, _target: Target) -> Iterator[Observation]:
    """All bytes of a stream decode, once they are put together."""
    offset = stream.undecodable_at
    place = end_place(stream)
    if offset is not None:
        place = Place(stream.exchange.name, start=offset, end=offset + 1)
    message = f"byte {offset} of the body is not UTF-8"
    seen = demand(
        place, offset is None, expected="UTF-8", actual="UTF-8" if offset is None else offset, message=message
    )
    yield from witnessed(stream, [seen])


@check("events-are-json-objects", EVENTS)
def events_are_json_objects(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Every event but the end mark is one strict JSON object."""

    def events() -> Iterator[Observation]:
        for event in stream.events:
            if not event.done:
                what = event.problem or f"the data is a JSON {type(event.data).__name__}, not an object"
                holds = not event.problem and isinstance(event.data, dict)
                actual = "one" if holds else what
                yield demand(
                    event.place, holds, expected="one strict JSON object", actual=actual, message=what
                )

    yield from witnessed(stream, events())


@check("events-fit-schema", EVENTS)
def events_fit_schema(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Every event has the shape that its endpoint gives it."""

    def events() -> Iterator[Observation]:
        expected = f"an event valid against {stream.schema}"
        for event in stream.events:
            if not event.done and not event.problem:
                faults = list(event.schema_errors)
                message = "; ".join(faults[:2])
                yield demand(
                    event.place, not faults, expected=expected, actual=faults[:5] or "valid", message=message
                )

    if stream.schema:
        yield from witnessed(stream, events())


@check("done-ends-the-stream", EVENTS)
def done_ends_the_stream(stream: Stream, _target: Target) -> Iterator[Observation]:
    """One end mark, and nothing after it. A stream that was cut off promises no end mark."""
    if not stream.events or not policy_of(stream).end_mark:
        return
    marks = [position for position, event in enumerate(stream.events) if event.done]
    if not marks and stream.exchange.ending is not Ending.COMPLETE:
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
    seen = demand(place, actual == expected, expected=expected, actual=actual, message=message)
    yield from witnessed(stream, [seen])


@check("stream-ends-cleanly", EVENTS)
def stream_ends_cleanly(stream: Stream, _target: Target) -> Iterator[Observation]:
    """The body is complete, and so is its last event. A stream that this suite gave up has no end."""
    ending = stream.exchange.ending
    if ending not in {Ending.COMPLETE, Ending.TRUNCATED}:
        return
    left = stream.unterminated.decode("utf-8", "replace").strip("\r\n")
    if ending is Ending.TRUNCATED:
        message = f"the connection ended inside the body: {stream.exchange.detail or 'no reason known'}"
    else:
        message = f"{len(stream.unterminated)} bytes of an event without its blank line stand at the end"
    seen = demand(
        end_place(stream),
        ending is Ending.COMPLETE and not left,
        expected="a complete body and no unterminated event",
        actual=left[:80] if left and ending is Ending.COMPLETE else str(ending),
        message=message,
    )
    yield from witnessed(stream, [seen])


_HEARD_AS_MESSAGES = frozenset({"", "message"})
"""The name that an event without a name has for its readers, and that name itself."""


@check("events-are-unnamed", EVENTS)
def events_are_unnamed(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A client that listens for messages hears every event."""
    header, sent = policy_of(stream).named_events_header, stream.exchange.request.headers
    if any(name.lower() == header for name, _ in sent):
        return

    def events() -> Iterator[Observation]:
        for event in stream.events:
            holds, message = event.name in _HEARD_AS_MESSAGES, f"the event is named {event.name!r}"
            yield demand(event.place, holds, expected="no event name", actual=event.name, message=message)

    yield from witnessed(stream, events())
