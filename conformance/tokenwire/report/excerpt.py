"""Short excerpts of an event: the value at a pointer, its surroundings, and the tokens in the same event."""

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
"""The number of list entries that are shown before and after the marked one, in indented JSON."""
_AROUND = 10
"""The number of characters or list entries that are shown before and after the marked part."""
_TOKENS = ("output_ids", "text")
"""Fields with tokens.

If the marked value is another field, the first of these fields that the event has is shown as well.
"""
_INDEX = "index"
_DATA = "data: "


@dataclass(frozen=True)
class Excerpt:
    """A part of an event, as text."""

    text: str
    mark: tuple[int, int] | None = None
    """The range of the marked value in `text`. None if the event does not have the value."""

    @property
    def parts(self) -> tuple[str, str, str]:
        """Return the text before the marked part, the marked part, and the text after it."""
        start, end = self.mark or (len(self.text), len(self.text))
        return self.text[:start], self.text[start:end], self.text[end:]


class _Marked(str):
    """A piece of text that is to be marked."""

    __slots__ = ()


def _joined(pieces: Iterable[str]) -> Excerpt:
    text, mark = "", None
    for piece in pieces:
        if isinstance(piece, _Marked):
            mark = (len(text), len(text) + len(piece))
        text += piece
    return Excerpt(text, mark)


def _dumped(value: Any) -> str:
    """Return a value as compact JSON, with control characters escaped."""
    return inert(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _entry(entries: list[Any], actual: Any) -> list[str]:
    """Return the neighbourhood of the entry that equals `actual`, as pieces with the entry marked.

    Return an empty list unless exactly one entry equals `actual`.
    """
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
    """Return the neighbourhood of `actual` in a long text, as pieces with `actual` marked.

    Return an empty list unless `actual` occurs exactly once.
    """
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
    """Return the pieces of a value, with the value marked.

    If a list or a long text contains `actual`, only `actual` is marked.
    """
    pieces: list[str] = []
    if isinstance(value, list):
        pieces = _entry(value, actual)
        if not pieces and isinstance(actual, list) and len(actual) == 1:  # an entry that is not itself a list
            pieces = _entry(value, actual[0])
    elif isinstance(value, str) and isinstance(actual, str) and len(value) > _LONGEST_NAMED:
        pieces = _text(value, actual)
    return pieces or [_Marked(cut(_dumped(value), _LONGEST_NAMED))]


def _line(
    value: Any, here: Keys, marked: Keys | None, beside: Collection[Keys], actual: Any
) -> Iterator[str]:
    """Yield a value as one line of JSON.

    The values at the pointers `marked` and `beside` are shown. All other values are replaced by an ellipsis.
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
    """Return an excerpt of an event's data with the values at `pointer` (marked) and `beside`.

    `actual`: the wrong part of a long text or list. Only its surroundings are shown.
    """
    keys = parse(pointer)
    there = bool(keys) and find(data, keys) is not ABSENT
    others = {other for way in beside if (other := parse(way)) and find(data, other) is not ABSENT} - {keys}
    if not there and not others:
        return Excerpt(cut(_dumped(data), _LONGEST_WHOLE))
    return _joined(_line(data, (), keys if there else None, others, actual))


def _beside(stream: Stream, event: Event, pointer: str) -> list[str]:
    """Return the pointers of the tokens in the choice to which `pointer` leads, if the event has tokens.

    If the answer has several choices, the result also has the pointer of the choice's index.
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
    """Return the bytes of an event as text, shortened."""
    end = min(place.end, place.start + 4 * _LONGEST_WRITTEN)
    text = body[place.start : end].decode(errors="replace").rstrip("\r\n")
    return text if len(text) <= _LONGEST_WRITTEN and end == place.end else text[:_LONGEST_WRITTEN] + "…"


def excerpt(stream: Stream, event: Event, pointer: str, actual: Any = None) -> Excerpt:
    """Return an excerpt of an event, or of a JSON document."""
    if not isinstance(event.data, dict | list):  # the end mark, or data that is not a JSON document
        return Excerpt(cut(written(stream.exchange.body, event.place), _LONGEST_WHOLE))
    shown = neighbourhood(event.data, pointer, _beside(stream, event, pointer), actual)
    if event.place.event is None:
        return shown
    mark = None if shown.mark is None else (shown.mark[0] + len(_DATA), shown.mark[1] + len(_DATA))
    return Excerpt(_DATA + shown.text, mark)


def excerpt_at(stream: Stream, place: Place, actual: Any = None) -> Excerpt:
    """Return an excerpt of the event (or the JSON document) to which a place belongs."""
    index = place.event or 0
    if index >= len(stream.events) or stream.events[index].place.event != place.event:
        return Excerpt(written(stream.exchange.body, place))
    return excerpt(stream, stream.events[index], place.pointer, actual)


# The following functions render an event as indented JSON.


def indented(document: Any, pointer: str) -> Excerpt:
    """Return a document as indented JSON, with the value at a pointer marked. Values off the path are
    shortened.

    If the document does not have this value, the last existing value on the path is marked.
    """
    keys = parse(pointer) if not pointer or pointer.startswith("/") else ()
    while keys and find(document, keys) is ABSENT:
        keys = keys[:-1]
    return _joined(_lines(document, keys, ""))


def _brief(value: Any, longest: int = _LONGEST_NAMED) -> str:
    return inert(cut(json.dumps(value, ensure_ascii=False, default=str), longest))


def _lines(value: Any, keys: Keys, indent: str) -> Iterator[str]:
    """Yield the text of a value as indented JSON, with the value at `keys` marked.

    A list on the way is shown only around the marked entry.
    """
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
