"""Parses values of request fields from untrusted JSON. A value of the wrong type counts as not set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tokenwire.ask import RULES, Kind
from tokenwire.wire.json_pointer import ABSENT, Keys

_GREEDY_BELOW = 1e-6
"""Temperatures below this value mean greedy sampling, as in SGLang."""
_PER_PROMPT = ("logprobs", "logprob_start", "top_logprobs")
_LARGEST_NUMBER = 2**53
_ID_AS_KEY = re.compile(r"\d{1,19}")
"""Matches an id as a key of a JSON object. The number of digits is limited for Python's `int`."""


def is_text(value: Any) -> bool:
    """True if a value is a string, or a list of strings that is not empty."""
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
    )


def _is_id(value: Any) -> bool:
    return type(value) is int


def are_ids(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int}


def id_prompts(value: Any) -> tuple[tuple[tuple[int, ...], ...] | None, bool]:
    """Return the prompts in a field for ids, and True if they are a list of prompts. None if malformed."""
    if not isinstance(value, list):
        return None, False
    if are_ids(value):
        return (tuple(value),), False
    if all(isinstance(prompt, list) and are_ids(prompt) for prompt in value):
        return tuple(tuple(prompt) for prompt in value), True
    return None, False


def id_rows(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return rows of ids; () if the value is not a list of lists of integers."""
    rows = value if isinstance(value, list) else []
    known = all(isinstance(row, list) and are_ids(row) for row in rows)
    return tuple(map(tuple, rows)) if known else ()


def is_greedy(by_field: Mapping[str, Any]) -> bool:
    temperature, top_k = by_field.get("temperature"), by_field.get("top_k")
    # In Python, False equals 0, but it is not a temperature.
    cold = (
        isinstance(temperature, int | float) and temperature is not False and 0 <= temperature < _GREEDY_BELOW
    )
    return cold or (type(top_k) is int and top_k == 1)


def _number_or_none(value: Any) -> float | None:
    small = type(value) is int and abs(value) < _LARGEST_NUMBER
    return float(value) if small or isinstance(value, float) else None


def _biases(value: Any) -> dict[int, float]:
    """Return the logit bias of each id; empty if the value is not an object."""
    pairs = value.items() if isinstance(value, dict) else ()
    read = {int(key): _number_or_none(bias) for key, bias in pairs if _ID_AS_KEY.fullmatch(str(key))}
    return {token: bias for token, bias in read.items() if bias is not None}


def name_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def budgets_of(value: Any) -> tuple[int, ...]:
    """Return the token limit of each item of a batch, if they differ and all are integers; otherwise ()."""
    budgets = tuple(number for number in value if _is_id(number)) if isinstance(value, tuple) else ()
    return budgets if isinstance(value, tuple) and len(budgets) == len(value) else ()


def fields_by_prompt(by_field: Mapping[str, Any], prompts: int) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of each item of a batch; nothing if all items have equal fields."""
    by_prompt = {name: values for name, values in by_field.items() if isinstance(values, tuple)}
    if by_prompt and all(len(values) == prompts for values in by_prompt.values()):
        for prompt in range(prompts):
            yield {**by_field, **{name: values[prompt] for name, values in by_prompt.items()}}


def _int_or_none(value: Any) -> int | None:
    return value if type(value) is int else None


def _any_true(value: Any) -> bool:
    return value is True or (isinstance(value, list | tuple) and any(_any_true(item) for item in value))


def is_uniform(by_field: Mapping[str, Any]) -> bool:
    """True if all items of a batch request the same metadata. A flat list of ids applies to all items."""
    chosen = by_field.get("chosen_ids")
    nested = isinstance(chosen, list | tuple) and any(not _is_id(item) for item in chosen)
    return not nested and not any(isinstance(by_field.get(name), list | tuple) for name in _PER_PROMPT)


def texts_in(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def ints_in(value: Any) -> tuple[int, ...]:
    return tuple(item for item in value if _is_id(item)) if isinstance(value, list) else ()


_READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "integer": _int_or_none,
    "number": _number_or_none,
    "boolean": lambda value: value if isinstance(value, bool) else None,
    "flag or number": _any_true,
    "strings": texts_in,
    "words": texts_in,
    "ids": ints_in,
    "name": lambda value: value if isinstance(value, str) else None,
    "biases": _biases,
}
"""The parser for each type of field. It returns None for a value of the wrong type."""


def read_fields(by_field: Mapping[str, Any], names: Iterable[str] = RULES) -> dict[str, Any]:
    """Return the values of fields, parsed by their types. Values of the wrong type are left out."""
    values = {name: _READERS[RULES[name].kind](by_field[name]) for name in names if name in by_field}
    return {name: value for name, value in values.items() if value is not None}


def gather(body: Any, keys: Keys) -> list[Any]:
    """Return the values at a place.

    If there is a list on the way, there is one value for each of its items.
    """
    for position, key in enumerate(keys):
        if isinstance(body, list):
            return [value for item in body for value in gather(item, keys[position:])]
        body = body.get(key, ABSENT) if isinstance(body, dict) else ABSENT
    return [body]
