"""Compares two answers to the same request: their status, fields, output, values and events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from itertools import zip_longest
from typing import Any

from tokenwire.checks.about import ended
from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.chance import DRIFT, entries_go_apart, goes_apart
from tokenwire.checks.reading.channels import CALLED, CHANNEL_WORDS, Channels
from tokenwire.checks.reading.channels import differences as channel_differences
from tokenwire.checks.reading.fields import bringing, start_place, told_prompt
from tokenwire.checks.reading.json_fields import fields_of, is_of_the_cache, lost, told_by
from tokenwire.checks.same_answers import COUNTERS, same_finish, same_ids, same_text
from tokenwire.dialects.dialect import dialect_of
from tokenwire.judging.failure_kind import lasting_words
from tokenwire.record import Choice, Place, Stream
from tokenwire.report.excerpt import written
from tokenwire.report.wording import clause, cut, value
from tokenwire.target.alike import alike, known_by
from tokenwire.target.determinism import Comparison
from tokenwire.typed_table import counted
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest
from tokenwire.wire.json_pointer import join

_NAMES = frozenset({"model", "rid", "request_id"})
"""Request fields that may differ between two equal requests."""
ABORTING = frozenset(
    {"abort", "abort-in-the-queue", "abort-of-choices", "abort-of-everything", "abort-of-one"}
    | {"scheduled-aborts", "script-abort", "session-abort"}
)
"""Scenarios that abort their requests."""
RACING = frozenset({"id-in-use"})
"""Scenarios in which timing decides which of several requests succeeds."""
_OK = 200
_BROKEN = 500
_NOT_BUILT = 501
NO_ANSWER = "no answer"
_ABSENT = object()
_LONGEST_REASON = 120
_LONGEST_REQUEST = 240
_AROUND = 24
"""The number of characters that are shown before and after the first difference between two texts."""
_SHORT_WORD = 40
"""The length up to which a string value counts as a keyword of a protocol.

Such a keyword becomes part of the name of a family of differences.
"""


class Gravity(StrEnum):
    """The subjects of differences, the most serious first."""

    FAILED = "server errors"
    SERVED = "endpoints not served"
    REFUSED_B = "refused by B alone"
    REFUSED_A = "refused by A alone"
    PROMPT = "prompt ids"
    IDS = "output ids"
    TEXT = "text"
    CHANNELS = "channels"
    FINISH = "finish, usage"
    LOGPROBS = "logprobs"
    FIELDS = "other fields"
    ERRORS = "refusals"
    ROWS = "requirements"
    REMARKS = "remarks"


@dataclass(frozen=True)
class Difference:
    """A difference between two answers to the same request."""

    gravity: Gravity
    kind: str
    """The kind of value that differs: status, field, text, series, finish, counter, and others."""
    subject: str
    """The field, JSON pointer or series that differs; empty for the whole answer."""
    says: str
    """A description without numbers and names, so that it is equal for all differences of one family."""
    message: str
    exchange: str
    dialect: str
    key: str = ""
    """A key that is equal for requests with the same expected output, with and without streaming."""
    one: Place | None = None
    other: Place | None = None
    excerpts: tuple[str, str] = ("", "")
    """The values of both sides at the place of the difference, as text."""
    sizes: tuple[int, int] | None = None
    """The number of entries on each side, if the two numbers differ."""
    request: str = ""
    """The request in one line, for a server error."""

    @property
    def family(self) -> tuple[str, str, str]:
        return self.kind, self.subject, self.says

    @property
    def decides(self) -> bool:
        """True if the two answers count as different.

        Differences such as the number of events do not count.
        """
        return self.gravity is not Gravity.REMARKS


def _is_volatile(path: str, volatile: frozenset[str]) -> bool:
    """True if the value at a path differs even between two answers of one server."""
    name = path.rpartition("/")[2]
    return is_of_the_cache(path) or any(fnmatchcase(name, pattern) for pattern in volatile)


def body_of(request: HttpRequest) -> Any:
    """Return the body of a request, without the fields that may differ between equal requests."""
    body = request.body
    if request.raw_body is not None:
        try:
            body = strict_json.loads(request.raw_body.decode())
        except ValueError:
            return request.raw_body
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in _NAMES}


def _without_names(found: Any, stream: Stream) -> Any:
    """Replace names that the request contains, such as the model name, by the names of their fields."""
    body = stream.exchange.request.body
    if isinstance(found, str) and isinstance(body, dict):
        for name in sorted(_NAMES & body.keys()):
            if isinstance(body[name], str) and body[name]:
                found = found.replace(body[name], name)
    return found


def _parting(
    first: Any,
    second: Any,
    volatile: frozenset[str] = frozenset(),
    path: str = "",
    tolerance: float | None = None,
) -> tuple[str, Any, Any] | None:
    """Return the first path at which two JSON values differ by more than rounding, with both values at this
    path. Volatile fields are ignored. Return None if the values are equal.
    """
    if volatile and _is_volatile(path, volatile):
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs: Iterator[tuple[object, Any, Any]] = (
            (name, first.get(name, _ABSENT), second.get(name, _ABSENT)) for name in {**first, **second}
        )
    elif isinstance(first, list) and isinstance(second, list):
        entries = zip_longest(first, second, fillvalue=_ABSENT)
        pairs = ((index, ours, theirs) for index, (ours, theirs) in enumerate(entries))
    else:
        same = alike(first, second) if tolerance is None else alike(first, second, tolerance)
        return None if same else (path, first, second)
    for key, ours, theirs in pairs:
        found = _parting(ours, theirs, volatile, path + join(key), tolerance)
        if found is not None:
            return found
    return None


def asked_otherwise(first: Stream, second: Stream) -> tuple[str, Any, Any] | None:
    """Return the first path at which two requests differ, with the value in each request.

    None if the requests are equal.
    """
    return _parting(body_of(first.exchange.request), body_of(second.exchange.request))


def _words(thing: Any) -> str:
    return "nothing" if thing is _ABSENT else value(thing)


@dataclass(frozen=True)
class _Pair:
    """Two answers to requests with the same exchange name."""

    both: Comparison
    names: tuple[str, str]
    """The names of both sides, for messages."""
    volatile: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        dialects = map(dialect_of, (self.both.baseline, self.both.other))
        names = frozenset(name for dialect in dialects if dialect is not None for name in dialect.volatile)
        object.__setattr__(self, "volatile", names)

    @property
    def first(self) -> Stream:
        return self.both.baseline

    @property
    def second(self) -> Stream:
        return self.both.other

    @property
    def source(self) -> str:
        return self.names[0]

    def differs(
        self,
        gravity: Gravity,
        family: tuple[str, str, str],
        message: str = "",
        places: tuple[Place | None, Place | None] = (None, None),
    ) -> Difference:
        """Return a difference. `family`: its kind, its subject and its description."""
        name, dialect = self.first.exchange.name, self.second.dialect
        key = self.first.asked.key or name
        return Difference(gravity, *family, message or family[-1], name, dialect, key, *places)

    def in_sides(self, ours: str, theirs: str) -> str:
        return f"{ours} in {self.names[0]}, {theirs} in {self.names[1]}"

    def longer(self, ours: Sized, theirs: Sized) -> str:
        """Return the name of the side with the longer value."""
        return self.names[len(ours) < len(theirs)]

    def may_differ(self, seen: Observation) -> bool:
        """True if an observation is a difference that chance does not explain."""
        return not seen.holds and (self.both.steady or not seen.by_chance)


# Status.


def _reason(stream: Stream) -> str:
    """Return the error message of a refusal, or the way in which a connection ended without an answer."""
    if stream.exchange.status is None:
        return _no_answer(stream.exchange)
    error = stream.error
    found = [
        held
        for path, held in fields_of(error)
        if path.rpartition("/")[2] in {"message", "detail", "msg"} and isinstance(held, str)
    ]
    words = found[0] if found else stream.exchange.body[:_LONGEST_REASON].decode(errors="replace")
    return " ".join(words.split())


def _no_answer(exchange: Exchange) -> str:
    """Describe how a connection ended without an answer."""
    match exchange.ending:
        case Ending.TIMEOUT:
            return f"the time limit was reached after {exchange.duration:.0f} s"
        case Ending.UNREACHABLE:
            return "the connection failed"
        case _:
            return "the connection was closed"


def _left_early(stream: Stream) -> bool:
    """True if the suite closed the connection before an answer began."""
    exchange = stream.exchange
    return exchange.status is None and exchange.ending in {Ending.HUNG_UP, Ending.CANCELLED}


def _request_line(stream: Stream) -> str:
    """Return the method and the path of a request, and the names of its fields."""
    request = stream.exchange.request
    body = body_of(request)
    fields = f" with {', '.join(body)}" if isinstance(body, dict) and body else ""
    return cut(f"{request.method} {request.path}{fields}", _LONGEST_REQUEST)


def _did(label: str, status: int | None) -> str:
    """Describe the answer of a side by its status."""
    if status == _OK:
        return f"{label} answers"
    if status is None:
        return f"{label} does not answer"
    return f"{label} {'fails' if _broken(status) else 'refuses'} with {status}"


def _broken(status: int | None) -> bool:
    """True if a status is a server error (5xx), or if there was no answer."""
    return status is None or (status >= _BROKEN and status != _NOT_BUILT)


def _answer_in_words(stream: Stream) -> str:
    status = stream.exchange.status
    return NO_ANSWER if status is None else str(status)


def _statuses(pair: _Pair) -> Iterator[Difference]:
    sides = pair.first, pair.second
    words = pair.in_sides(*map(_answer_in_words, sides))
    refusing = [stream for stream in sides if stream.exchange.status != _OK]
    reason = _reason(refusing[-1])
    gravity = Gravity.ERRORS
    if len(refusing) == 1:
        gravity = Gravity.REFUSED_A if refusing[0] is pair.first else Gravity.REFUSED_B
    if _broken(sides[0].exchange.status) != _broken(sides[1].exchange.status):
        gravity = Gravity.FAILED
    lasting = cut(lasting_words(reason), _LONGEST_REASON)
    says = f"{words}: {lasting}" if lasting else words
    did = ", ".join(_did(*side) for side in zip(pair.names, (s.exchange.status for s in sides), strict=True))
    silent = refusing[-1].exchange.status is None
    speaker = pair.names[refusing[-1] is pair.second]
    quoted = value(reason) if silent else f"{speaker} says: {value(reason)}"
    message = f"{did}: {quoted}" if reason else did
    places = start_place(pair.first), start_place(pair.second)
    found = pair.differs(gravity, ("status", "", says), message, places)
    yield replace(found, request=_request_line(pair.first)) if gravity is Gravity.FAILED else found


# Fields.

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


def _gravity_of(path: str, record: Mapping[str, Gravity], pair: _Pair) -> Gravity:
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


def _fields(pair: _Pair, *, parts: bool) -> Iterator[Difference]:
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


# The record.


def _prompts(pair: _Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
    told = told_prompt(ours), told_prompt(theirs)
    counts = ours.counter("prompt_tokens"), theirs.counter("prompt_tokens")
    if told[0] and told[1] and told[0][1] != told[1][1]:
        ids = told[0][1], told[1][1]
        position = first_difference(*ids) or 0
        message = f"from prompt id {position}: {pair.in_sides(*(_ids_from(side, position) for side in ids))}"
        places = told[0][0], told[1][0]
        yield pair.differs(Gravity.PROMPT, ("prompt ids", "", "differ"), message, places)
    elif None not in counts and counts[0] != counts[1]:
        message = pair.in_sides(str(counts[0]), str(counts[1]))
        places = ours.last_at("prompt_tokens"), theirs.last_at("prompt_tokens")
        yield pair.differs(Gravity.PROMPT, ("counter", "prompt_tokens", "differs"), message, places)


def _ids_from(ids: Sequence[int], position: int) -> str:
    return value(list(ids[position : position + 8]))


def _text_around(text: str, position: int) -> str:
    """Return the part of a text around a position, in quotes."""
    start = max(0, position - _AROUND)
    part = text[start : position + _AROUND]
    before, after = "…" * (start > 0), "…" * (position + _AROUND < len(text))
    return json.dumps(f"{before}{part}{after}", ensure_ascii=False)


def _parted(pair: _Pair, ours: Choice, theirs: Choice) -> str:
    """Describe the first difference between two outputs, with the content of each side at the difference.

    Empty if the outputs are equal.
    """
    ids, others = ours.output_ids, theirs.output_ids
    if ids is not None and others is not None and ids != others:
        position = first_difference(ids, others) or 0
        words = pair.in_sides(_ids_from(ids, position), _ids_from(others, position))
        return f"from output id {position}: {words}"
    text, other = ours.text, theirs.text
    if text is not None and other is not None and text != other:
        position = first_difference(text, other) or 0
        words = pair.in_sides(_text_around(text, position), _text_around(other, position))
        return f"from character {position}: {words}"
    return ""


def _observed(
    pair: _Pair,
    gravity: Gravity,
    family: tuple[str, str, str],
    seen: Iterator[Observation],
    message: str = "",
) -> Iterator[Difference]:
    for found in seen:
        if pair.may_differ(found):
            related = found.related[0] if found.related else None
            yield pair.differs(gravity, family, message or clause(found), (related, found.place))


def _filled(channels: Channels) -> list[str]:
    """Describe which channels are not empty."""
    held = {"reasoning": channels.reasoning.strip(), "text": channels.content.strip(), CALLED: channels.calls}
    return [CHANNEL_WORDS[name] for name, content in held.items() if content]


def _all_text(channels: Channels) -> str:
    calls = "".join(f"{call.name}{call.arguments}" for call in channels.calls)
    return "".join(f"{channels.reasoning}{channels.content}{calls}".split())


def _held(content: Any) -> str:
    """Describe the content of a channel."""
    return cut(json.dumps(content, ensure_ascii=False, default=list), 3 * _AROUND)


def _channels(pair: _Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
    """Yield a difference if the two sides divide the same output differently into channels."""
    both = Channels.of(pair.first, ours), Channels.of(pair.second, theirs)
    found = [difference for difference in channel_differences(*both) if difference.channel != "finish"]
    if not found:
        return
    chance = (
        ours.output_ids is None and _all_text(both[0]) != _all_text(both[1]) and goes_apart((ours, theirs))
    )
    if chance and not pair.both.steady:
        return
    held = [_filled(channels) for channels in both]
    message = "; ".join(
        f"{CHANNEL_WORDS[channel]} {pair.in_sides(_held(mine), _held(yours))}"
        for channel, mine, yours in ((part.channel, part.expected, part.actual) for part in found)
    )
    places = tuple(channels.place(found[0].channel) for channels in both)
    if held[0] != held[1]:
        words = [" and ".join(names) or "nothing" for names in held]
        says = f"{words[0]} in {pair.names[0]}, {words[1]} in {pair.names[1]}"
        if all(len(names) == 1 for names in held):
            says = f"the whole text is {words[0]} in {pair.names[0]} and {words[1]} in {pair.names[1]}"
            if _all_text(both[0]) != _all_text(both[1]):
                says += ", and the texts differ"
    else:
        says = f"other {' and '.join(CHANNEL_WORDS[difference.channel] for difference in found)}"
    yield pair.differs(Gravity.CHANNELS, ("channels", "", says), message, (places[0], places[1]))


def _type_name(thing: Any) -> str:
    match thing:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def _key(pointer: str) -> str:
    """Return the last member of a pointer, in quotes."""
    return json.dumps(pointer.removeprefix("/").replace("~1", "/").replace("~0", "~"), ensure_ascii=False)


@dataclass(frozen=True)
class _Way:
    """A kind of difference between two entries of a series."""

    path: str
    """The field of the entry that differs; empty for the whole entry."""
    says: str
    message: str
    sizes: tuple[int, int] | None = None


def _numbers(sizes: tuple[int, int], path: str, pair: _Pair) -> str:
    """Describe the numbers of entries of two lists, and the requested number if it is known.

    `path`: the series, and the field of its entry.
    """
    if not path.endswith("top_logprobs"):
        return pair.in_sides(counted(sizes[0], "entry"), str(sizes[1]))
    asked = pair.first.asked
    requested = f"; {counted(asked.top_logprobs, 'top candidate')} requested" if asked.logprobs else ""
    return pair.in_sides(counted(sizes[0], "candidate"), str(sizes[1])) + requested


def _ways(ours: Any, theirs: Any, pair: _Pair, series: str, path: str = "") -> Iterator[_Way]:
    """Yield each difference between two entries of a series, with the value of each side."""
    if alike(ours, theirs, DRIFT):
        return
    named = isinstance(ours, Mapping) and "logprob" in ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and named:
        for name in {**ours, **theirs}:
            if name not in ours or name not in theirs:
                says = f"only in {pair.names[name not in ours]}"
                yield _Way(f"{path}{join(name)}", says, value((theirs if name not in ours else ours)[name]))
            else:
                yield from _ways(ours[name], theirs[name], pair, series, f"{path}{join(name)}")
    elif isinstance(ours, list | Mapping) and isinstance(theirs, type(ours)):
        sizes = len(ours), len(theirs)
        if sizes[0] != sizes[1]:
            message = _numbers(sizes, f"{series}{path}", pair)
            yield _Way(path, f"more in {pair.longer(ours, theirs)}", message, sizes)
        else:
            found = _parting(ours, theirs, tolerance=DRIFT)
            inner, first, second = found if found is not None else ("", ours, theirs)
            place = f"{_key(inner) if isinstance(ours, Mapping) else inner.lstrip('/')}: " if inner else ""
            yield _Way(path, "other values", place + pair.in_sides(_words(first), _words(second)))
    elif type(ours) is not type(theirs) and not all(isinstance(side, int | float) for side in (ours, theirs)):
        message = pair.in_sides(value(ours), value(theirs))
        yield _Way(path, pair.in_sides(_type_name(ours), _type_name(theirs)), message)
    elif isinstance(ours, str) and not (ours and theirs):
        says = f"empty in {pair.names[bool(ours)]}"
        yield _Way(path, says, pair.in_sides(value(ours), value(theirs)))
    else:
        yield _Way(path, "other values", pair.in_sides(value(ours), value(theirs)))


def _series(pair: _Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
    """Yield the differences between the series of two choices with the same ids, one for each kind of
    difference.
    """
    customized = ours.customized & theirs.customized
    for name in sorted(ours.series_names & theirs.series_names):
        one, other = ours.series(name), theirs.series(name)
        rounding = pair.both.noise.rounding(pair.second, name)
        if one is None or other is None or (rounding > DRIFT and name not in customized):
            continue
        entries = one, other
        same = partial(alike, tolerance=rounding)
        ways: dict[tuple[str, str], tuple[int | None, _Way]] = {}
        if len(entries[0]) != len(entries[1]):
            message = f"{pair.in_sides(str(len(entries[0])), str(len(entries[1])))}"
            more = f"more entries in {pair.longer(*entries)}"
            ways["", more] = None, _Way("", more, message)
        for position, (first, second) in enumerate(zip(*entries, strict=False)):
            if first is second or same(first, second):
                continue
            if not pair.both.steady and entries_go_apart((ours, theirs), position, entries):
                continue
            for way in _ways(first, second, pair, name):
                ways.setdefault((way.path, way.says), (position, way))
        for (path, says), (where, way) in ways.items():
            places = bringing(ours, name, where), bringing(theirs, name, where)
            message = way.message if where is None else f"entry {where}: {way.message}"
            found = pair.differs(Gravity.LOGPROBS, ("series", f"{name}{path}", says), message, places)
            yield replace(found, sizes=way.sizes)


def _finish(pair: _Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
    if ours.finish is None or theirs.finish is None:
        if ours.finish is not theirs.finish:
            says = f"only in {pair.names[ours.finish is None]}"
            places = ours.last_at("finish"), theirs.last_at("finish")
            yield pair.differs(Gravity.FINISH, ("finish", "", says), "", places)
        return
    types = ours.finish.type, theirs.finish.type
    says = pair.in_sides(*map(repr, types)) if types[0] != types[1] else "another stop is named"
    seen = same_finish((ours, theirs), pair.source)
    yield from _observed(pair, Gravity.FINISH, ("finish", "", says), seen)


def _record(pair: _Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
    """Yield the differences between two choices.

    If the output ids differ, the differences that follow from the ids are not yielded.
    """
    sides, apart = (ours, theirs), False
    for found in (
        *_prompts(pair, *sides),
        *_observed(
            pair,
            Gravity.IDS,
            ("output ids", "", "differ"),
            same_ids(sides, pair.source),
            _parted(pair, *sides),
        ),
    ):
        apart = True
        yield found
    if apart:
        return
    if ours.output_ids is not None and theirs.output_ids is not None and ours.output_ids != theirs.output_ids:
        return  # by chance
    if ours.parsed or theirs.parsed:
        yield from _channels(pair, *sides)
    else:
        seen = same_text(sides, pair.source)
        parted = _parted(pair, *sides)
        yield from _observed(pair, Gravity.TEXT, ("text", "", "differs"), seen, parted)
    yield from _finish(pair, *sides)
    yield from _series(pair, *sides)
    for counter in COUNTERS if pair.both.steady or not goes_apart(sides) else ():
        first, second = ours.counter(counter), theirs.counter(counter)
        if counter != "prompt_tokens" and first is not None and second is not None and first != second:
            places = ours.last_at(counter), theirs.last_at(counter)
            message = pair.in_sides(str(first), str(second))
            says = f"larger in {pair.names[first < second]}"
            yield pair.differs(Gravity.FINISH, ("counter", counter, says), message, places)


# The following functions compare values outside of the abstract record.


def _values(stream: Stream, volatile: frozenset[str]) -> dict[str, tuple[Any, Place]]:
    """Return the last value at each path outside of the abstract record, with the place of the value."""
    record = _record_paths(stream)
    last: dict[str, tuple[Any, Place]] = {}
    for event in stream.events:
        for path, found in fields_of(event.data):
            if not _is_volatile(path, volatile) and _within(path, record) is None:
                last[path] = (found, event.place)
    return last


def _is_word(thing: Any) -> bool:
    """True if a value is a keyword of a protocol, a boolean or null."""
    if isinstance(thing, str):
        return len(thing) <= _SHORT_WORD and not any(map(str.isdigit, thing))
    return thing is None or isinstance(thing, bool)


def _other_values(pair: _Pair) -> Iterator[Difference]:
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


def _events(pair: _Pair) -> Iterator[Difference]:
    """Yield a difference in the number of events.

    If the numbers are equal, yield the first event that differs.
    """
    ours, theirs = pair.first.events, pair.second.events
    if len(ours) != len(theirs):
        message = f"cut into {len(ours)} and {len(theirs)} events"
        yield pair.differs(Gravity.REMARKS, ("events", "", "another number of events"), message)
        return
    for one, other in zip(ours, theirs, strict=True):
        found = _parting(one.data, other.data, pair.volatile)
        if found is not None:
            path, was, became = found
            message = f"event {one.index}, {path or 'the whole'}: {_words(was)} and {_words(became)}"
            places = one.place, other.place
            yield pair.differs(Gravity.REMARKS, ("events", "", "other events"), message, places)
            return


def _was_aborted(stream: Stream) -> bool:
    return any(choice.finish is not None and choice.finish.type == "abort" for choice in stream.choices)


def _failed(stream: Stream) -> bool:
    return any(choice.finish is not None and choice.finish.failed for choice in stream.choices)


def shown(stream: Stream) -> int:
    """Return a key that is equal for answers with the same output, with and without streaming."""
    results = [
        (choice.index, choice.output_ids, choice.text, choice.reasoning, choice.finish and choice.finish.type)
        for choice in stream.choices
    ]
    return known_by(results)


def differences(both: Comparison, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield the differences between two answers to requests with the same exchange name.

    `names`: the names of the sides.
    """
    found = list(_differences(_Pair(both, names)))
    bodies = [side.exchange.body if found else b"" for side in (both.baseline, both.other)]
    for difference in found:
        ours, theirs = (
            "" if place is None else written(body, place)
            for body, place in zip(bodies, (difference.one, difference.other), strict=True)
        )
        yield replace(difference, excerpts=(ours, theirs))


def _differences(pair: _Pair) -> Iterator[Difference]:
    """Yield the differences between two answers.

    Values are compared only if both sides are deterministic and the requests are equal. Values that may
    differ by chance are compared only if each side always gave the same answer to this request. Differences
    that depend on timing do not count: the length of an aborted answer, an answer that began before the suite
    closed the connection, and the choice between two requests with the same id. If samples differ, their
    other fields are not compared.
    """
    first, second = pair.first, pair.second
    if first.exchange.scenario in RACING or _left_early(first) or _left_early(second):
        return
    asked = asked_otherwise(first, second)
    if asked is not None:
        says = f"asked differently at {asked[0] or 'the whole'}"
        message = f"{says}: {_words(asked[1])} and {_words(asked[2])}"
        yield pair.differs(Gravity.REMARKS, ("request", "", says), message)
    statuses = first.exchange.status, second.exchange.status
    if statuses[0] != statuses[1]:
        if asked is None:
            yield from _statuses(pair)
        return
    if not (ended(first) and ended(second)) and (first.answered or second.answered):
        return
    if first.exchange.scenario in ABORTING and (_was_aborted(first) or _was_aborted(second)):
        return
    if _failed(first) or _failed(second):
        return
    if asked is not None:
        return
    refused = not (first.answered and second.answered)
    if refused or pair.both.repeats or shown(first) == shown(second):
        yield from _fields(pair, parts=True)
    if not (pair.both.repeats or refused):
        return
    theirs = {choice.index: choice for choice in second.choices}
    results: list[Difference] = []
    for choice in first.choices:
        if choice.index in theirs:
            results += _record(pair, choice, theirs[choice.index])
        else:
            says = f"only in {pair.source}"
            places = start_place(first), start_place(second)
            family = "choices", "", says
            results.append(pair.differs(Gravity.TEXT, family, f"choice {choice.index}: {says}", places))
    yield from results
    # Different outputs have different counts.
    another = any(found.gravity in {Gravity.PROMPT, Gravity.IDS, Gravity.TEXT} for found in results)
    for found in _other_values(pair):
        if not (another and found.gravity is Gravity.FINISH):
            yield found
    yield from _events(pair)


def _comparable(both: Comparison) -> bool:
    first, second = both.baseline, both.other
    return both.repeats and first.answered and second.answered and not asked_otherwise(first, second)


_HELD: Mapping[Gravity, Callable[[Choice], Any]] = {
    Gravity.PROMPT: told_prompt,
    Gravity.IDS: lambda choice: choice.output_ids is not None,
    Gravity.TEXT: lambda choice: choice.text is not None and not choice.parsed,
    Gravity.CHANNELS: lambda choice: choice.parsed,
    Gravity.FINISH: lambda choice: choice.finish,
    Gravity.LOGPROBS: lambda choice: choice.series_names,
    Gravity.FIELDS: bool,
}
"""The condition under which a choice has content for each subject."""


def compared(both: Comparison) -> frozenset[Gravity]:
    """Return the subjects in which two answers can be compared. Both answers have content for them."""
    if not _comparable(both):
        return frozenset()
    theirs = {choice.index: choice for choice in both.other.choices}
    pairs = [(choice, theirs[choice.index]) for choice in both.baseline.choices if choice.index in theirs]
    return frozenset(
        gravity for gravity, holds in _HELD.items() if any(all(map(holds, sides)) for sides in pairs)
    )


def held(both: Comparison) -> frozenset[tuple[Gravity, int]]:
    """Return the subjects for which the answers have content, each with the index of the side that has it."""
    if not _comparable(both):
        return frozenset()
    return frozenset(
        (gravity, side)
        for side, stream in enumerate((both.baseline, both.other))
        for gravity, holds in _HELD.items()
        if any(map(holds, stream.choices))
    )


# The following function returns the values in which answers of one side may contradict each other.


def aspects(stream: Stream, gravity: Gravity) -> dict[str, Any]:
    """Return the parts of an answer that must be equal if the request is repeated.

    Parts that the answer lacks are left out.
    """
    found: dict[str, Any] = {}
    for choice in stream.choices:
        for name, held in _aspects_of(choice, gravity).items():
            found[f"{choice.index} {name}"] = held
    if gravity is Gravity.FINISH:
        found["usage"] = (stream.usage or {}).get("completion_tokens_details")
    return {name: held for name, held in found.items() if held is not None}


def _aspects_of(choice: Choice, gravity: Gravity) -> dict[str, Any]:
    match gravity:
        case Gravity.IDS:
            return {"ids": choice.output_ids}
        case Gravity.TEXT | Gravity.CHANNELS:
            calls = [[call.name, call.arguments] for call in choice.calls]
            return {"reasoning": choice.reasoning or "", "text": choice.text or "", "calls": calls}
        case Gravity.FINISH:
            finish = choice.finish and choice.finish.type
            return {"finish": finish, **{name: choice.counter(name) for name in COUNTERS}}
        case Gravity.LOGPROBS:
            return {
                "names": sorted(choice.series_names),
                **{n: choice.series(n) for n in choice.series_names},
            }
        case _:
            return {"customized": sorted(choice.customized)}
