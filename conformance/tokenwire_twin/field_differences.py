"""Compares the fields of two answers, the values outside of the abstract record, and the events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenwire.checks.reading.json_fields import fields_of, lost, told_by
from tokenwire.record import Place, Stream
from tokenwire.report.wording import value
from tokenwire.target.alike import alike
from tokenwire_twin.difference import NAMES, Difference, Gravity, Pair, first_apart, in_words, is_volatile

_SHORT_WORD = 40
"""The length up to which a string value counts as a keyword of a protocol.

Such a keyword becomes part of the name of a family of differences.
"""


_CHANNELS = frozenset({"text", "reasoning", "calls"})
_GRAVITY_OF_PART = {
    "output_ids": Gravity.IDS,
    "prompt_token_ids": Gravity.PROMPT,
    "finish": Gravity.FINISH,
    **dict.fromkeys(_CHANNELS, Gravity.CHANNELS),
}


def _record_paths(stream: Stream) -> dict[str, Gravity]:
    """Return the paths of the record's fields in an answer, without list positions, each with its subject."""
    paths: dict[str, Gravity] = {}
    for emission in stream.emissions():
        for name, pointer in emission.pointers.items():
            if name in emission.details:
                continue
            path = _without_positions(pointer)
            usual = Gravity.FINISH if name in emission.counters else Gravity.LOGPROBS
            paths[path] = _GRAVITY_OF_PART.get(name, usual)
        paths.update((_without_positions(piece.pointer), Gravity.CHANNELS) for piece in emission.calls)
    return paths


def _without_positions(pointer: str) -> str:
    return "".join(f"/{key}" for key in pointer.split("/")[1:] if not key.isdecimal())


def _within(path: str, fields: Mapping[str, Gravity]) -> Gravity | None:
    """Return the subject of the record's field to which a path belongs; None if it belongs to none."""
    return next((gravity for name, gravity in fields.items() if f"{path}/".startswith(f"{name}/")), None)


def _gravity_of(path: str, record: Mapping[str, Gravity], pair: Pair) -> Gravity:
    if pair.first.refused or pair.second.refused or path.startswith(("/error", "/detail")):
        return Gravity.ERRORS
    if path.endswith("/prompt_tokens"):
        return Gravity.PROMPT
    return _within(path, record) or (Gravity.FINISH if "usage" in path else Gravity.FIELDS)


def _outermost(path: str, there: frozenset[str]) -> str:
    """Return the outermost member on a path that the other side does not have."""
    keys = path.split("/")
    for depth in range(2, len(keys)):
        outer = "/".join(keys[:depth])
        if not any(f"{other}/".startswith(f"{outer}/") for other in there):
            return outer
    return path


def missing_fields(pair: Pair, *, parts: bool) -> Iterator[Difference]:
    """Yield the fields that only one side has.

    With `parts=False`, fields of the abstract record are skipped.
    """
    sides = pair.first, pair.second
    record = {**_record_paths(sides[0]), **_record_paths(sides[1])}
    held = [frozenset(told_by(side)) for side in sides]
    for side, missing in enumerate((lost(*sides), lost(*reversed(sides)))):
        seen: set[str] = set()
        for path, place in missing.items():
            outer = _outermost(path, held[1 - side])
            gravity = _gravity_of(path, record, pair)
            is_part = _within(path, record) is not None
            # Channels are compared elsewhere.
            if outer in seen or (is_part and (gravity is Gravity.CHANNELS or not parts)):
                continue
            seen.add(outer)
            places = (place, None) if side == 0 else (None, place)
            says = f"only in {pair.names[side]}"
            yield pair.differs(gravity, ("field", outer, says), "", places)


def _values(stream: Stream, volatile: frozenset[str]) -> dict[str, tuple[Any, Place]]:
    """Return the last value at each path outside of the abstract record, with the place of the value."""
    record = _record_paths(stream)
    last: dict[str, tuple[Any, Place]] = {}
    for event in stream.events:
        for path, found in fields_of(event.data):
            if not is_volatile(path, volatile) and _within(path, record) is None:
                last[path] = (found, event.place)
    return last


def _without_names(found: Any, stream: Stream) -> Any:
    """Replace names that the request contains, such as the model name, by the names of their fields."""
    body = stream.exchange.request.body
    if isinstance(found, str) and isinstance(body, dict):
        for name in sorted(NAMES & body.keys()):
            if isinstance(body[name], str) and body[name]:
                found = found.replace(body[name], name)
    return found


def _is_word(thing: Any) -> bool:
    """True if a value is a keyword of a protocol, a boolean or null."""
    if isinstance(thing, str):
        return len(thing) <= _SHORT_WORD and not any(map(str.isdigit, thing))
    return thing is None or isinstance(thing, bool)


def other_values(pair: Pair) -> Iterator[Difference]:
    if len(pair.first.choices) > 1 and pair.first.asked.stream:
        return  # the last choice in a stream may be any, so its last values are not comparable
    record = {**_record_paths(pair.first), **_record_paths(pair.second)}
    ours, theirs = (_values(stream, pair.volatile) for stream in (pair.first, pair.second))
    for path in sorted(ours.keys() & theirs.keys()):
        first, second = (
            _without_names(ours[path][0], pair.first),
            _without_names(theirs[path][0], pair.second),
        )
        if alike(first, second):
            continue
        words = [value(held) for held in (ours[path][0], theirs[path][0])]
        gravity = _gravity_of(path, record, pair)
        says = "other words" if gravity is Gravity.ERRORS else "other values"
        if gravity is not Gravity.ERRORS and _is_word(first) and _is_word(second):
            says = pair.in_sides(*words)
        message = pair.in_sides(*words)
        yield pair.differs(gravity, ("value", path, says), message, (ours[path][1], theirs[path][1]))


def other_events(pair: Pair) -> Iterator[Difference]:
    """Yield a difference in the number of events.

    If the numbers are equal, yield the first event that differs.
    """
    ours, theirs = pair.first.events, pair.second.events
    if len(ours) != len(theirs):
        message = f"cut into {len(ours)} and {len(theirs)} events"
        yield pair.differs(Gravity.REMARKS, ("events", "", "another number of events"), message)
        return
    for one, other in zip(ours, theirs, strict=True):
        found = first_apart(one.data, other.data, pair.volatile)
        if found is not None:
            path, was, became = found
            message = f"event {one.index}, {path or 'the whole'}: {in_words(was)} and {in_words(became)}"
            places = one.place, other.place
            yield pair.differs(Gravity.REMARKS, ("events", "", "other events"), message, places)
            return
