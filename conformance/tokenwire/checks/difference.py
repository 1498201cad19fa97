"""Where two values first differ, so that a finding can point there instead of printing both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenwire.judging.check import Observation, demand
from tokenwire.record import Place

ROUNDING = 1e-3
"""Logprobs that lie closer are taken for one value, computed in another order or printed with fewer digits.

Batching, chunked prefill and other kernels move float32 logprobs by some 1e-5; entries of a wrong position
differ by far more than this.
"""

Same = Callable[[Any, Any], bool]


def identical(one: object, other: object) -> bool:
    """Equal, and of the same JSON type: true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _close(one: float, other: float) -> bool:
    """Whether two numbers lie within `ROUNDING`; integers only beside a fraction."""
    near, far = (one, other) if isinstance(one, float) else (other, one)
    return isinstance(near, float) and near - ROUNDING <= far <= near + ROUNDING


def alike(one: object, other: object) -> bool:
    """Equal up to rounding: numbers within `ROUNDING`, arrays and objects member by member."""
    if one is other:
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or _close(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return bool(one == other)


def first_difference(expected: Sequence[Any], actual: Sequence[Any], same: Same = identical) -> int | None:
    """The first position at which two sequences differ, one of them ending counted as a difference."""
    for position, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one is not other and not same(one, other):
            return position
    return None if len(expected) == len(actual) else min(len(expected), len(actual))


def observe_sequence(
    place: Place,
    what: str,
    *,
    expected: Sequence[Any],
    actual: Sequence[Any],
    source: str,
    same: Same = identical,
    related: tuple[Place, ...] = (),
) -> Observation:
    """Look whether two sequences are the same; say where they first differ.

    `what` names the thing with its position left out (`output id`), `source` says where the expectation comes
    from (`the request`, `the whole answer`).
    """
    position = first_difference(expected, actual, same)
    if position is None:
        size = f"the {len(expected)} of {source}"
        return demand(place, True, expected=size, actual=size, related=related)
    ours = expected[position] if position < len(expected) else None
    theirs = actual[position] if position < len(actual) else None
    if position >= len(actual):
        message = f"{what} {position} is missing: {len(actual)} instead of the {len(expected)} of {source}"
    elif position >= len(expected):
        message = f"{what} {position} is too much: {len(actual)} instead of the {len(expected)} of {source}"
    else:
        message = f"{what} {position} is {theirs!r}, but {ours!r} in {source}"
    return demand(place, False, expected=ours, actual=theirs, message=message, related=related)


def observe_text(
    place: Place, *, expected: str, actual: str, source: str, related: tuple[Place, ...] = ()
) -> Observation:
    """Look whether two texts are the same; show both from a little before the first difference."""
    position = first_difference(expected, actual)
    if position is None:
        return demand(place, True, expected=expected, actual=actual, related=related)
    window = slice(max(0, position - 12), position + 24)
    message = f"the text differs from {source} at character {position}"
    return demand(
        place, False, expected=expected[window], actual=actual[window], message=message, related=related
    )
