"""Compares the outputs of two answers: prompt ids, ids, text, channels, finish, counters and series."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tokenwire.checks.difference import first_difference
from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.chance import DRIFT, entries_go_apart, goes_apart
from tokenwire.checks.reading.channels import CALLED, CHANNEL_WORDS, Channels
from tokenwire.checks.reading.channels import differences as channel_differences
from tokenwire.checks.reading.fields import bringing, told_prompt
from tokenwire.checks.same_answers import COUNTERS, same_finish, same_ids, same_text
from tokenwire.record import Choice
from tokenwire.report.wording import clause, cut, value
from tokenwire.target.alike import alike
from tokenwire.typed_table import counted
from tokenwire.wire.json_pointer import join
from tokenwire_twin.difference import Difference, Gravity, Pair, first_apart, in_words

_AROUND = 24
"""The number of characters that are shown before and after the first difference between two texts."""


def _prompts(pair: Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
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


def _parted(pair: Pair, ours: Choice, theirs: Choice) -> str:
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
    pair: Pair,
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


def _channels(pair: Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
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


def _numbers(sizes: tuple[int, int], path: str, pair: Pair) -> str:
    """Describe the numbers of entries of two lists, and the requested number if it is known.

    `path`: the series, and the field of its entry.
    """
    if not path.endswith("top_logprobs"):
        return pair.in_sides(counted(sizes[0], "entry"), str(sizes[1]))
    asked = pair.first.asked
    requested = f"; {counted(asked.top_logprobs, 'top candidate')} requested" if asked.logprobs else ""
    return pair.in_sides(counted(sizes[0], "candidate"), str(sizes[1])) + requested


def _ways(ours: Any, theirs: Any, pair: Pair, series: str, path: str = "") -> Iterator[_Way]:
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
            found = first_apart(ours, theirs, tolerance=DRIFT)
            inner, first, second = found if found is not None else ("", ours, theirs)
            place = f"{_key(inner) if isinstance(ours, Mapping) else inner.lstrip('/')}: " if inner else ""
            yield _Way(path, "other values", place + pair.in_sides(in_words(first), in_words(second)))
    elif type(ours) is not type(theirs) and not all(isinstance(side, int | float) for side in (ours, theirs)):
        message = pair.in_sides(value(ours), value(theirs))
        yield _Way(path, pair.in_sides(_type_name(ours), _type_name(theirs)), message)
    elif isinstance(ours, str) and not (ours and theirs):
        says = f"empty in {pair.names[bool(ours)]}"
        yield _Way(path, says, pair.in_sides(value(ours), value(theirs)))
    else:
        yield _Way(path, "other values", pair.in_sides(value(ours), value(theirs)))


def _series(pair: Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
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


def _finish(pair: Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
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


def output_differences(pair: Pair, ours: Choice, theirs: Choice) -> Iterator[Difference]:
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
