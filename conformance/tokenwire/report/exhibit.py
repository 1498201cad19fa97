"""The evidence of a verdict: what stands around the first violation, or one witness of a PASS.

The terminal prints it, the JSON report carries it, and the page draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.check import Observation
from tokenwire.checks.difference import first_difference
from tokenwire.judging.judge import Judgement
from tokenwire.record import Delivery, Emission, Event, Place, Stream
from tokenwire.report.excerpt import excerpt
from tokenwire.report.reproduction import again, curl
from tokenwire.report.signatures import looks_like
from tokenwire.report.subject import Subject
from tokenwire.report.wording import value, where
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
class Point:
    """How far a stream had come with one event."""

    event: int
    time: float
    total: int
    """Tokens (or characters) of all choices so far."""
    least: int | None
    """What the interval demands by then; None where no interval is known."""


@dataclass(frozen=True)
class Timeline:
    """Tokens over time, one point for each event that carried some."""

    unit: str
    """`tokens`, or `characters` where the server gives no ids."""
    points: tuple[Point, ...]
    budget: int | None
    """The most that was asked for, over all choices; None where unknown or where characters are counted."""


@dataclass(frozen=True)
class ReadSize:
    """How many reads brought at most so many bytes, and more than the size before."""

    up_to: int
    count: int


@dataclass(frozen=True)
class Exhibit:
    """All that a violated requirement shows in one scenario, or that a witness of a PASS shows."""

    expected: str
    actual: str
    differs_at: int | None
    """The first character in which the two differ, where both are texts that begin alike."""
    message: str
    first_seen: str
    upstream: tuple[str, ...]
    """Threads about a similar bug."""
    events: tuple[ShownEvent, ...]
    related: tuple[str, ...]
    others: str
    """How many more violations there are, in words; empty where there are none."""
    timeline: Timeline | None
    reads: tuple[ReadSize, ...]
    curl: str
    """The command that sends the request again; empty where the exchange is not at hand."""
    again: str
    """The command that gives the verdict again."""


def exhibit(judgement: Judgement, subject: Subject) -> Exhibit:
    """Gather the evidence. Raises ValueError for a judgement without a violation."""
    if not judgement.violations:
        raise ValueError(f"{judgement.name} has no violation to show; its verdict is {judgement.verdict}")
    first = judgement.violations[0]
    told = judgement.run.by_exchange.get(first.place.exchange)
    stream = told.whole if told is not None else None
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
    seen = judgement.witness
    if seen is None:
        raise ValueError(f"{judgement.name} has no witness to show; its verdict is {judgement.verdict}")
    told = judgement.run.by_exchange.get(seen.place.exchange)
    stream = told.whole if told is not None else None
    command = curl(stream.exchange, subject.url) if stream and subject.url else ""
    return Exhibit(
        expected=value(seen.expected),
        actual=value(seen.actual),
        differs_at=None,
        message="",
        first_seen=where(seen.place),
        upstream=(),
        events=_spoken_of(stream, (*seen.related, seen.place)) if stream else (),
        related=tuple(map(where, seen.related[:_MOST_WITNESSED])),
        others="",
        timeline=None,
        reads=(),
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


def _spoken_of(stream: Stream, places: Sequence[Place]) -> tuple[ShownEvent, ...]:
    """The events of these places; the first ones of the answer where the last place is in no event."""
    last = places[-1]
    wanted = {place.event for place in places if place.exchange == last.exchange}
    chosen = [event for event in stream.events if last.event is None or event.index in wanted]
    kept = chosen[:_MOST_WITNESSED] if last.event is None else chosen[-_MOST_WITNESSED:]
    return tuple(_shown(stream, event, last.pointer) for event in kept)


def _around(stream: Stream, first: Observation) -> tuple[ShownEvent, ...]:
    """The event of a finding and those about it, each with what stands at the pointer of the finding."""
    place, events = first.place, stream.events
    if place.event is None:
        near = events if len(events) <= 2 * _AROUND else (*events[:_AROUND], *events[-_AROUND:])
    else:
        near = tuple(event for event in events if abs(event.index - place.event) <= _AROUND)
    return tuple(
        _shown(
            stream,
            event,
            place.pointer,
            first.actual if event.place.event == place.event else None,
            illegal=event.index == place.event,
        )
        for event in near
    )


def _others(judgement: Judgement) -> str:
    others = sum(one.witnesses for one in judgement.violations) - 1
    if not others:
        return ""
    exchanges = dict.fromkeys(observation.place.exchange for observation in judgement.violations)
    words = f"and {others} more like it, in {len(exchanges)} exchange{'s' * (len(exchanges) > 1)}"
    _, *also = dict.fromkeys(dialect_and_label(name, judgement.scenario)[1] for name in exchanges)
    named = ", ".join([*also[:_MOST_NAMED], *(["…"] if len(also) > _MOST_NAMED else [])])
    return f"{words}; also: {named}" if named else words


def _size(emission: Emission, *, tokens: bool) -> int | None:
    carried = emission.output_ids if tokens else emission.text
    return None if carried is None else len(carried)


def _timeline(stream: Stream, place: Place) -> Timeline | None:
    """The way of a stream; None for an answer that is one document, or that counts nothing."""
    if stream.delivery is Delivery.WHOLE:
        return None
    emissions = stream.emissions()
    tokens = any(emission.output_ids is not None for emission in emissions)
    interval = stream.asked.stream_interval if tokens else None
    last = {emission.choice: position for position, emission in enumerate(emissions)}
    totals: Counter[int] = Counter()
    carried: Counter[int] = Counter()
    demanded: Counter[int] = Counter()
    points: list[Point] = []
    for position, emission in enumerate(emissions):
        size = _size(emission, tokens=tokens)
        if size is None:
            continue
        choice = emission.choice
        totals[choice] = size if stream.delivery is Delivery.CUMULATIVE else totals[choice] + size
        if interval is not None and position != last[choice]:
            demanded[choice] = 1 + carried[choice] * interval
        carried[choice] += 1
        at = emission.event
        point = Point(
            at.index,
            at.place.time,
            totals.total(),
            demanded.total() if interval is not None else None,
        )
        if points and points[-1].event == point.event:
            points.pop()
        points.append(point)
    if not points:
        return None
    budget = stream.asked.max_new_tokens if tokens else None
    wanted = None if budget is None else budget * max(1, len(stream.choices))
    return Timeline("tokens" if tokens else "characters", _nearest(points, place), wanted)


def _nearest(points: list[Point], place: Place) -> tuple[Point, ...]:
    """At most `_MOST_POINTS` of the points, around the event of the place."""
    at = next((n for n, point in enumerate(points) if point.event >= (place.event or 0)), len(points))
    first = max(0, min(at - _MOST_POINTS // 2, len(points) - _MOST_POINTS))
    return tuple(points[first : first + _MOST_POINTS])


def _reads(stream: Stream) -> tuple[ReadSize, ...]:
    """The sizes of the reads in powers of two, from the smallest that occurred to the largest."""
    powers = Counter(max(0, len(read.data) - 1).bit_length() for read in stream.exchange.reads if read.data)
    if not powers:
        return ()
    return tuple(ReadSize(2**power, powers[power]) for power in range(min(powers), max(powers) + 1))
