"""Finds causes of differences: fields that all requests of a family share, and concurrent requests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from tokenwire.record import Answer
from tokenwire_twin.difference import Difference

_FEWEST_OTHERS = 10
"""The least number of other requests with which a family of differences is compared.

With fewer requests, a common field may be chance.
"""
_MOST_NAMED = 3
"""The largest number of fields that may explain a family.

If more fields are common to all its requests, they are a coincidence.
"""
_MOST_VALUES = 3
_NEARLY_ALL = 0.8
"""The least share of a family's requests that must have a field in common.

The remaining requests may have another cause.
"""
_MOST_OBJECTS = 32
"""The most objects of a list that are examined."""
_NESTED = "/sampling_params"
"""An object whose members other endpoints have at the top level of a request."""
BODY_POSITION = re.compile(r" at line \d+ column \d+")
"""Matches the place in a body that a JSON parser reports."""
_WORD = re.compile(r"[A-Za-z_][\w.-]{0,23}")
_NEARLY_ALL_TIMES = 0.9
"""The least share of differences that concurrent requests must explain."""

Asked = Mapping[str, frozenset[Any]]
"""The values of each field of a request, by path. Long values are replaced by the name of their type."""


@dataclass(frozen=True, order=True)
class _Number:
    value: float


def _shape(thing: Any) -> Any:
    """Return a number, a boolean or a short word unchanged, because such values may be causes.

    For other values, return the type.
    """
    match thing:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[thing]
        case int() | float():
            return _Number(thing)
        case str():
            return thing if _WORD.fullmatch(thing) else "a text"
        case dict():
            return "an object"
        case _:
            return f"a list of {_plural(thing[0])}" if thing else "an empty list"


def _plural(thing: Any) -> str:
    match thing:
        case str():
            return "texts"
        case bool() | int() | float():
            return "numbers"
        case list():
            return "lists"
        case _:
            return "objects"


def asked_for(body: Any) -> Asked:
    """Return all fields of a request, with their values."""
    found: dict[str, set[Any]] = defaultdict(set)
    for path, thing in _walked(body, ""):
        found[path].add(_shape(thing))
    return {path: frozenset(shapes) for path, shapes in found.items()}


def _walked(thing: Any, path: str) -> Iterator[tuple[str, Any]]:
    if path and path != _NESTED:
        yield path.removeprefix(f"{_NESTED}/").lstrip("/"), thing
    if isinstance(thing, dict):
        for name, inner in thing.items():
            yield from _walked(inner, f"{path}/{name}")
    elif isinstance(thing, list):
        for inner in thing[:_MOST_OBJECTS]:
            if isinstance(inner, dict):
                for name, value in inner.items():
                    yield from _walked(value, f"{path}/{name}")


def in_common(family: Sequence[Asked], others: Sequence[Asked], reason: str = "") -> str:
    """Describe the fields that nearly all requests of a family have, and that no other request has.

    Return an empty text if there are no such fields, or too many to be a cause. If the server's `reason`
    names one of several fields, or its value, only this field is described.
    """
    if not family or len(others) < _FEWEST_OTHERS:
        return ""
    found: dict[str, tuple[str, int]] = {}
    for path in sorted(
        {path for asked in family for path in asked}, key=lambda path: (path.count("/"), path)
    ):
        if any(path.startswith(f"{outer}/") for outer in found):
            continue
        told = _apart(path, family, [asked[path] for asked in others if path in asked])
        if told is not None:
            found[path] = told
    if not found:
        return ""
    named = [path for path, (words, _) in found.items() if _names(reason, path, words)]
    if len(named) == 1:
        found = {named[0]: found[named[0]]}
    most = max(count for _, count in found.values())
    words = [words for words, count in found.values() if count == most]
    times = "" if most == len(family) else f" ({most} of {len(family)})"
    return " and ".join(words) + times if len(words) <= _MOST_NAMED else ""


def _names(reason: str, path: str, words: str) -> bool:
    """True if the message of a server contains the name or the value of a field."""
    _, _, number = words.partition(" of ")
    names = [path.rpartition("/")[2], *([number] if number else [])]
    reason = BODY_POSITION.sub("", reason)
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?!\w|\.\d)", reason) for name in names)


def _apart(path: str, family: Sequence[Asked], others: Sequence[frozenset[Any]]) -> tuple[str, int] | None:
    """Describe the values of one field that most requests of a family have, and that no other request has.

    The second value is the number of these requests. Return None if there are no such values.
    """
    theirs = frozenset[Any]().union(*others)
    bounds = [shape for shape in theirs if isinstance(shape, _Number)]
    mine: list[frozenset[Any]] = []
    for asked in family:
        shapes = asked.get(path, frozenset()) - theirs
        # A number within the range of the other requests' numbers cannot be a cause.
        mine.append(
            frozenset(
                shape
                for shape in shapes
                if not isinstance(shape, _Number) or not bounds or not min(bounds) < shape < max(bounds)
            )
        )
    count = sum(map(bool, mine))
    if count < _NEARLY_ALL * len(family):
        return None
    every = frozenset[Any]().union(*mine)
    numbers = sorted(shape.value for shape in every if isinstance(shape, _Number))
    if len(numbers) == len(every):
        between = (
            bounds
            and any(shape.value < numbers[0] for shape in bounds)
            and any(shape.value > numbers[-1] for shape in bounds)
        )
        some = f"{numbers[0]:g}" if numbers[0] == numbers[-1] else f"{numbers[0]:g} to {numbers[-1]:g}"
        return None if between else (f"{path} of {some}", count)
    if not others:
        return path, count
    if numbers or len(every) > _MOST_VALUES:
        return None
    return f"{path} as {' or '.join(sorted(map(str, every)))}", count


# Concurrent requests:


@dataclass
class Neighbours:
    """The requests of one side, with the times in which they ran."""

    answers: Sequence[Answer]
    _named: dict[str, Answer] = field(init=False)

    def __post_init__(self) -> None:
        self._named = {answer.exchange.name: answer for answer in self.answers}

    @cached_property
    def _times(self) -> list[tuple[float, float, Answer]]:
        return [(*_times(answer), answer) for answer in self.answers if answer.asked.top_logprobs]

    def asked_for(self, name: str, number: int) -> bool | None:
        """True if a concurrent request asked for this number of alternatives.

        None if the request that was answered may have asked for this number itself.
        """
        mine = self._named.get(name)
        # Some servers add the sampled token to the alternatives.
        wanted = {number, number - 1}
        if mine is None or mine.asked.top_logprobs in wanted:
            return None
        start, end = _times(mine)
        return any(
            other.asked.top_logprobs in wanted
            for began, ended, other in self._times
            if other is not mine and began <= end and start <= ended
        )


def _times(answer: Answer) -> tuple[float, float]:
    start = datetime.fromisoformat(answer.exchange.started).timestamp()
    return start, start + answer.exchange.duration


def leak_in(members: Iterable[Difference], sides: tuple[Neighbours, Neighbours]) -> str:
    """Return the evidence that answers have the number of alternatives that a concurrent request asked for.

    Return an empty text unless this explains nearly all differences that the requests themselves do not
    explain.
    """
    found: list[bool | None] = []
    for difference in members:
        if difference.sizes is not None:
            longer = int(difference.sizes[0] < difference.sizes[1])
            place = (difference.one, difference.other)[longer]
            number = difference.sizes[longer]
            found.append(None if place is None else sides[longer].asked_for(place.exchange, number))
    times, unexplained = found.count(True), found.count(False)
    if not times or times < _NEARLY_ALL_TIMES * (times + unexplained):
        return ""
    return f"as many as a concurrent request asked for ({times} of {len(found)})"
