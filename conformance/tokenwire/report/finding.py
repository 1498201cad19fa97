"""The answer in which a violation was found: the illegal events, and the tokens that were delivered until the
violation. The exhibit of the JSON report, the player of the HTML page and the tally file use this module.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation
from tokenwire.judging.run import Run
from tokenwire.record import Answer, Choice, Delivery, Emission, Stream

_LEAST_ALIKE = 4
"""The number of characters with which two texts must agree before their first difference is shown."""


@dataclass(frozen=True)
class Point:
    """The amount of output that a stream had delivered after one event."""

    event: int
    time: float
    total: int
    """The number of tokens (or characters) of all choices so far."""
    least: int | None
    """The number of tokens that the stream must have delivered after this event, according to
    `stream_interval`. None if the request has no `stream_interval`.
    """


@dataclass(frozen=True)
class Timeline:
    """The delivered output over time. It has a point for each event with output."""

    unit: str
    """`tokens`, or `characters` if the server sends no ids."""
    points: tuple[Point, ...]
    budget: int | None
    """`max_new_tokens` over all choices; None if unknown, or if characters are counted."""


def answer_of(run: Run, finding: Observation) -> Stream | None:
    """Return the answer in which an observation was made, with its content.

    None if the run does not have the answer.
    """
    stream = run.by_exchange.get(finding.place.exchange)
    return None if stream is None else stream.load()


def illegal_events(findings: Sequence[Observation], stream: Stream) -> dict[int, str]:
    """Return the pointer of the first violation in each event of an answer, by the index of the event.

    A violation of the whole answer is assigned to the first event.
    """
    pointers: dict[int, str] = {}
    for finding in findings:
        place = finding.place
        if place.exchange == stream.exchange.name:
            event = stream.events[0].index if place.event is None else place.event
            pointers.setdefault(event, place.pointer)
    return pointers


def differs_at(expected: str, actual: str) -> int | None:
    """Return the index of the first difference between two texts.

    None if the texts have no common beginning of a few characters.
    """
    index = first_difference(expected, actual)
    return index if index is not None and index >= _LEAST_ALIKE else None


def emissions_until(choice: Choice, event: int) -> Sequence[Emission]:
    """Return the emissions of a choice up to and including the emission of an event."""
    return choice.emissions[: bisect_right(choice.emissions, event, key=_event_of)]


def emission_at(stream: Stream, event: int, pointer: str) -> Emission | None:
    """Return the emission of an event to which a pointer leads, otherwise the event's first emission.

    None if the event has no emission.
    """
    here = [
        emission
        for choice in stream.choices
        for emission in emissions_until(choice, event)[bisect_left(choice.emissions, event, key=_event_of) :]
    ]
    for emission in here:
        if any(pointer.startswith(way) for way in emission.pointers.values() if way):
            return emission
    return next(iter(here), None)


def _event_of(emission: Emission) -> int:
    return emission.event.index


def held_against(run: Run, stream: Answer, finding: Observation) -> Answer | None:
    """Return the answer with which a stream is compared.

    It is the answer that the observation names, otherwise the non-streamed answer to the same request.
    """
    related = (run.by_exchange.get(place.exchange) for place in finding.related)
    named = next((other for other in related if other and other.choices and other is not stream), None)
    if named is not None or not stream.asked.key or stream.delivery is Delivery.WHOLE:
        return named
    return next(
        (
            other
            for other in run.streams
            if other.asked.key == stream.asked.key
            and other.dialect == stream.dialect
            and other.delivery is Delivery.WHOLE
            and other.choices
            and other is not stream
        ),
        None,
    )


def window(length: int, middle: int, *, most: int, before: int) -> slice:
    """Return the range of a long sequence to show.

    The range has at most `most` entries, and begins at most `before` entries before `middle`.
    """
    first = max(0, min(middle - before, length - most))
    return slice(first, first + most)


def timeline(stream: Stream) -> Timeline:
    """Compute how much output was delivered after each event: ids, or characters if the stream has no ids."""
    emissions = stream.emissions()
    tokens = any(emission.output_ids is not None for emission in emissions)
    carrying = [
        (emission, len(carried))
        for emission in emissions
        if (carried := emission.output_ids if tokens else emission.text) is not None
    ]
    interval = stream.asked.stream_interval if tokens else None
    last = {emission.choice: emission for emission in emissions}
    totals: Counter[int] = Counter()
    emitted: Counter[int] = Counter()
    least: Counter[int] = Counter()
    points: dict[int, Point] = {}
    for emission, size in carrying:
        choice, event = emission.choice, emission.event
        totals[choice] = size if stream.delivery is Delivery.CUMULATIVE else totals[choice] + size
        if interval is not None and emission is not last[choice]:
            least[choice] = 1 + emitted[choice] * interval
        emitted[choice] += 1
        points[event.index] = Point(
            event.index, event.place.time, totals.total(), None if interval is None else least.total()
        )
    budget = stream.asked.max_new_tokens if tokens else None
    return Timeline(
        "tokens" if tokens else "characters",
        tuple(points.values()),
        None if budget is None else budget * max(1, len(stream.choices)),
    )
