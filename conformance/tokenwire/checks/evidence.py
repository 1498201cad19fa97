"""Observations: facts that a check noted about something that the server wrote.

A check that saw nothing relevant yields no observation. A requirement without a witness cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from tokenwire.record import Emission, Event, Place, Stream
from tokenwire.requirement import Level


class Observation(NamedTuple):
    """The result of a check at one place: correct or not."""

    place: Place
    expected: Any
    actual: Any
    holds: bool
    message: str = ""
    """The error, as a clause. If it is empty, the message is made from the expected and the actual value."""
    related: tuple[Place, ...] = ()
    condition_only: bool = False
    """True if the observation only shows that the requirement's condition occurred, and is not a witness.

    Its message is then the reason why the value was skipped (`left_out`).
    """
    level: Level | None = None
    """The highest level that the violation may have. None for the requirement's own level."""
    by_chance: bool = False
    """True if chance may explain the difference between two answers to one request (a near tie, rounding).

    The difference is a violation only if the server repeated both answers when the requests were repeated.
    """
    witnesses: int = 1
    """The number of equal observations that this one represents.

    The last violation that is kept for an answer represents all further ones of its level (`tally`).
    """

    @property
    def event(self) -> int:
        """The index of the event. It is 0 for an answer that is one document."""
        return self.place.event or 0


def equal(expected: object, actual: object) -> bool:
    """True if two values are equal and both or neither are booleans, because JSON's 1 is not true."""
    return bool(expected == actual) and isinstance(expected, bool) == isinstance(actual, bool)


def expect(
    place: Place,
    expected: object,
    actual: object,
    message: str = "",
    *,
    holds: bool | None = None,
    related: tuple[Place, ...] = (),
    by_chance: bool = False,
) -> Observation:
    """Return the observation of a value at a place.

    Without `holds`, the value must equal `expected`, including the JSON type. With `holds`, it is the result
    of a condition that `expected` describes.
    """
    if holds is None:
        holds = equal(expected, actual)
    return Observation(place, expected, actual, holds, message, related, by_chance=by_chance)


Row = tuple[Emission | Event, str, bool, Any, Any]
"""A field of an emission or event, with the result of its condition, and its expected and actual value."""


def expect_each(rows: Iterable[Row], words: str) -> Iterator[Observation]:
    """Observe a field in each of several emissions or events.

    `words` is the error message, as a clause. It may contain `{emission}`, `{field}`, `{expected}` and
    `{actual}`.
    """
    # Nearly all values are correct, and making an observation takes ten times as long as comparing two
    # values. So one observation, of the last emission, represents all correct values.
    furthest: Row | None = None
    reached, count = -1, 0
    for row in rows:
        emission, field, holds, expected, actual = row
        if not holds:
            message = words.format(emission=emission, field=field, expected=expected, actual=actual)
            yield expect(emission.at(field), expected, actual, message, holds=False)
            continue
        count += 1
        if emission.index > reached:
            furthest, reached = row, emission.index
    if furthest is not None:
        emission, field, _, expected, actual = furthest
        yield expect(emission.at(field), expected, actual, holds=True)._replace(witnesses=count)


def expect_equal(rows: Iterable[tuple[Emission, str, Any, Any]], words: str) -> Iterator[Observation]:
    """Observe pairs of values that must be equal and have one JSON type: emission, field, expected,
    actual.
    """
    compared = (
        (emission, field, expected is actual or equal(expected, actual), expected, actual)
        for emission, field, expected, actual in rows
    )
    yield from expect_each(compared, words)


def condition_seen(place: Place, what: str) -> Observation:
    """Return the note that the condition of a requirement occurred."""
    return Observation(place, what, what, holds=True, condition_only=True)


def left_out(place: Place, why: str) -> Observation:
    """Return the note that a relevant value was not judged. `why` is the reason, as a clause."""
    return Observation(place, None, None, holds=True, message=why, condition_only=True)


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Drop correct observations of an answer without choices, because the empty answer `{}` proves
    nothing.
    """
    return (seen for seen in observations if stream.answered or not seen.holds)


def in_wire_order(observations: Iterable[Observation]) -> list[Observation]:
    """Sort observations by their events. Observations of one event keep their order."""
    return sorted(observations, key=attrgetter("event"))
