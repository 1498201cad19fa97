"""What is shown of an event: what a pointer names, the way there, and the tokens beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.record import Event, Place, Stream
from tokenwire.report.wording import cut, inert
from tokenwire.wire.json_pointer import ABSENT, Keys, find, parse

_LONGEST_NAMED = 90
_LONGEST_BESIDE = 40
_LONGEST_WHOLE = 150
_AROUND = 10
"""Characters of a long text, or entries of a long list, that are shown on each side of what is marked."""
_TOKENS = ("output_ids", "text")
"""The tokens that any other field is about, which a reader wants to see beside it: the first of these."""
_DATA = "data: "


@dataclass(frozen=True)
class Excerpt:
    """A part of an event as text."""

    text: str
    mark: tuple[int, int] | None = None
    """From where to where that stands which the pointer names; None where the event has no such thing."""


@dataclass(frozen=True)
class _Piece:
    text: str
    marked: bool = False


def _dumped(value: Any) -> str:
    """The value as compact JSON, in characters that a terminal shows and does not obey."""
    return inert(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _entry(entries: list[Any], actual: Any) -> list[_Piece]:
    """A list around the one entry that is the wrong one; nothing where none is, or several may be."""
    wrong = _dumped(actual)
    dumped = [_dumped(entry) for entry in entries]
    if dumped.count(wrong) != 1 or len(wrong) > _LONGEST_NAMED:
        return []
    at = dumped.index(wrong)
    before, after = dumped[:at][-_AROUND:], dumped[at + 1 :][:_AROUND]
    while sum(map(len, (*before, *after))) > _LONGEST_NAMED and (before or after):
        before, after = before[1:], after[:-1]
    start = "[" if len(before) == at else "[… "
    end = "]" if len(after) == len(dumped) - at - 1 else " …]"
    return [
        _Piece(start + "".join(f"{entry}," for entry in before)),
        _Piece(wrong, marked=True),
        _Piece("".join(f",{entry}" for entry in after) + end),
    ]


def _text(text: str, actual: str) -> list[_Piece]:
    """A long text around what is wrong in it; nothing where that is not in it, or several times."""
    whole, wrong = _dumped(text), _dumped(actual)[1:-1][:_LONGEST_NAMED]
    if not wrong or whole.count(wrong) != 1:
        return []
    start = whole.index(wrong)
    end = start + len(wrong)
    before, after = whole[:start], whole[end:]
    return [
        _Piece(before if start <= _AROUND else f'"… {before[-_AROUND:]}'),
        _Piece(wrong, marked=True),
        _Piece(after if len(after) <= _AROUND else f'{after[:_AROUND]} …"'),
    ]


def _named(value: Any, actual: Any) -> list[_Piece]:
    """What the pointer names, and in it what is wrong where that can be told."""
    pieces: list[_Piece] = []
    if isinstance(value, list):
        pieces = _entry(value, actual)
    elif isinstance(value, str) and isinstance(actual, str) and len(value) > _LONGEST_NAMED:
        pieces = _text(value, actual)
    return pieces or [_Piece(cut(_dumped(value), _LONGEST_NAMED), marked=True)]


class _Rendering:
    """An event's data as pieces of text, with only the kept values in it."""

    def __init__(self, named: Keys | None, kept: Collection[Keys], actual: Any) -> None:
        self._named, self._actual = named, actual
        self._kept = kept
        self._way = {keys[:n] for keys in (*kept, *([named] if named else ())) for n in range(len(keys) + 1)}

    def pieces(self, value: Any, here: Keys = ()) -> Iterator[_Piece]:
        if here == self._named:
            yield from _named(value, self._actual)
        elif here in self._kept:
            yield _Piece(cut(_dumped(value), _LONGEST_BESIDE))
        else:
            opening, closing = "{}" if isinstance(value, dict) else "[]"
            yield _Piece(opening)
            yield from self._members(value, here)
            yield _Piece(closing)

    def _members(self, value: dict[str, Any] | list[Any], here: Keys) -> Iterator[_Piece]:
        between = ""
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            there = (*here, str(key))
            if there not in self._way:
                between = " … " if between.startswith((" ", ",")) else "… "
                continue
            yield _Piece(between + (f"{_dumped(key)}:" if isinstance(value, dict) else ""))
            yield from self.pieces(member, there)
            between = ","
        if between not in ("", ","):
            yield _Piece(between.rstrip())


def neighbourhood(data: Any, pointer: str, beside: Sequence[str] = (), actual: Any = None) -> Excerpt:
    """What stands at a pointer in the data of an event, and at those beside it.

    `actual` is what was found wrong there: a long text or list is shown around it.
    """
    named = parse(pointer)
    kept = {keys for one in beside if (keys := parse(one)) and find(data, keys) is not ABSENT} - {named}
    is_there = bool(named) and find(data, named) is not ABSENT
    if not is_there and not kept:
        return Excerpt(cut(_dumped(data), _LONGEST_WHOLE))
    text, mark = "", None
    for piece in _Rendering(named if is_there else None, kept, actual).pieces(data):
        if piece.marked:
            mark = (len(text), len(text) + len(piece.text))
        text += piece.text
    return Excerpt(text, mark)


def _tokens_beside(stream: Stream, event: Event, pointer: str) -> list[str]:
    """Where the tokens stand that an event brings for the choice that a pointer is about."""
    here = [
        emission
        for choice in stream.choices
        for emission in choice.emissions
        if emission.event.index == event.index
    ]
    about = [one for one in here if pointer in one.pointers.values()] or here
    return [one.pointers[name] for one in about[:1] for name in _TOKENS if name in one.pointers][:1]


def excerpt(stream: Stream, event: Event, pointer: str, actual: Any = None) -> Excerpt:
    """What to show of one event of a stream, or of an answer that is one document."""
    if not isinstance(event.data, dict | list):  # no JSON, or the end mark
        return Excerpt(cut(event.place.excerpt, _LONGEST_WHOLE))
    shown = neighbourhood(event.data, pointer, _tokens_beside(stream, event, pointer), actual)
    if event.place.event is None:
        return shown
    mark = None if shown.mark is None else (shown.mark[0] + len(_DATA), shown.mark[1] + len(_DATA))
    return Excerpt(_DATA + shown.text, mark)


def excerpt_at(stream: Stream, place: Place, actual: Any = None) -> Excerpt:
    """What to show of the event that a place is in, or of the document."""
    at = place.event or 0
    if at >= len(stream.events) or stream.events[at].place.event != place.event:
        return Excerpt(place.excerpt)
    return excerpt(stream, stream.events[at], place.pointer, actual)
