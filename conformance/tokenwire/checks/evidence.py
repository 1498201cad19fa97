"""Observations: statements about something that the target wrote and that could have been wrong. A check that
saw nothing yields nothing, and a requirement without witnesses cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from tokenwire.record import Emission, Event, Place, Stream
from tokenwire.requirement import Level


class Observation(NamedTuple):
    """The observation of a check at one place: as it should be, or not."""

    place: Place
    expected: Any
    actual: Any
    holds: bool
    message: str = ""
    """A description of the error, as one clause; made from expected and actual if empty."""
    related: tuple[Place, ...] = ()
    condition_only: bool = False
    """The observation shows only that the condition of the requirement occurred; it is not a witness. If it
    has a message, the value there was left out for that reason (`left_out`).
    """
    level: Level | None = None
    """The highest level of a violation here; None for that of its requirement."""
    by_chance: bool = False
    """What differs is what two answers to one request may differ in (a near tie, rounding): it is a violation
    only where the target was seen to repeat the answers here and in `related`.
    """
    witnesses: int = 1
    """How many observations it represents: the last violation that is kept of an answer represents all others
    of its level (`tally`).
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
    """Observe a place: compare its value with the expected one and its JSON type, or state a condition, which
    `expected` describes.
    """
    if holds is None:
        holds = equal(expected, actual)
    return Observation(place, expected, actual, holds, message, related, by_chance=by_chance)


Row = tuple[Emission | Event, str, bool, Any, Any]
"""An emission or event, a field of it, whether it holds, what is expected and what is there."""


def expect_each(rows: Iterable[Row], words: str) -> Iterator[Observation]:
    """Observe a field in each of several emissions or events.

    `words` says what is wrong, as one clause, of `{emission}`, `{field}`, `{expected}` and `{actual}`.
    """
    # Nearly everything holds, and making an observation takes ten times as long as comparing two values:
    # so what holds is one observation, that of the furthest emission, which represents all others.
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
    """Observe the same for values that must be equal and of one JSON type: emission, field,
    expected, actual.
    """
    compared = (
        (emission, field, expected is actual or equal(expected, actual), expected, actual)
        for emission, field, expected, actual in rows
    )
    yield from expect_each(compared, words)


def condition_seen(place: Place, what: str) -> Observation:
    """Note that the condition of a requirement occurred."""
    return Observation(place, what, what, holds=True, condition_only=True)


def left_out(place: Place, why: str) -> Observation:
    """Note that something which the requirement is about was not judged. `why`: a clause about it."""
    return Observation(place, None, None, holds=True, message=why, condition_only=True)


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Leave out what holds of an answer that carries no record: `{}` proves nothing."""
    return (seen for seen in observations if stream.answered or not seen.holds)


def in_wire_order(observations: Iterable[Observation]) -> list[Observation]:
    """Sort observations by their events; those of one event keep their order."""
    return sorted(observations, key=attrgetter("event"))
