"""Checks of requests in the shapes of usual clients."""

from __future__ import annotations

from collections.abc import Iterator

from tokenwire.checks.channels import observe_differences
from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import Channels
from tokenwire.checks.reading.fields import end_place
from tokenwire.checks.reading.refusals import was_refused
from tokenwire.dialects.shapes import Filled, Shape, load_shapes
from tokenwire.record import Answer, Stream, fact
from tokenwire.requirement import Level


@fact(Stream)
def _shaped(stream: Stream) -> tuple[Shape, Filled] | None:
    """Return the client shape that a request has, and what the shape leaves open.

    None if the request has no known shape.
    """
    path, body = stream.exchange.request.path, stream.exchange.request.body
    shapes = (shape for shape in load_shapes().values() if shape.path == path)
    return next(((shape, filled) for shape in shapes if (filled := shape.read(body)) is not None), None)


def _plain_key(stream: Answer, shape: Shape, filled: Filled) -> tuple[str, Filled, bool]:
    """Return what a plain request shares with the requests that are compared with it."""
    return stream.dialect, filled, "tools" in shape.body


@check_run("usual-shapes-are-answered-alike")
def _usual_shapes_are_answered_alike(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Compare the answers to requests of usual clients with those to plain requests."""
    known = [(stream, *found) for stream in streams if (found := _shaped(stream)) is not None]
    plain = {
        _plain_key(stream, shape, filled): stream
        for stream, shape, filled in known
        if shape.plain and stream.answered and stream.choices
    }
    for stream, shape, filled in known:
        base = None if shape.plain else plain.get(_plain_key(stream, shape, filled))
        if base is None:
            continue
        if stream.answered and stream.choices and stream.error is None:
            yield from _compared(base.load(), stream.load())
        elif was_refused(stream) and not shape.may_be_refused:
            status = stream.exchange.status
            message = f"the plain request is answered, and the shape of {shape.client} is refused"
            seen = expect(end_place(stream), "an answer", status, message, holds=False)
            yield seen._replace(level=Level.SHOULD)


def _compared(plain: Stream, stream: Stream) -> Iterator[Observation]:
    ours, theirs = (Channels.of(answer, answer.choices[0]) for answer in (plain, stream))
    found = observe_differences(ours, theirs, "and of the plain request", by_chance=True)
    yield from found
    if not found:
        yield expect(theirs.place("text"), ours.content, theirs.content, holds=True)
