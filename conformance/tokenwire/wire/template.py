"""Events of a stream that are alike but for a few values, read all at once.

Some events of a stream make a template: the bytes that all of them have, and holes where their values
differ. What fills a hole is balanced and has no comma outside of its brackets: it is one value, or no JSON.
So if all that fills one hole, parsed as one array, is strict JSON, then each event that fits is: its values
are those of the template and of its holes, and an object has all its keys from one of the two. An event that
does not fit is left to be read by itself.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, compress, count, repeat
from operator import add
from typing import Any, NamedTuple, overload

from tokenwire.wire import strict_json
from tokenwire.wire.event_stream import BLANK_LINE, DATA, decodable, plain_data
from tokenwire.wire.json_pointer import Keys, find

FEWEST = 256
"""So many events are worth a template: to make one takes as long as to read a hundred events."""
_LARGEST = 4096
"""Bytes of an event, on average; in larger ones, what differs is most of it."""
_SAMPLES = 16
_DEEPEST = 16
"""Arrays and objects inside each other, in an event that is worth a template."""

_PLAIN = rb'[^"\\\x00-\x1f]*+'
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
_STRING = rb'(?:"%b"|"%b(?:%b%b)+")' % (_PLAIN, _PLAIN, _ESCAPE, _PLAIN)
"""A string, but for one that escapes a surrogate: the fast parser knows no lone ones. Most escape nothing."""
_LITERAL = rb"[-+.0-9A-Za-z]++"
"""A number, null, true or false, or no JSON."""
_LITERALS = rb"[-+.0-9A-Za-z, ]*+"
_FLAT = rb"\[%b\]" % _LITERALS, rb"\[%b(?:%b%b)*\]" % (_LITERALS, _STRING, _LITERALS)
"""A list of them; and of strings, too."""
_FEW = 8
"""Entries of a list that are told one by one in a pattern."""
_TOKEN = re.compile(rb'[ \t]*(?:"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^ \t"\[\]{}:,]+)')

Holes = int | dict[str, "Holes"]
"""The holes of a value: the number of the one that it is, or those in its members, by key or position."""


def hole_at(holes: Holes | None, keys: Keys) -> tuple[Holes | None, Keys]:
    """The holes at a place, None where all is constant; or the hole that it is in, and the way on there."""
    for at, key in enumerate(keys):
        if not isinstance(holes, dict):
            return holes, keys[at:]
        holes = holes.get(key)
    return holes, ()


@dataclass(frozen=True)
class Template:
    """What events have in common."""

    model: Any
    """The value of one of the events that it was made of."""
    holes: dict[str, Holes]
    pattern: re.Pattern[bytes]
    """Finds events that fit, with the blank line behind each; a group for each hole."""
    numeric: tuple[bool, ...]
    """Whether something else than strings may fill a hole."""
    size: int
    """Bytes of an event that fits, but for what fills the holes."""

    @classmethod
    def of(cls, texts: Sequence[bytes], values: Sequence[Any]) -> Template | None:
        """The template of the data of some events; None if they are no objects, do not differ or are deep."""
        forms = [_form(value) for value in values]
        form, _ = Counter(forms).most_common(1)[0]
        model = forms.index(form)
        if any(_depth(value) > _DEEPEST for value in values):
            return None
        writer = _Writer(texts[model])
        holes = writer.write([value for value, own in zip(values, forms, strict=True) if own == form])
        if not isinstance(holes, dict):
            return None
        pattern = re.compile(b"".join((DATA, *writer.parts, BLANK_LINE)))
        return cls(values[model], holes, pattern, tuple(writer.numeric), writer.size)


def _form(value: Any, depth: int = 0) -> object:
    """Equal for values that have the same keys, in the same order, and null in the same places."""
    if isinstance(value, dict):
        return (*value, *(_form(one, depth + 1) for one in value.values()))
    return _form(value[0], depth + 1) if _is_choice(value, depth) else value is None


def _is_choice(value: Any, depth: int) -> bool:
    """Whether a value is the list of the one choice of an event."""
    return depth == 1 and isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)


def _depth(value: Any) -> int:
    """How many arrays and objects stand inside each other."""
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


class _Writer:
    """Goes through a text token by token, and writes the pattern of those that are like it."""

    def __init__(self, text: bytes) -> None:
        self._tokens: Iterator[bytes] = iter(_TOKEN.findall(text))
        self.parts: list[bytes] = []
        self.size = len(DATA) + len(BLANK_LINE)
        self.numeric: list[bool] = []

    def write(self, values: Sequence[Any], depth: int = 0) -> Holes | None:
        """Write what several texts say at one place; the first value is that of the text."""
        first = values[0]
        if all(one == first for one in values):
            self._keep(*self._value())
            return None
        within: dict[str, list[Any]] = {}
        if all(isinstance(one, dict) for one in values):  # of one form
            within = {key: [one[key] for one in values] for key in first}
        elif all(_is_choice(one, depth) for one in values):
            within = {"0": [one[0] for one in values]}
        if not within:
            return self._hole(values)
        holes: dict[str, Holes] = {}
        for key, every in within.items():
            before = 3 if isinstance(first, dict) else 1  # a bracket or a comma, the key and a colon
            self._keep(*(next(self._tokens) for _ in range(before)))
            own = self.write(every, depth + 1)
            if own is not None:
                holes[key] = own
        self._keep(next(self._tokens))
        return holes

    def _keep(self, *tokens: bytes) -> None:
        self.parts += map(re.escape, tokens)
        self.size += sum(map(len, tokens))

    def _value(self) -> Iterator[bytes]:
        """The tokens of the next value."""
        depth = 0
        for token in self._tokens:
            yield token
            depth += (token[-1:] in b"{[") - (token[-1:] in b"}]")
            if not depth:
                return

    def _hole(self, values: Sequence[Any]) -> int:
        begin, *_ = self._value()
        self._keep(begin[: len(begin) - len(begin.lstrip())])
        self.parts.append(b"(%b)" % _pattern(values))
        self.numeric.append(not all(isinstance(one, str) for one in values))
        return len(self.numeric) - 1


def _pattern(values: Sequence[Any]) -> bytes:
    """What fits one value that is like some others: balanced, and with no comma outside of brackets."""
    strings = [one for one in values if isinstance(one, str)]
    lists = [one for one in values if isinstance(one, list)]
    objects = [one for one in values if isinstance(one, dict)]
    patterns = [_STRING] if strings else []
    if lists:
        patterns.append(_pattern_of_lists(lists))
    if objects:
        held = _pattern([value for one in objects for value in one.values()])
        patterns.append(rb"\{(?:%b: ?%b%b)*\}" % (_STRING, held, rb"(?:, ?|(?=\}))"))
    if len(strings) + len(lists) + len(objects) < len(values):
        patterns.append(_LITERAL)
    return patterns[0] if len(patterns) == 1 else b"(?:%b)" % b"|".join(patterns)


def _pattern_of_lists(lists: Sequence[list[Any]]) -> bytes:
    entries = list(chain.from_iterable(lists))
    if 0 < len(lists[0]) <= _FEW and len(set(map(len, lists))) == 1:
        written = b""
        for every in zip(*lists, strict=True):
            if not any(isinstance(one, (str, list, dict)) for one in every):
                written += b"" if written.endswith(_LITERALS) else _LITERALS  # and the commas around them
            else:
                written += b", ?" if written and not written.endswith(_LITERALS) else b""
                written += _pattern(every)
        return rb"\[%b\]" % written
    if any(isinstance(one, (list, dict)) for one in entries):
        return rb"\[(?:%b%b)*\]" % (_pattern(entries), rb"(?:, ?|(?=\]))")
    return _FLAT[any(isinstance(one, str) for one in entries)]


class Stretch(NamedTuple):
    """Events that fit a template, and those behind them that do not: from and to which of either kind."""

    begin: int
    end: int
    others_begin: int
    others_end: int


@dataclass(frozen=True)
class Fitted:
    """The events of a body, most of which fit a template."""

    template: Template
    columns: tuple[list[Any], ...]
    """The values that fill each hole, event by event."""
    stretches: tuple[Stretch, ...]
    others: tuple[bytes, ...]
    """The data of the events that do not fit."""
    ends: tuple[int, ...]
    """Of all events, the offsets behind their blank lines."""

    @property
    def others_at(self) -> list[int]:
        """Which of all events those are."""
        return [one.end + at for one in self.stretches for at in range(one.others_begin, one.others_end)]


def fit(body: bytes) -> Fitted | None:
    """The events of a body, if most of them fit a template; None for every other body, and where what fills a
    hole is not strict JSON beyond doubt.
    """
    total = body.count(b"\n") // len(BLANK_LINE)
    if total < FEWEST or len(body) > _LARGEST * total or b"\r" in body or not decodable(body):
        return None
    template = _template(body)
    if template is None:
        return None
    parts = template.pattern.split(body)
    groups = len(template.numeric) + 1
    between = parts[::groups]
    if len(between) * 2 < total:
        return None
    columns: list[list[Any]] = []
    sizes: Iterable[int] = repeat(template.size)
    for hole, numeric in enumerate(template.numeric, 1):
        texts = parts[hole::groups]
        column = strict_json.loads_column(texts, numbers=numeric)
        if column is None:
            return None
        columns.append(column)
        sizes = map(add, sizes, map(len, texts))
    stretches: list[Stretch] = []
    others: list[bytes] = []
    begin = 0
    for at in (*compress(count(), between[:-1]), len(between) - 1):
        plain = plain_data(between[at]) if between[at] else []
        if plain is None:
            return None
        stretches.append(Stretch(begin, at, len(others), len(others) + len(plain)))
        others += plain
        begin = at
    around = len(DATA) + len(BLANK_LINE)
    ends = accumulate(_merged(stretches, list(sizes), [len(text) + around for text in others]))
    return Fitted(template, tuple(columns), tuple(stretches), tuple(others), tuple(ends))


def _merged(stretches: Iterable[Stretch], alike: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """One for each event, in order."""
    merged: list[Any] = []
    for begin, end, others_begin, others_end in stretches:
        merged += alike[begin:end]
        merged += others[others_begin:others_end]
    return merged


def _template(body: bytes) -> Template | None:
    """The template of some events, evenly spread over a body."""
    texts = []
    for at in range(0, len(body), len(body) // _SAMPLES + 1):
        begin = body.find(BLANK_LINE + DATA, at) + len(BLANK_LINE + DATA)
        text = body[begin : body.find(BLANK_LINE, begin)]
        if b"\n" not in text:
            texts.append(text)
    read = zip(texts, strict_json.loads_each(texts, b"\n".join(texts)), strict=True)
    objects = [(text, value) for text, value in read if isinstance(value, dict)]
    return Template.of(*zip(*objects, strict=True)) if objects else None


class Made(Sequence[Any]):
    """A sequence whose members are made when they are looked at."""

    def __init__(self, size: int, make: Callable[[int], Any]) -> None:
        self._size = size
        self._make = make

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Made: ...
    def __getitem__(self, at: int | slice) -> Any:
        which = range(self._size)[at]
        return self._make(which) if isinstance(which, int) else chosen(self, which)

    def __len__(self) -> int:
        return self._size


def chosen(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """Some members of a sequence, made when they are looked at where all are."""
    if isinstance(column, Made):
        return Made(len(rows), lambda at: column[rows[at]])
    return [column[at] for at in rows]


def joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Sequences one behind the other."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    if not any(isinstance(part, Made) for part in parts):
        return list(chain.from_iterable(parts))
    ends = list(accumulate(map(len, parts)))

    def pick(at: int) -> Any:
        part = bisect_right(ends, at)
        return parts[part][at - ends[part]]  # counted from its end

    return Made(ends[-1], pick)


class Alike(Sequence[Any]):
    """The values of events of which most fit a template, each made when it is looked at."""

    def __init__(self, fitted: Fitted, others: Sequence[Any]) -> None:
        """`others`: the values of the events that do not fit."""
        self._fitted = fitted
        self._others = others
        self._places: dict[Keys, Sequence[Any]] = {}

    @property
    def template(self) -> Template:
        return self._fitted.template

    @cached_property
    def models(self) -> list[Any]:
        """The values, with the same model for all that fit."""
        return _merged(self._fitted.stretches, [self.template.model] * self._alike, self._others)

    @cached_property
    def _alike(self) -> int:
        """How many fit."""
        return self._fitted.stretches[-1].end

    @cached_property
    def _order(self) -> list[int]:
        """For each event which it is of those that fit, or, negative, of the others."""
        return _merged(self._fitted.stretches, range(self._alike), [~at for at in range(len(self._others))])

    def at(self, keys: Keys) -> Sequence[Any]:
        """What stands at a place in each event, or `ABSENT`; objects with holes are made when looked at."""
        known = self._places.get(keys)
        if known is None:
            known = self._at(keys)
            if not isinstance(known, Made):  # that would point back, and keep all of this
                self._places[keys] = known
        return known

    def _at(self, keys: Keys) -> Sequence[Any]:
        holes, within = hole_at(self.template.holes, keys)
        if isinstance(holes, dict):
            return Made(len(self), lambda at: find(self[at], keys))
        if holes is None:
            alike: Sequence[Any] = [find(self.template.model, keys)] * self._alike
        else:
            column = self._fitted.columns[holes]
            alike = [find(value, within) for value in column] if within else column
        return _merged(self._fitted.stretches, alike, [find(value, keys) for value in self._others])

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        row = self._order[at]
        return self._others[~row] if row < 0 else self._filled(self.template.model, self.template.holes, row)

    def _filled(self, model: Any, holes: Holes, row: int) -> Any:
        if isinstance(holes, int):
            return self._fitted.columns[holes][row]
        if isinstance(model, dict):
            return {
                key: self._filled(one, holes[key], row) if key in holes else one for key, one in model.items()
            }
        return [
            self._filled(one, holes[str(at)], row) if str(at) in holes else one
            for at, one in enumerate(model)
        ]

    def __len__(self) -> int:
        return len(self._order)
