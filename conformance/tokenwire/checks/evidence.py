"""Observations: statements about something that the target wrote and that could have been wrong.

A check that observed nothing yields nothing, and a requirement without witnesses cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from tokenwire.record import Emission, Event, Place, Stream
from tokenwire.requirement import Level


class Observation(NamedTuple):
    """The observation of a check at one place: correct or not."""

    place: Place
    expected: Any
    actual: Any
    holds: bool
    message: str = ""
    """A description of the error, as one clause; if empty, it is made from expected and actual."""
    related: tuple[Place, ...] = ()
    condition_only: bool = False
    """True if it only shows that the condition of the requirement occurred, without being a witness.

    A message is then the reason why the value was skipped (`left_out`).
    """
    level: Level | None = None
    """The upper limit of the violation's level; None for the requirement's level."""
    by_chance: bool = False
    """True if chance may explain the difference between two answers to one request (a near tie, rounding).

    It is a violation only if the target repeated the answers at this place and in `related`.
    """
    witnesses: int = 1
    """The number of observations that it represents.

    The last violation kept of an answer represents all others of its level (`tally`).
    """

    @property
    def event(self) -> int:
        """The index of its event; 0 for an answer that is one document."""
        return self.place.event or 0


def equal(expected: object, actual: object) -> bool:
    """True if two values are equal and of one JSON type: 1 is not true."""
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
    """Observe a place.

    Its value is compared with the expected one, including the JSON type, or a condition is stated, which
    `expected` describes.
    """
    if holds is None:
        holds = equal(expected, actual)
    return Observation(place, expected, actual, holds, message, related, by_chance=by_chance)


Row = tuple[Emission | Event, str, bool, Any, Any]
"""An emission or event, a field of it, the truth of the condition, the expected and the actual value."""


def expect_each(rows: Iterable[Row], words: str) -> Iterator[Observation]:
    """Observe a field in each of several emissions or events.

    `words` describes the error as one clause, with `{emission}`, `{field}`, `{expected}` and `{actual}`.
    """
    # Nearly all values are correct, and making an observation takes ten times as long as comparing two
    # values. So correct values are one observation, that of the furthest emission, which represents all
    # others.
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
    """Observe values that must be equal and of one JSON type: emission, field, expected, actual."""
    compared = (
        (emission, field, expected is actual or equal(expected, actual), expected, actual)
        for emission, field, expected, actual in rows
    )
    yield from expect_each(compared, words)


def condition_seen(place: Place, what: str) -> Observation:
    """Note that the condition of a requirement occurred."""
    return Observation(place, what, what, holds=True, condition_only=True)


def left_out(place: Place, why: str) -> Observation:
    """Note that something relevant was not judged. `why`: a clause with the reason."""
    return Observation(place, None, None, holds=True, message=why, condition_only=True)


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Skip correct observations of an answer without a record, because `{}` proves nothing."""
    return (seen for seen in observations if stream.answered or not seen.holds)


def in_wire_order(observations: Iterable[Observation]) -> list[Observation]:
    """Sort observations by their events; those of one event keep their order."""
    return sorted(observations, key=attrgetter("event"))
