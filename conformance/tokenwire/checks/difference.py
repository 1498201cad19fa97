"""Find the first difference of two values, so that a report can show it instead of both values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tokenwire.checks.evidence import Observation, Row, equal, expect, expect_each
from tokenwire.record import Emission, Place
from tokenwire.wire.sharing import same_values

Same = Callable[[Any, Any], bool]
"""A function that returns True if two values count as equal. It must be reflexive."""


def first_difference(expected: Sequence[Any], actual: Sequence[Any], same: Same = equal) -> int | None:
    """Return the first position at which two sequences differ.

    If one sequence only continues the other, this is the position after the end of the shorter one.
    """
    if isinstance(expected, str) and isinstance(actual, str):
        return None if expected == actual else _parting(expected, actual)
    if same_values(expected, actual):
        # Most sequences are equal, and this test is many times faster than comparing each entry.
        return None
    for position, (due, found) in enumerate(zip(expected, actual, strict=False)):
        if due is not found and not same(due, found):
            return position
    return None if len(expected) == len(actual) else min(len(expected), len(actual))


def _parting(first: str, second: str) -> int:
    """Return the number of equal characters at the beginning of two different texts."""
    alike, apart = 0, min(len(first), len(second))
    while alike < apart:
        middle = (alike + apart + 1) // 2
        if first[alike:middle] == second[alike:middle]:
            alike = middle
        else:
            apart = middle - 1
    return alike


def observe_sequence(
    place: Place,
    what: str,
    *,
    expected: Sequence[Any],
    actual: Sequence[Any],
    source: str,
    same: Same = equal,
    related: tuple[Place, ...] = (),
    by_chance: bool = False,
    numbers: Sequence[int] = (),
) -> Observation:
    """Observe that two sequences are equal, or report their first difference.

    `what` names an entry without its position (`output id`). `source` names the origin of the expected
    sequence (`the whole answer`). `numbers` are the names of the positions if they do not count from 0.
    """
    position = first_difference(expected, actual, same)
    if position is None:
        size = f"the {len(expected)} of {source}"
        return expect(place, size, size, holds=True, related=related)
    ours = expected[position] if position < len(expected) else None
    theirs = actual[position] if position < len(actual) else None
    what = f"{what} {numbers[position] if position < len(numbers) else position}"
    if position >= len(actual):
        message = f"{what} is missing: {len(actual)} instead of the {len(expected)} of {source}"
    elif position >= len(expected):
        message = f"{what} is too much: {len(actual)} instead of the {len(expected)} of {source}"
    else:
        message = f"{what} is {theirs!r}, but {ours!r} in {source}"
    return expect(place, ours, theirs, message, holds=False, related=related, by_chance=by_chance)


def observe_sequences(
    rows: Iterable[tuple[Emission, str, Sequence[Any], Sequence[Any]]], what: str, source: str
) -> Iterator[Observation]:
    """Observe a field of several emissions. Each row has an emission, a field, the expected and the actual
    sequence.

    All equal rows are one observation. `what` names an entry, and may contain `{field}`.
    """
    same: list[Row] = []
    for emission, field, expected, actual in rows:
        if same_values(expected, actual):
            size = f"the {len(expected)} of {source}"
            same.append((emission, field, True, size, size))
        else:
            thing = what.format(field=field)
            yield observe_sequence(emission.at(field), thing, expected=expected, actual=actual, source=source)
    yield from expect_each(same, "")


def observe_text(
    place: Place,
    *,
    expected: str,
    actual: str,
    source: str,
    related: tuple[Place, ...] = (),
    by_chance: bool = False,
) -> Observation:
    """Observe that two texts are equal, or show both from shortly before their first difference."""
    position = first_difference(expected, actual)
    if position is None:
        return expect(place, expected, actual, holds=True, related=related)
    window = slice(max(0, position - 12), position + 24)
    message = f"the text differs from {source} at character {position}"
    return expect(
        place, expected[window], actual[window], message, holds=False, related=related, by_chance=by_chance
    )


_WINDOW = 12
"""The number of characters shown before a difference."""


def observe_legal_text(
    place: Place, legal: Iterable[str], text: str, what: str, *, holds: bool
) -> Observation:
    """Observe a text against the legal text with the longest equal beginning, from shortly before the
    difference.
    """

    def parting(candidate: str) -> int:
        position = first_difference(candidate, text)
        return len(candidate) if position is None else position

    nearest = max(legal, key=parting)
    position = parting(nearest)
    window = slice(0, 4 * _WINDOW) if holds else slice(max(0, position - _WINDOW), position + 3 * _WINDOW)
    message = "" if holds else f"{what} at character {position}"
    return expect(place, nearest[window], text[window], message, holds=holds)
