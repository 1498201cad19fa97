"""Checks of what a refusal shows, and of what it must not: tokens, internals, another shape than its like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from tokenwire.checks.check import Target, check, check_run, select
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import end_place, start_place
from tokenwire.checks.refusals import was_refused
from tokenwire.record import Answer, Stream

_INTERNALS = re.compile(
    r"""Traceback\ \(most\ recent\ call\ last\)
    | File\ "[^"]+",\ line\ \d+
    | (?<![\w.:/])/(?:[\w.@+-]+/)+[\w.+-]+\.(?:py|rs|go|cc|cpp|cu|js|ts)\b
    | [\w/.-]+\.(?:rs|go|cpp|cc):\d+""",
    re.VERBOSE,
)
"""A line of a traceback, a file of source code by its full path, or a place in one."""


def _place_of_words(error: object) -> str:
    """The JSON pointer to where an error body says why; empty where it says nothing."""
    if not isinstance(error, Mapping):
        return ""
    for name in ("message", "error", "detail"):
        stated = error.get(name)
        if isinstance(stated, Mapping) and (deeper := _place_of_words(stated)):
            return f"/{name}{deeper}"
        if stated and isinstance(stated, (str, list)):
            return f"/{name}"
    return ""


@select
def _refused(stream: Stream) -> bool:
    return stream.refused and was_refused(stream)


@check_run("refusals-have-one-shape")
def refusals_have_one_shape(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """A client that shows why it was refused finds the words of an endpoint in one place."""
    places: dict[str, dict[str, list[Answer]]] = {}
    for stream in _refused(streams):
        if where := _place_of_words(stream.error):
            places.setdefault(stream.dialect, {}).setdefault(where, []).append(stream)
    for by_place in places.values():
        usual = max(by_place, key=lambda where: len(by_place[where]))
        for where, refused in by_place.items():
            for stream in refused:
                yield expect(
                    start_place(stream),
                    f"words at {usual}",
                    f"words at {where}",
                    f"the refusal says why at {where}, and others of its endpoint at {usual}",
                    holds=where == usual,
                    related=(start_place(by_place[usual][0]),),
                )


@check("errors-keep-internals")
def errors_keep_internals(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Paths and lines of the server's own code help its developers, and others who look for a way in."""
    errors = [(event.place, json.dumps(event.error)) for event in stream.error_events]
    if (stream.exchange.status or 0) >= 400:
        body = stream.exchange.body.decode(errors="replace")
        errors = [(start_place(stream), json.dumps(stream.error) + body)]
    for place, words in errors:
        shown = _INTERNALS.search(words.replace('\\"', '"'))
        if shown or was_refused(stream) or stream.answered:
            yield expect(
                place,
                "words about the request",
                shown.group()[:120] if shown else "words about the request",
                f"the error shows {shown.group()[:120]!r}" if shown else "",
                holds=shown is None,
            )


@check("refused-stream-delivers-nothing")
def refused_stream_delivers_nothing(stream: Stream, _target: Target) -> Iterator[Observation]:
    """What was not run has no token; one that comes with a refusal was made of nothing."""
    if not stream.asked.stream or not was_refused(stream):
        return
    bearing = [
        emission
        for emission in stream.emissions()
        if emission.output_ids or emission.text or any(emission.series.values())
    ]
    first = bearing[0] if bearing else None
    yield expect(
        first.at("output_ids") if first else end_place(stream),
        "a refusal and nothing else",
        {"output_ids": first.output_ids, "text": first.text} if first else "a refusal and nothing else",
        "the stream was refused, and delivers a token",
        holds=first is None,
    )
