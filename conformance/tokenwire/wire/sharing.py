"""Sharing: an event that repeats values of the previous event uses the same Python objects.

Each event of a cumulative stream repeats all earlier list entries and adds new ones. Without sharing, n
entries would need n²/2 values in memory.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from operator import is_
from sys import intern
from typing import Any

_WITHOUT_REFERENCES = 2
"""The version of marshal's format in which two values have equal bytes exactly if the values are equal."""


def sharing(value: Any, before: Any) -> Any:
    """Return the JSON value.

    Each list in the value that continues a list of `before` shares the entries of that list. Objects are
    changed in place, so the value must just have been parsed.
    """
    if isinstance(value, dict) and isinstance(before, dict):
        for name, entry in before.items():
            if entry and isinstance(entry, (list, dict, str)) and name in value:
                value[name] = sharing(value[name], entry)
        return value
    if type(value) is str:
        return intern(value)  # streams of one request often have the same partial texts
    if isinstance(value, list) and isinstance(before, list) and _begins_with(value, before):
        return before if len(value) == len(before) else [*before, *value[len(before) :]]
    return value


def same_values(values: Sequence[Any], other: Sequence[Any]) -> bool:
    """True if two JSON arrays have equal values of equal types.

    The values 1, 1.0 and true differ. The result is False for 0.0 and -0.0, and for values that are not JSON.
    This function is ten times as fast as comparing the values one by one.
    """
    if len(values) != len(other):
        return False
    # Most events share these objects already.
    if all(map(is_, values, other)):
        return True
    try:
        return _bytes_of(values) == _bytes_of(other)
    except ValueError:  # marshal cannot write values of some types
        return False


def _begins_with(value: list[Any], before: list[Any]) -> bool:
    size = len(before)
    if not 0 < size <= len(value) or value[size - 1] != before[-1]:
        return False
    return same_values(value[:size], before)


def _bytes_of(values: Sequence[Any]) -> bytes:
    return marshal.dumps(list(values), _WITHOUT_REFERENCES)
