"""The evidence for a verdict: the events around the first violation, or around one witness of a PASS.

The evidence is the member `exhibit` of the JSON report, whose fields are in `spec/schemas/report.json`. All
other reports take their evidence from the JSON report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.record import Delivery, Event, Place, Stream
from tokenwire.report.excerpt import excerpt
from tokenwire.report.finding import answer_of, differs_at, timeline, window
from tokenwire.report.reproduction import again, curl
from tokenwire.report.signatures import looks_like
from tokenwire.report.subject import Subject
from tokenwire.report.wording import first_few, value, where
from tokenwire.wire.exchange import dialect_and_label

_AROUND = 2
"""The number of events that are shown before and after a violation.

For a violation of a whole stream, it is the number of events that are shown at the beginning and at the end.
"""
_MOST_NAMED = 8
_MOST_POINTS = 150
"""The most points of a timeline. For a longer stream, the points around the violation are kept."""
_MOST_WITNESSED = 3
"""The most events that are shown for a witness.

The number is small, because a run has a hundred PASSes, and each PASS has a witness.
"""
_LONGEST_COMMAND = 400
"""The longest `curl` command that is shown for a witness, in characters.

Only commands with a long prompt are longer.
"""


def exhibit(judgement: Judgement, subject: Subject) -> dict[str, Any]:
    """Return the evidence for a violated requirement."""
    first = judgement.violations[0]
    shown = _exhibit_of_observation(first, judgement, subject) | {
        "message": first.message,
        "upstream": looks_like(judgement),
        "others": _others(judgement),
    }
    if isinstance(first.actual, str):
        shown["differs_at"] = differs_at(shown["expected"], shown["actual"])
    if stream := answer_of(judgement.run, first):
        shown |= {
            "events": _around(stream, first),
            "timeline": _timeline(stream, first.place),
            "reads": _reads(stream),
            "curl": "" if subject.again else curl(stream.exchange, subject.url, subject.bodies),
        }
    return shown


def witnessed(witness: Observation, judgement: Judgement, subject: Subject) -> dict[str, Any]:
    """Return the evidence for a PASS: a few events of one witness, without a timeline."""
    shown = _exhibit_of_observation(
        witness._replace(related=witness.related[:_MOST_WITNESSED]), judgement, subject
    )
    if stream := answer_of(judgement.run, witness):
        shown["events"] = _witnessed_events(stream, (*witness.related, witness.place))
        command = curl(stream.exchange, subject.url) if subject.url else ""
        shown["curl"] = command if len(command) <= _LONGEST_COMMAND else ""
    return shown


def _exhibit_of_observation(seen: Observation, judgement: Judgement, subject: Subject) -> dict[str, Any]:
    """Return an exhibit with the fields of one observation. All other fields are empty."""
    return {
        "expected": value(seen.expected),
        "actual": value(seen.actual),
        "differs_at": None,
        "message": "",
        "first_seen": where(seen.place),
        "upstream": (),
        "events": (),
        "related": tuple(map(where, seen.related)),
        "others": "",
        "timeline": None,
        "reads": (),
        "curl": "",
        "again": again(judgement, subject),
    }


def _event(
    stream: Stream, event: Event, pointer: str, actual: Any = None, *, illegal: bool = False
) -> dict[str, Any]:
    """Return an event as JSON.

    `time`: seconds since the request. `start`, `end`: byte range in the body. `mark`: the range in `excerpt`
    of the value at the pointer; None if the event does not have the value.
    """
    place, shown = event.place, excerpt(stream, event, pointer, actual)
    return {
        "index": event.index,
        "time": place.time,
        "start": place.start,
        "end": place.end,
        "excerpt": shown.text,
        "mark": shown.mark,
        "illegal": illegal,
    }


def _witnessed_events(stream: Stream, places: Sequence[Place]) -> list[dict[str, Any]]:
    """Return the events at these places.

    If the last place is not an event, return the first events of the answer.
    """
    last = places[-1]
    if last.event is None:
        events: Sequence[Event] = stream.events[:_MOST_WITNESSED]
    else:
        wanted = {place.event for place in places if place.exchange == last.exchange}
        events = [event for event in stream.events if event.index in wanted][-_MOST_WITNESSED:]
    return [_event(stream, event, last.pointer) for event in events]


def _around(stream: Stream, finding: Observation) -> list[dict[str, Any]]:
    """Return the events around a violation.

    For a violation of the whole answer, return the first and the last events.
    """
    place, events = finding.place, stream.events
    if place.event is not None:
        events = [event for event in events if abs(event.index - place.event) <= _AROUND]
    elif len(events) > 2 * _AROUND:
        events = (*events[:_AROUND], *events[-_AROUND:])
    return [
        _event(
            stream,
            event,
            place.pointer,
            finding.actual if event.place.event == place.event else None,
            illegal=event.index == place.event,
        )
        for event in events
    ]


def _others(judgement: Judgement) -> str:
    """Describe how many violations there are in addition to the first.

    Return an empty text if there is only one.
    """
    others = sum(violation.witnesses for violation in judgement.violations) - 1
    if not others:
        return ""
    exchanges = dict.fromkeys(violation.place.exchange for violation in judgement.violations)
    words = f"and {others} more like it, in {len(exchanges)} exchange{'s' * (len(exchanges) > 1)}"
    _, *also = dict.fromkeys(dialect_and_label(name, judgement.scenario)[1] for name in exchanges)
    return f"{words}; also: {first_few(also, _MOST_NAMED)}" if also else words


def _timeline(stream: Stream, place: Place) -> dict[str, Any] | None:
    """Return the timeline around a place.

    Return None for a JSON document, or for a stream without tokens and text.
    """
    full = timeline(stream)
    points = full.points
    if stream.delivery is Delivery.WHOLE or not points:
        return None
    middle = next((n for n, point in enumerate(points) if point.event >= (place.event or 0)), len(points))
    part = window(len(points), middle, most=_MOST_POINTS, before=_MOST_POINTS // 2)
    return asdict(replace(full, points=points[part]))


def _reads(stream: Stream) -> list[dict[str, int]]:
    """Count the reads by size. The size classes are powers of two."""
    powers = Counter(max(0, len(read.data) - 1).bit_length() for read in stream.exchange.reads if read.data)
    if not powers:
        return []
    return [{"up_to": 2**power, "count": powers[power]} for power in range(min(powers), max(powers) + 1)]
