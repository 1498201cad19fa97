"""Primitives: the named changes of values that `faults.yaml` can use, some of them with an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Change = str | Mapping[str, Any]
"""The name of a primitive, or a mapping from names to arguments.

The primitives are applied one after the other.
"""

PRIMITIVES: Mapping[str, Callable[[Any, Any], Any]] = {
    # Primitives for any value.
    "same": lambda value, _: value,
    "is": lambda _, other: other,
    "null_if_empty": lambda value, _: value or None,
    "negated": lambda value, _: not value,
    "reason": lambda value, other: (
        {**value, "type": other.get(value["type"], value["type"])}
        if isinstance(value, dict)
        else other.get(value, value)
    ),
    # Of numbers.
    "plus": lambda value, number: value + number,
    "times": lambda value, number: value * number,
    "divided_by": lambda value, number: value / number,
    "at_most": lambda value, most: min(value, most) if type(value) in {int, float} else value,
    "at_least": lambda value, least: max(value, least) if type(value) in {int, float} else value,
    "exp": lambda value, _: math.exp(value),
    # Primitives for lists and texts.
    "first": lambda value, count: value[:count],
    "last": lambda value, count: value[-count:],
    "without_first": lambda value, count: value[count:],
    "without_last": lambda value, count: value[:-count],
    "length": lambda value, _: len(value),
    "second_half": lambda value, _: value[len(value) // 2 :],
    "reversed": lambda value, _: value[::-1],
    "behind": lambda value, text: value + text,
    "after": lambda value, text: text + value,
    "without": lambda value, text: value.replace(text, ""),
    "unindented": lambda value, _: value.lstrip(" "),
    # Of lists.
    "first_again": lambda value, _: [*value[:1], *value],
    "last_again": lambda value, _: [*value, *value[-1:]],
    "all_first": lambda value, _: list(value[:1]) * len(value),
    "all_last": lambda value, _: list(value[-1:]) * len(value),
    "second_last": lambda value, _: [*value[:1], *value[2:], *value[1:2]],
    "zeros": lambda value, _: [0] * len(value),
    "floats": lambda value, _: [float(entry) for entry in value],
    "each": lambda value, change: [changed(entry, change) for entry in value],
    # Primitives for prompts that are lists of ids.
    "in_prompts": lambda value, change: in_prompts(value, lambda ids: changed(ids, change)),
    # Primitives for lists of entries [logprob, id, text].
    "each_logprob": lambda value, change: [_with_logprob(entry, change) for entry in value],
    "by_id": lambda value, _: sorted(value, key=lambda entry: int(entry[1])),
    "null_logprob_of": lambda value, place: [
        [None, *entry[1:]] if index == place else entry for index, entry in enumerate(value)
    ],
}


def changed(value: Any, change: Change) -> Any:
    """Return a value changed by primitives. Raises KeyError for an unknown name."""
    for name, argument in ({change: None} if isinstance(change, str) else change).items():
        value = PRIMITIVES[name](value, argument)
    return value


def in_prompts(ids: Any, change: Callable[[list[int]], list[int]]) -> Any:
    """Return one or several prompts with changed ids.

    Malformed prompts are left unchanged, so that the server refuses them.
    """
    if not isinstance(ids, list) or not ids:
        return ids
    if all(type(token) is int for token in ids):
        return change(ids)
    if all(isinstance(row, list) and row and all(type(token) is int for token in row) for row in ids):
        return list(map(change, ids))
    return ids


def _with_logprob(entry: Sequence[Any], change: Change) -> list[Any]:
    logprob, *others = entry
    return [logprob if logprob is None else changed(logprob, change), *others]
