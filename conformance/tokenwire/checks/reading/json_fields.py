"""Fields of an answer, at any depth, which a gateway must pass on to the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenwire.checks.reading.fields import end_place
from tokenwire.record import Place, Stream
from tokenwire.wire.json_pointer import Keys, join, parse

_KEYED_BY_TOKENS = frozenset({"top_logprobs", "prompt_logprobs"})
"""Objects whose keys are tokens, and not field names."""


def is_of_the_cache(path: str) -> bool:
    """True if the value at a path depends on the content of the cache."""
    return "cached" in path


def fields_of(value: Any, *, nulls: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each scalar in a JSON value. Empty lists and objects are left out.

    Nulls are included only with `nulls`. Paths contain neither list positions nor tokens.
    """
    found = [(value, "")]
    while found:
        here, path = found.pop()
        if isinstance(here, Mapping):
            by_token = path.rpartition("/")[2] in _KEYED_BY_TOKENS and "logprob" not in here
            for name, held in here.items():
                found.append((held, f"{path}/*" if by_token else f"{path}{join(name)}"))
        elif isinstance(here, list):
            found += [(held, path) for held in here]
        elif nulls or here is not None:
            yield path, here


def told_by(stream: Stream, *, nulls: bool = False) -> dict[str, Place]:
    """Return the paths of the fields in all events of an answer, each with its first place."""
    reported: dict[str, Place] = {}
    for event in stream.events:
        for path, _ in fields_of(event.data, nulls=nulls):
            reported.setdefault(path, event.place)
    return reported


def lost(worker: Stream, gateway: Stream) -> dict[str, Place]:
    """Return the fields that the worker's answer has and the gateway's answer lacks.

    A field that depends on the cache is not missing if it, or one of its parents, is null in the gateway's
    answer.
    """
    ours, theirs = told_by(worker), told_by(gateway)
    there = told_by(gateway, nulls=True)
    missing = {path: ours[path] for path in sorted(ours.keys() - theirs.keys())}
    return {
        path: place
        for path, place in missing.items()
        if not is_of_the_cache(path) or there.keys().isdisjoint(_prefixes(path))
    }


def place_of_loss(stream: Stream, path: str) -> Place:
    """Return the place at which a missing field is to be expected: the last event with most of its parents.

    The pointer leads to the deepest parent. In a list, it leads to the first entry.
    """
    keys = parse(path)
    found = [(_parents(event.data, keys), event.place) for event in stream.events]
    deepest = max((len(parents) for parents, _ in found), default=0)
    if not deepest:
        return end_place(stream)
    parents, place = next(row for row in reversed(found) if len(row[0]) == deepest)
    return place.at(join(*parents))


def _parents(value: Any, keys: Keys) -> list[object]:
    """Return the keys and indices of as many parents of a path as a JSON value has."""
    found: list[object] = []
    beside: list[object] = []
    for key in keys:
        while isinstance(value, list) and value:
            value = value[0]
            beside.append(0)
        if not isinstance(value, Mapping) or key not in value:
            break
        value = value[key]
        found += [*beside, key]
        beside = []
    return found


def _prefixes(path: str) -> Iterator[str]:
    """Yield a path and the paths of its parents."""
    while path:
        yield path
        path = path.rpartition("/")[0]
