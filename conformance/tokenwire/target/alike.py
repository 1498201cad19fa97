"""When two JSON values are the same value, computed in another order or written with fewer digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenwire.record import BROKEN
from tokenwire.requirement import tolerance

ROUNDING = tolerance("rounding")
"""Numbers with a fraction that lie closer are taken for one.

Batching, chunked prefill and other kernels move float32 logprobs by some 1e-5; entries of a wrong position
differ by far more than this.
"""
_LOGPROB, _RANK, _TOP = "logprob", "rank", "top_logprobs"


def alike(one: object, other: object, tolerance: float = ROUNDING) -> bool:
    """Equal, of the same JSON type, numbers with a fraction within the tolerance.

    Arrays and objects are compared member by member. Candidates at one position, be it an array of entries
    with a logprob or an object from texts or ids to logprobs, may change places where their logprobs are as
    good as equal, and so may the last of them with one that is not listed, or is not seen behind another
    of its name.
    """
    if one is other:
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or _close(one, other, tolerance)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return False
        return all(map(alike, one, other, [tolerance] * len(one))) or _tied(
            _listed(one), _listed(other), tolerance
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() == other.keys() and all(_member(key, one, other, tolerance) for key in one):
            return True
        agree = _tied if len(one) == len(other) else _hidden
        return agree(_keyed(one), _keyed(other), tolerance)
    return bool(one == other)


def _close(one: float, other: float, tolerance: float) -> bool:
    """Whether two numbers lie within the tolerance; integers only beside a fraction."""
    near, far = (one, other) if isinstance(one, float) else (other, one)
    return isinstance(near, float) and near - tolerance <= far <= near + tolerance


def _member(key: object, one: Mapping[Any, object], other: Mapping[Any, object], tolerance: float) -> bool:
    """Whether two objects have a like member. A rank counts the ids before it: ties of others change it."""
    if key == _RANK and _LOGPROB in one and type(one[key]) is type(other[key]) is int:
        return True
    return alike(one[key], other[key], tolerance)


Candidates = Sequence[tuple[object, float]]
"""What names a candidate, and its logprob."""


def _candidate(entry: object) -> tuple[object, float] | None:
    """A candidate in an entry `[logprob, id, text]` or `{"token": …, "logprob": …}`; None for all else."""
    if isinstance(entry, Mapping):
        name = entry.get("token_id", entry.get("id"))
        named = entry.get("token") if name is None else name
        logprob = entry.get(_LOGPROB)
        return (named, logprob) if isinstance(logprob, float) and isinstance(named, (int, str)) else None
    if not isinstance(entry, (list, tuple)) or len(entry) < 2 or not isinstance(entry[0], float):
        return None
    return (entry[1], entry[0]) if isinstance(entry[1], (int, str)) else None


def _listed(entries: Sequence[object]) -> Candidates:
    """The candidates in an array of entries; none where it is not one."""
    read = [_candidate(entry) for entry in entries]
    known = [entry for entry in read if entry is not None]
    return known if len(known) == len(read) else ()


def _keyed(entries: Mapping[Any, object]) -> Candidates:
    """The candidates in an object from texts or ids to logprobs or entries; none where it is not one."""
    read: list[tuple[object, float]] = []
    for key, value in entries.items():
        logprob = value.get(_LOGPROB) if isinstance(value, Mapping) else value
        if not isinstance(logprob, float):
            return ()
        read.append((key, logprob))
    return read


def apart(one: object, other: object) -> float:
    """How far the logprobs lie apart that two entries of one position tell of one id, at most.

    That is the id which was sampled, and candidates that both list, by their names, wherever they stand.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) if one != other else 0.0
    if isinstance(one, Mapping) and isinstance(other, Mapping) and _LOGPROB in one and _LOGPROB in other:
        return max(apart(one[_LOGPROB], other[_LOGPROB]), apart(one.get(_TOP), other.get(_TOP)))
    ours, theirs = _candidate(one), _candidate(other)
    if ours is not None and theirs is not None:
        return apart(ours[1], theirs[1]) if ours[0] == theirs[0] else 0.0
    known = _by_name(other)
    return max((apart(logprob, known.get(name)) for name, logprob in _by_name(one).items()), default=0.0)


def _by_name(entries: object) -> dict[object, float]:
    """The logprobs of the candidates of a position, but of those that may share a name."""
    if isinstance(entries, Mapping):
        read = _keyed(entries)
    else:
        read = _listed(entries) if isinstance(entries, (list, tuple)) else ()
    times = Counter(name for name, _ in read)
    return {name: logprob for name, logprob in read if times[name] == 1 and not _is_of_several(name)}


def _is_of_several(name: object) -> bool:
    """Whether several tokens may bear a name: all halves of characters are written alike, or not at all."""
    return isinstance(name, str) and (not name or BROKEN in name)


def _tied(one: Candidates, other: Candidates, tolerance: float) -> bool:
    """Whether two lists of candidates are the same but for places among those that are as good as equal."""
    if not one or len(one) != len(other):
        return False
    ranks = [sorted((logprob for _, logprob in side), reverse=True) for side in (one, other)]
    if not all(_close(ours, theirs, tolerance) for ours, theirs in zip(*ranks, strict=True)):
        return False
    for ours, theirs, last in ((one, other, ranks[1][-1]), (other, one, ranks[0][-1])):
        known: dict[object, list[float]] = {}
        for name, logprob in theirs:
            known.setdefault(name, []).append(logprob)
        for name, logprob in ours:
            if not any(_close(logprob, reported, tolerance) for reported in known.get(name, [last])):
                return False
    return True


def _hidden(one: Candidates, other: Candidates, tolerance: float) -> bool:
    """Whether objects of unlike length list the same candidates, but for those that share a name.

    One of these stands for all. What another answer lists in the place of one that is not seen can only be
    among its last.
    """
    shared = {name for name, _ in (*one, *other) if _is_of_several(name)}
    if not (one and other and shared):
        return False
    for ours, theirs in ((one, dict(other)), (other, dict(one))):
        last = min(theirs.values())
        for name, logprob in ours:
            reported = theirs.get(name)
            if name not in shared and not (
                logprob <= last + tolerance if reported is None else _close(logprob, reported, tolerance)
            ):
                return False
    return True
