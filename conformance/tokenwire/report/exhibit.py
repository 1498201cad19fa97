"""The evidence of a verdict: what stands around the first violation, or one witness of a PASS.

The terminal prints it, the JSON report carries it, and the page draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.record import Delivery, Event, Place, Stream
from tokenwire.report.excerpt import excerpt
from tokenwire.report.finding import Timeline, answer_of, timeline, window
from tokenwire.report.reproduction import again, curl
from tokenwire.report.signatures import looks_like
from tokenwire.report.subject import Subject
from tokenwire.report.wording import first_few, value, where
from tokenwire.wire.exchange import dialect_and_label

_AROUND = 2
"""How many events are shown before and after the first illegal one; of a whole stream, at each end."""
_MOST_NAMED = 8
_BEGINS_ALIKE = 4
"""So many characters that two texts have in common at their beginning are no accident."""
_MOST_POINTS = 150
"""How many events of a stream a timeline holds; of longer ones, as many around the illegal event."""
_MOST_WITNESSED = 3
"""How many events of a witness are shown: most runs have a hundred PASSes, and each has a witness."""
_LONGEST_COMMAND = 400
"""A longer `curl` line is left out of a witness; it would hold a prompt of many ids."""


@dataclass(frozen=True)
class ShownEvent:
    """One event near the first illegal one, or one that a witness is about."""

    index: int
    time: float
    """Seconds since the request."""
    start: int
    """Byte range in the body."""
    end: int
    excerpt: str
    mark: tuple[int, int] | None
    """From where to where in the excerpt that stands which the finding is about; None if it is not there."""
    illegal: bool


@dataclass(frozen=True)
class ReadSize:
    """How many reads brought at most so many bytes, and more than the size before."""

    up_to: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """All that a violated requirement shows in one scenario, or that a witness of a PASS shows."""

    expected: str
    actual: str
    differs_at: int | None = None
    """The first character in which the two differ, where both are texts that begin alike."""
    message: str = ""
    first_seen: str
    upstream: tuple[str, ...] = ()
    """Threads about a similar bug."""
    events: tuple[ShownEvent, ...]
    related: tuple[str, ...]
    others: str = ""
    """How many more violations there are, in words; empty where there are none."""
    timeline: Timeline | None = None
    reads: tuple[ReadSize, ...] = ()
    curl: str
    """The command that sends the request again; empty where the exchange is not at hand."""
    again: str
    """The command that gives the verdict again."""


def exhibit(judgement: Judgement, subject: Subject) -> Exhibit:
    """Gather the evidence. Raises ValueError for a judgement without a violation."""
    if not judgement.violations:
        raise ValueError(f"{judgement.name} has no violation to show; its verdict is {judgement.verdict}")
    first = judgement.violations[0]
    stream = answer_of(judgement.run, first)
    expected, actual = value(first.expected), value(first.actual)
    return Exhibit(
        expected=expected,
        actual=actual,
        differs_at=_differs_at(expected, actual) if isinstance(first.actual, str) else None,
        message=first.message,
        first_seen=where(first.place),
        upstream=looks_like(judgement),
        events=_around(stream, first) if stream else (),
        related=tuple(map(where, first.related)),
        others=_others(judgement),
        timeline=_timeline(stream, first.place) if stream else None,
        reads=_reads(stream) if stream else (),
        curl=curl(stream.exchange, subject.url, subject.bodies) if stream else "",
        again=again(judgement, subject),
    )


def witnessed(judgement: Judgement, subject: Subject) -> Exhibit:
    """What the witness of a PASS saw, in bounded size: the events that it is about, without a drawing.

    Raises ValueError for a judgement without a witness.
    """
    witness = judgement.witness
    if witness is None:
        raise ValueError(f"{judgement.name} has no witness to show; its verdict is {judgement.verdict}")
    stream = answer_of(judgement.run, witness)
    command = curl(stream.exchange, subject.url) if stream and subject.url else ""
    return Exhibit(
        expected=value(witness.expected),
        actual=value(witness.actual),
        first_seen=where(witness.place),
        events=_witnessed_events(stream, (*witness.related, witness.place)) if stream else (),
        related=tuple(map(where, witness.related[:_MOST_WITNESSED])),
        curl=command if len(command) <= _LONGEST_COMMAND else "",
        again=again(judgement, subject),
    )


def _differs_at(expected: str, actual: str) -> int | None:
    """Where two texts differ that begin alike; None for others, such as words about an answer."""
    position = first_difference(expected, actual)
    return position if position is not None and position >= _BEGINS_ALIKE else None


def _shown(
    stream: Stream, event: Event, pointer: str, actual: Any = None, *, illegal: bool = False
) -> ShownEvent:
    place, shown = event.place, excerpt(stream, event, pointer, actual)
    return ShownEvent(event.index, place.time, place.start, place.end, shown.text, shown.mark, illegal)


def _witnessed_events(stream: Stream, places: Sequence[Place]) -> tuple[ShownEvent, ...]:
    """The events of these places; the first ones of the answer where the last place is in no event."""
    last = places[-1]
    wanted = {place.event for place in places if place.exchange == last.exchange}
    chosen = [event for event in stream.events if last.event is None or event.index in wanted]
    shown = chosen[:_MOST_WITNESSED] if last.event is None else chosen[-_MOST_WITNESSED:]
    return tuple(_shown(stream, event, last.pointer) for event in shown)


def _around(stream: Stream, first: Observation) -> tuple[ShownEvent, ...]:
    """The event of a finding and those around it, each with what stands at the pointer of the finding."""
    place, events = first.place, stream.events
    if place.event is not None:
        events = [event for event in events if abs(event.index - place.event) <= _AROUND]
    elif len(events) > 2 * _AROUND:
        events = (*events[:_AROUND], *events[-_AROUND:])
    return tuple(
        _shown(
            stream,
            event,
            place.pointer,
            first.actual if event.place.event == place.event else None,
            illegal=event.index == place.event,
        )
        for event in events
    )


def _others(judgement: Judgement) -> str:
    others = sum(violation.witnesses for violation in judgement.violations) - 1
    if not others:
        return ""
    exchanges = dict.fromkeys(violation.place.exchange for violation in judgement.violations)
    words = f"and {others} more like it, in {len(exchanges)} exchange{'s' * (len(exchanges) > 1)}"
    _, *also = dict.fromkeys(dialect_and_label(name, judgement.scenario)[1] for name in exchanges)
    return f"{words}; also: {first_few(also, _MOST_NAMED)}" if also else words


def _timeline(stream: Stream, place: Place) -> Timeline | None:
    """The timeline around a place; None for an answer that is one document, or that counts nothing."""
    whole = timeline(stream)
    points = whole.points
    if stream.delivery is Delivery.WHOLE or not points:
        return None
    middle = next((n for n, point in enumerate(points) if point.event >= (place.event or 0)), len(points))
    part = window(len(points), middle, most=_MOST_POINTS, before=_MOST_POINTS // 2)
    return replace(whole, points=points[part])


def _reads(stream: Stream) -> tuple[ReadSize, ...]:
    """The sizes of the reads in powers of two, from the smallest that occurred to the largest."""
    powers = Counter(max(0, len(read.data) - 1).bit_length() for read in stream.exchange.reads if read.data)
    if not powers:
        return ()
    return tuple(ReadSize(2**power, powers[power]) for power in range(min(powers), max(powers) + 1))
