"""Excerpts of an event: the value at a pointer, the path to it, and the tokens beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.record import Event, Place, Stream
from tokenwire.report.finding import emission_at
from tokenwire.report.wording import cut
from tokenwire.wire.inert import inert
from tokenwire.wire.json_pointer import ABSENT, Keys, find, join, parse

_LONGEST_NAMED = 90
_LONGEST_BESIDE = 40
_LONGEST_WHOLE = 150
_LONGEST_WRITTEN = 160
_LONGEST_MARKED = 400
_MOST_MEMBERS = 24
_NEIGHBOURS = 2
"""The entries of a list shown on each side of the pointer's entry."""
_AROUND = 10
"""The characters of a long text, or entries of a long list, shown on each side of the mark."""
_TOKENS = ("output_ids", "text")
"""Fields with tokens. The first one present is shown beside any other field."""
_INDEX = "index"
_DATA = "data: "


@dataclass(frozen=True)
class Excerpt:
    """A part of an event as text."""

    text: str
    mark: tuple[int, int] | None = None
    """Start and end of the pointer's value; None if the event has no such value."""

    @property
    def parts(self) -> tuple[str, str, str]:
        """Return the text before the mark, the marked text and the rest."""
        start, end = self.mark or (len(self.text), len(self.text))
        return self.text[:start], self.text[start:end], self.text[end:]


class _Marked(str):
    """The marked piece of an excerpt."""

    __slots__ = ()


def _joined(pieces: Iterable[str]) -> Excerpt:
    text, mark = "", None
    for piece in pieces:
        if isinstance(piece, _Marked):
            mark = (len(text), len(text) + len(piece))
        text += piece
    return Excerpt(text, mark)


def _dumped(value: Any) -> str:
    """Return a value as compact JSON that cannot control a terminal."""
    return inert(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _entry(entries: list[Any], actual: Any) -> list[str]:
    """Return a list around its wrong entry; empty unless exactly one entry equals it."""
    wrong = _dumped(actual)
    dumped = [_dumped(entry) for entry in entries]
    if dumped.count(wrong) != 1 or len(wrong) > _LONGEST_NAMED:
        return []
    index = dumped.index(wrong)
    before, after = dumped[:index][-_AROUND:], dumped[index + 1 :][:_AROUND]
    while sum(map(len, (*before, *after))) > _LONGEST_NAMED and (before or after):
        before, after = before[1:], after[:-1]
    start = "[" if len(before) == index else "[… "
    end = "]" if len(after) == len(dumped) - index - 1 else " …]"
    return [
        start + "".join(f"{entry}," for entry in before),
        _Marked(wrong),
        "".join(f",{entry}" for entry in after) + end,
    ]


def _text(text: str, actual: str) -> list[str]:
    """Return a long text around its wrong part; empty unless it occurs exactly once."""
    whole, wrong = _dumped(text), _dumped(actual)[1:-1][:_LONGEST_NAMED]
    if not wrong or whole.count(wrong) != 1:
        return []
    start = whole.index(wrong)
    end = start + len(wrong)
    before, after = whole[:start], whole[end:]
    return [
        before if start <= _AROUND else f'"… {before[-_AROUND:]}',
        _Marked(wrong),
        after if len(after) <= _AROUND else f'{after[:_AROUND]} …"',
    ]


def _marked_value(value: Any, actual: Any) -> list[str]:
    """Return the value at the pointer, marked. If `actual` is found in a list or long text, only
    that is marked.
    """
    pieces: list[str] = []
    if isinstance(value, list):
        pieces = _entry(value, actual)
    elif isinstance(value, str) and isinstance(actual, str) and len(value) > _LONGEST_NAMED:
        pieces = _text(value, actual)
    return pieces or [_Marked(cut(_dumped(value), _LONGEST_NAMED))]


def _line(
    value: Any, here: Keys, marked: Keys | None, beside: Collection[Keys], actual: Any
) -> Iterator[str]:
    """Yield a value in one line, with the values at the pointers `marked` and `beside`, and an ellipsis for
    the rest.
    """
    if here == marked:
        yield from _marked_value(value, actual)
        return
    if here in beside:
        yield cut(_dumped(value), _LONGEST_BESIDE)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    wanted = [*beside, *([] if marked is None else [marked])]
    between = ""
    yield opening
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        there = (*here, str(key))
        if not any(keys[: len(there)] == there for keys in wanted):
            between = " … " if between.startswith((" ", ",")) else "… "
            continue
        yield between + (f"{_dumped(key)}:" if isinstance(value, dict) else "")
        yield from _line(member, there, marked, beside, actual)
        between = ","
    yield between.rstrip(" ,") + closing


def neighbourhood(data: Any, pointer: str, beside: Sequence[str] = (), actual: Any = None) -> Excerpt:
    """Return the value at a pointer in the data of an event, and the values at the pointers `beside`.

    `actual` is the wrong part: a long text or list is shown around it.
    """
    keys = parse(pointer)
    there = bool(keys) and find(data, keys) is not ABSENT
    others = {other for way in beside if (other := parse(way)) and find(data, other) is not ABSENT} - {keys}
    if not there and not others:
        return Excerpt(cut(_dumped(data), _LONGEST_WHOLE))
    return _joined(_line(data, (), keys if there else None, others, actual))


def _beside(stream: Stream, event: Event, pointer: str) -> list[str]:
    """Return the pointers to the tokens of the choice that `pointer` leads into, if the event has any.

    With several choices, the pointer to the index is included.
    """
    emission = emission_at(stream, event.index, pointer)
    pointers = {} if emission is None else emission.pointers
    shown = [pointers[name] for name in _TOKENS if name in pointers][:1]
    shown = shown or ([] if pointer else list(pointers.values())[:1])
    if stream.asked.prompts * stream.asked.n > 1:
        ways = parse((shown or [pointer])[0])
        shown += [join(*ways[:depth], _INDEX) for depth in range(len(ways))]
    return shown


def written(body: bytes, place: Place) -> str:
    """Return the bytes at a place of a body, as text, cut to a readable length."""
    end = min(place.end, place.start + 4 * _LONGEST_WRITTEN)
    text = body[place.start : end].decode(errors="replace").rstrip("\r\n")
    return text if len(text) <= _LONGEST_WRITTEN and end == place.end else text[:_LONGEST_WRITTEN] + "…"


def excerpt(stream: Stream, event: Event, pointer: str, actual: Any = None) -> Excerpt:
    """Return the excerpt of an event, or of an answer that is one document."""
    if not isinstance(event.data, dict | list):  # not JSON, or the end mark
        return Excerpt(cut(written(stream.exchange.body, event.place), _LONGEST_WHOLE))
    shown = neighbourhood(event.data, pointer, _beside(stream, event, pointer), actual)
    if event.place.event is None:
        return shown
    mark = None if shown.mark is None else (shown.mark[0] + len(_DATA), shown.mark[1] + len(_DATA))
    return Excerpt(_DATA + shown.text, mark)


def excerpt_at(stream: Stream, place: Place, actual: Any = None) -> Excerpt:
    """Return the excerpt of the event that a place is in, or of the document."""
    index = place.event or 0
    if index >= len(stream.events) or stream.events[index].place.event != place.event:
        return Excerpt(written(stream.exchange.body, place))
    return excerpt(stream, stream.events[index], place.pointer, actual)


# The event as indented JSON.


def indented(document: Any, pointer: str) -> Excerpt:
    """Return a document as indented JSON, shortened away from the pointer's path, with the value marked.

    If nothing is there, the mark is on the last existing value of the path.
    """
    keys = parse(pointer) if not pointer or pointer.startswith("/") else ()
    while keys and find(document, keys) is ABSENT:
        keys = keys[:-1]
    return _joined(_lines(document, keys, ""))


def _brief(value: Any, longest: int = _LONGEST_NAMED) -> str:
    return inert(cut(json.dumps(value, ensure_ascii=False, default=str), longest))


def _lines(value: Any, keys: Keys, indent: str) -> Iterator[str]:
    """Yield the text of a value with the value at `keys` marked. A list is shown only near that entry."""
    is_list = not isinstance(value, dict)
    members = list(enumerate(value) if is_list else value.items()) if keys or not is_list else []
    if not members:
        yield _brief(value)
        return
    chosen = next((n for n, (key, _) in enumerate(members) if keys and str(key) == keys[0]), None)
    part = slice(0, _MOST_MEMBERS)
    if chosen is not None and (is_list or chosen >= _MOST_MEMBERS):
        part = slice(max(0, chosen - _NEIGHBOURS), chosen + 1 + _NEIGHBOURS)
    yield "[\n" if is_list else "{\n"
    inner = indent + "  "
    if part.start:
        yield f"{inner}… {part.start} before\n"
    for number, (key, member) in list(enumerate(members))[part]:
        yield inner if is_list else f"{inner}{inert(json.dumps(str(key), ensure_ascii=False))}: "
        if number != chosen:
            yield _brief(member)
        elif len(keys) == 1:
            yield _Marked(_brief(member, _LONGEST_MARKED))
        else:
            yield from _lines(member, keys[1:], inner)
        yield ",\n" if number + 1 < len(members) else "\n"
    if part.stop < len(members):
        yield f"{inner}… {len(members) - part.stop} more\n"
    yield indent + ("]" if is_list else "}")
