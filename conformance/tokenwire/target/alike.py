"""Equality of JSON values, except for differences from the order of computation and the number of digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from marshal import dumps
from typing import Any, TypeGuard

from tokenwire.record import BROKEN
from tokenwire.requirement import tolerance

ROUNDING = tolerance("rounding")
"""The maximum difference between two non-integer numbers that count as equal.

Batching, chunked prefill and other kernels change float32 logprobs by about 1e-5. Entries of a wrong position
differ by much more.
"""
_LOGPROB, _RANK, _TOP = "logprob", "rank", "top_logprobs"


def known_by(value: Any) -> int:
    """Return a hash that is equal exactly for equal JSON values.

    `hash` alone does not work: many values cannot be hashed, and -1 and -2 have the same hash.
    """
    # Version 2 of the format has no references. References would make the bytes of equal values differ.
    return hash(dumps(value, 2))


def alike(first: object, other: object, tolerance: float = ROUNDING) -> bool:
    """True if two values are equal and have the same JSON type. Numbers may differ by the tolerance.

    Arrays and objects are compared member by member. Alternatives at one position are an array of entries, or
    an object of logprobs by text or id. They may swap places if their logprobs are nearly equal. The last
    alternative may be replaced by an unlisted one, or hidden by one with the same name.
    """
    if first is other:
        return True
    # In Python, True equals 1. In JSON, true is not a number.
    if isinstance(first, bool) or isinstance(other, bool):
        return False
    if isinstance(first, (int, float)) and isinstance(other, (int, float)):
        return _close(first, other, tolerance)
    if isinstance(first, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(first) != len(other):
            return False
        return all(map(alike, first, other, [tolerance] * len(first))) or _tied(
            _candidates_in_list(first), _candidates_in_list(other), tolerance
        )
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        if first.keys() == other.keys() and all(_member(key, first, other, tolerance) for key in first):
            return True
        # In an object with texts as keys, incomplete characters share one key, so that some alternatives are
        # missing.
        agree = _tied if len(first) == len(other) else _hidden
        return agree(_keyed(first), _keyed(other), tolerance)
    return bool(first == other)


def _close(first: float, other: float, tolerance: float) -> bool:
    """True if two numbers are equal, or if at least one is not an integer and they differ by at most the
    tolerance.
    """
    near, far = (first, other) if isinstance(first, float) else (other, first)
    return first == other or (isinstance(near, float) and near - tolerance <= far <= near + tolerance)


def _member(key: object, first: Mapping[Any, object], other: Mapping[Any, object], tolerance: float) -> bool:
    """True if two objects have an equal member. A rank may differ, because ties between other ids
    change it.
    """
    if key == _RANK and _LOGPROB in first and type(first[key]) is type(other[key]) is int:
        return True
    return alike(first[key], other[key], tolerance)


Candidates = Sequence[tuple[object, float]]
"""Alternatives at a position: a key that identifies each of them, and its logprob."""


def _candidate(entry: object) -> tuple[object, float] | None:
    """Return the key and the logprob of an entry `[logprob, id, text]` or `{"token": …, "logprob": …}`.

    None for any other value.
    """
    if isinstance(entry, Mapping):
        name = entry.get("token_id", entry.get("id"))
        named = entry.get("token") if name is None else name
        logprob = entry.get(_LOGPROB)
    elif isinstance(entry, (list, tuple)) and len(entry) >= 2:
        logprob, named = entry[:2]
    else:
        return None
    return (named, logprob) if _is_number(logprob) and isinstance(named, (int, str)) else None


def _is_number(value: object) -> TypeGuard[float]:
    """True if a value is a JSON number. Servers in Go write the logprob 0 without a fraction."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _if_logprobs(candidates: Sequence[tuple[object, float]]) -> Candidates:
    """Return the candidates if at least one number has a fraction. Rows of integers, such as expert ids, are
    not candidates.
    """
    return candidates if any(isinstance(logprob, float) for _, logprob in candidates) else ()


def _candidates_in_list(entries: Sequence[object]) -> Candidates:
    """Return the candidates in an array of entries. Empty if the array contains anything else."""
    read = [_candidate(entry) for entry in entries]
    known = [entry for entry in read if entry is not None]
    return _if_logprobs(known) if len(known) == len(read) else ()


def _keyed(entries: Mapping[Any, object]) -> Candidates:
    """Return the candidates in an object of logprobs or entries, by text or id. Empty for any
    other object.
    """
    read: list[tuple[object, float]] = []
    for key, value in entries.items():
        logprob = value.get(_LOGPROB) if isinstance(value, Mapping) else value
        if not _is_number(logprob):
            return ()
        read.append((key, logprob))
    return _if_logprobs(read)


def apart(first: object, other: object) -> float:
    """Return the largest difference between logprobs of the same id in two entries of one position.

    All ids that both entries contain are compared, whatever their order.
    """
    if _is_number(first) and _is_number(other):
        return abs(first - other) if first != other and float in {type(first), type(other)} else 0.0
    if isinstance(first, Mapping) and isinstance(other, Mapping) and _LOGPROB in first and _LOGPROB in other:
        return max(apart(first[_LOGPROB], other[_LOGPROB]), apart(first.get(_TOP), other.get(_TOP)))
    ours, theirs = _candidate(first), _candidate(other)
    if ours is not None and theirs is not None:
        return apart(ours[1], theirs[1]) if ours[0] == theirs[0] else 0.0
    known = _by_name(other)
    return max((apart(logprob, known.get(name)) for name, logprob in _by_name(first).items()), default=0.0)


def _by_name(entries: object) -> dict[object, float]:
    """Return the logprobs of a position by candidate, without names that several candidates may share."""
    if isinstance(entries, Mapping):
        read = _keyed(entries)
    else:
        read = _candidates_in_list(entries) if isinstance(entries, (list, tuple)) else ()
    times = Counter(name for name, _ in read)
    return {name: logprob for name, logprob in read if times[name] == 1 and not _is_of_several(name)}


def _is_of_several(name: object) -> bool:
    """True if several tokens may have this name, because incomplete characters have the same text
    or no text.
    """
    return isinstance(name, str) and (not name or BROKEN in name)


def _tied(first: Candidates, other: Candidates, tolerance: float) -> bool:
    """True if two lists of candidates differ only in the order of nearly equal logprobs."""
    if not first or len(first) != len(other):
        return False
    ranks = [sorted((logprob for _, logprob in side), reverse=True) for side in (first, other)]
    if not all(_close(ours, theirs, tolerance) for ours, theirs in zip(*ranks, strict=True)):
        return False
    for ours, theirs, last in ((first, other, ranks[1][-1]), (other, first, ranks[0][-1])):
        known: dict[object, list[float]] = {}
        for name, logprob in theirs:
            known.setdefault(name, []).append(logprob)
        for name, logprob in ours:
            if not any(_close(logprob, reported, tolerance) for reported in known.get(name, [last])):
                return False
    return True


def _hidden(first: Candidates, other: Candidates, tolerance: float) -> bool:
    """True if two objects of different size have the same candidates, except for candidates that share a
    name. One entry represents all candidates of its name. A candidate that replaces a hidden one must be
    among the last.
    """
    shared = {name for name, _ in (*first, *other) if _is_of_several(name)}
    if not (first and other and shared):
        return False
    for ours, theirs in ((first, dict(other)), (other, dict(first))):
        last = min(theirs.values())
        for name, logprob in ours:
            reported = theirs.get(name)
            if name not in shared and not (
                logprob <= last + tolerance if reported is None else _close(logprob, reported, tolerance)
            ):
                return False
    return True
