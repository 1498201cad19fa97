"""What the page plays of a failure: the events of the stream, what a client holds after each, and the ribbon.

Pure: all that the page shows is decided here, in bounded size; its script only walks through it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from tokenwire.checks.check import Observation
from tokenwire.judging.judge import Judgement, Run
from tokenwire.record import Choice, Delivery, Emission, Event, Stream
from tokenwire.report.ribbon import Aligned, Row, align, align_parts, ribbon
from tokenwire.report.wording import cut, inert
from tokenwire.wire.json_pointer import ABSENT, find, parse

_MOST_EVENTS = 60
"""Of a longer stream, as many around the first illegal event; the staircase shows these, too."""
_BEFORE_ILLEGAL = 30
_MOST_LETTERS = 3_000_000
"""Of all that a page embeds; what does not fit is left out, and the page says so."""
_LONGEST_VALUE = 90
_LONGEST_MARKED = 400
_LONGEST_TAIL = 60
_MOST_MEMBERS = 24
_NEIGHBOURS = 2
"""How many entries of a list are shown on each side of the one that the pointer goes through."""
_LAST_IDS = 8
_LONG_GAP = 0.1
"""Seconds without a read from which on they are a gap, if they are long beside the others, too."""
_TIMES_THE_USUAL = 5


@dataclass(frozen=True)
class Step:
    """One event of the stream."""

    event: int
    time: float
    total: int
    """Tokens (or characters) of all choices so far."""
    illegal: bool
    pointer: str
    json: tuple[str, str, str]
    """The event as indented JSON: what stands before the pointer's value, the value, and the rest."""
    held: tuple[tuple[str, str], ...]
    """What a client holds once it has read the event."""


@dataclass(frozen=True)
class Gap:
    """A time in which nothing was read."""

    start: float
    end: float


@dataclass(frozen=True)
class Playback:
    """A failure to walk through."""

    exchange: str
    unit: str
    steps: tuple[Step, ...]
    left_out: str
    """Which events are not held here, in words; empty where all are."""
    gaps: tuple[Gap, ...]
    ribbons: tuple[Mapping[str, Any], ...]
    beside: str
    """What the ribbon is held against, in words."""

    @property
    def first(self) -> int:
        """The step to show first."""
        return next((number for number, step in enumerate(self.steps) if step.illegal), 0)

    def embedded(self) -> dict[str, Any]:
        """What the script of the page is given, as JSON."""
        return {
            "first": self.first,
            "steps": [
                {
                    "event": step.event,
                    "told": f"{step.time:.3f} s, {step.total} {self.unit}",
                    "illegal": step.illegal,
                    "pointer": step.pointer,
                    "json": step.json,
                    "held": step.held,
                }
                for step in self.steps
            ],
            "ribbons": self.ribbons,
        }


def playbacks(judgements: Iterable[Judgement]) -> dict[tuple[str, str], Playback]:
    """What there is to play, by requirement and scenario, as far as a page has room for it."""
    found: dict[tuple[str, str], Playback] = {}
    room = _MOST_LETTERS
    for judgement in judgements:
        playback = playback_of(judgement) if judgement.violations and room > 0 else None
        if playback is not None:
            room -= len(json.dumps(playback.embedded()))
            if room > 0:
                found[judgement.requirement.id, judgement.scenario] = playback
    return found


def playback_of(judgement: Judgement) -> Playback | None:
    """What there is to play of a violation; None where its exchange is not at hand or brought no event."""
    first = judgement.violations[0]
    told = judgement.run.by_exchange.get(first.place.exchange)
    stream = told.whole if told is not None else None
    if told is None or stream is None or not stream.events:
        return None
    illegal = _illegal(judgement.violations, stream)
    focus = next((event for event in illegal), stream.events[0].index)
    at = next((n for n, event in enumerate(stream.events) if event.index == focus), 0)
    start = max(0, min(at - _BEFORE_ILLEGAL, len(stream.events) - _MOST_EVENTS))
    kept = stream.events[start : start + _MOST_EVENTS]
    unit, steps = _steps(stream, kept, illegal)
    emission = _emission_at(stream, focus, illegal.get(focus, ""))
    other, beside = held_against(judgement.run, told, first)
    other = other.whole if other is not None else None
    numbers = {step.event: number for number, step in enumerate(steps)}
    left_out = ""
    if len(kept) < len(stream.events):
        left_out = (
            f"events {kept[0].index} to {kept[-1].index} of {len(stream.events)} are shown; "
            "the others are left out of this page"
        )
    return Playback(
        exchange=inert(stream.exchange.name),
        unit=unit,
        steps=steps,
        left_out=left_out,
        gaps=tuple(
            gap
            for gap in gaps([read.time for read in stream.exchange.reads])
            if gap.end >= steps[0].time and gap.start <= steps[-1].time
        ),
        ribbons=tuple(_ribbons(stream, emission, other, numbers)) if emission is not None else (),
        beside=inert(beside),
    )


def _illegal(violations: Sequence[Observation], stream: Stream) -> dict[int, str]:
    """The events of a stream that violate, each with its first pointer; the first violation's first."""
    named: dict[int, str] = {}
    for violation in violations:
        place = violation.place
        if place.exchange == stream.exchange.name:
            named.setdefault(stream.events[0].index if place.event is None else place.event, place.pointer)
    return named


def _emission_at(stream: Stream, event: int, pointer: str) -> Emission | None:
    """The emission of an event that a pointer leads into, or the nearest there is."""
    every = stream.emissions()
    here = [one for one in every if one.event.index == event]
    meant = (one for one in here if any(pointer.startswith(own) for own in one.pointers.values() if own))
    before = (one for one in reversed(every) if one.event.index <= event)
    return next(meant, next(iter(here), next(before, next(iter(every), None))))


def held_against(run: Run, stream: Stream, violation: Observation) -> tuple[Stream | None, str]:
    """The answer to hold a stream against, and what it is: one that the violation names, or else the whole
    answer to the same request.
    """
    named = (run.by_exchange.get(place.exchange) for place in violation.related)
    other = next((one for one in named if one and one.choices and one is not stream), None)
    if other is None and stream.asked.key and stream.delivery is not Delivery.WHOLE:
        other = next(
            (
                one
                for one in run.streams
                if one.asked.key == stream.asked.key
                and one.dialect == stream.dialect
                and one.delivery is Delivery.WHOLE
                and one.choices
                and one is not stream
            ),
            None,
        )
    if other is None and stream.delivery is Delivery.WHOLE:
        return None, ""
    if other is None:
        return None, "no whole answer to the same request was recorded: the series are held against the ids"
    return other, f"held against {_kind(other)} {other.exchange.name}"


def _kind(stream: Stream) -> str:
    return "the whole answer" if stream.delivery is Delivery.WHOLE else "the stream"


# Steps: what a client holds after each event.


def _steps(stream: Stream, kept: Sequence[Event], illegal: Mapping[int, str]) -> tuple[str, tuple[Step, ...]]:
    by_event: dict[int, list[Emission]] = {}
    for emission in stream.emissions():
        by_event.setdefault(emission.event.index, []).append(emission)
    tokens = any(emission.output_ids is not None for every in by_event.values() for emission in every)
    wanted = {event.index for event in kept}
    read: dict[int, list[Emission]] = {}
    steps = []
    for event in stream.events:
        emissions = by_event.get(event.index, [])
        for emission in emissions:
            read.setdefault(emission.choice, []).append(emission)
        if event.index not in wanted:
            continue
        held = {index: Choice(index, tuple(every), stream.delivery) for index, every in read.items()}
        pointer = illegal.get(event.index, "")
        steps.append(
            Step(
                event.index,
                event.place.time,
                sum(len((one.output_ids if tokens else one.text) or ()) for one in held.values()),
                event.index in illegal,
                inert(pointer),
                _shown(event, pointer),
                tuple(
                    line
                    for index in dict.fromkeys(emission.choice for emission in emissions)
                    for line in (*[("choice", str(index))] * (len(stream.choices) > 1), *_held(held[index]))
                ),
            )
        )
    return "tokens" if tokens else "characters", tuple(steps)


def _held(choice: Choice) -> Iterator[tuple[str, str]]:
    """What a client has of a choice, each thing under its name."""
    if (ids := choice.output_ids) is not None:
        last = ", ".join(str(one) for one in ids[-_LAST_IDS:])
        yield "ids", f"{len(ids)}: {'… ' * (len(ids) > _LAST_IDS)}{cut(inert(last), _LONGEST_VALUE)}"
    if (text := choice.text) is not None:
        tail = json.dumps(text[-_LONGEST_TAIL:], ensure_ascii=False)
        yield "text", f"{len(text)} characters: {'… ' * (len(text) > _LONGEST_TAIL)}{inert(tail)}"
    for name in sorted(choice.series_names):
        yield inert(name), f"{len(choice.series(name) or ())} entries"
    if counters := choice.emissions[-1].counters:
        told = ", ".join(f"{name} {value}" for name, value in counters.items())
        yield "counters", inert(cut(told, _LONGEST_VALUE))
    if choice.finish is not None:
        yield "finish", inert(cut(str(choice.finish.type), _LONGEST_VALUE))


def gaps(times: Sequence[float]) -> Iterator[Gap]:
    """Where nothing was read for long: a reader that was slow, or a server that paused."""
    waits = [(start, end) for start, end in pairwise(times) if end > start]
    if not waits:
        return
    usual = median(end - start for start, end in waits)
    least = max(_TIMES_THE_USUAL * usual if len(waits) > 1 else 0.0, _LONG_GAP)
    yield from (Gap(start, end) for start, end in waits if end - start >= least)


# The event as JSON, the pointer's value marked.


def _shown(event: Event, pointer: str) -> tuple[str, str, str]:
    if event.data is None:
        return inert(event.place.excerpt or "[DONE]" * event.done), "", ""
    return marked(event.data, pointer)


def marked(document: Any, pointer: str) -> tuple[str, str, str]:
    """A document as indented JSON, cut before and behind the value that a pointer leads to. What lies beside
    its way is shortened. Of a pointer to what is not there, the nearest value on its way is marked.
    """
    keys = parse(pointer) if not pointer or pointer.startswith("/") else ()
    while keys and find(document, keys) is ABSENT:
        keys = keys[:-1]
    if not keys:
        return inert("".join(_written(document, (), ""))), "", ""
    text = "".join(_written(document, keys, ""))
    before, _, rest = text.partition(_OPEN)
    value, _, behind = rest.partition(_CLOSE)
    return inert(before), inert(value), inert(behind)


_OPEN, _CLOSE = "\x00<", ">\x00"
"""Around what is marked; JSON holds no such character."""


def _brief(value: Any, longest: int = _LONGEST_VALUE) -> str:
    return cut(json.dumps(value, ensure_ascii=False, default=str), longest)


def _written(value: Any, keys: tuple[str, ...], indent: str) -> Iterator[str]:
    """The text of a value, with what the keys lead to between `_OPEN` and `_CLOSE`."""
    inner = indent + "  "
    members: list[tuple[str, Any]]
    if isinstance(value, dict):
        members = [(str(key), one) for key, one in value.items()]
        opening, closing = "{", "}"
    else:
        members = [(str(number), one) for number, one in enumerate(value)] if keys else []
        opening, closing = "[", "]"
    if not members:
        yield _brief(value)
        return
    chosen = next((number for number, (key, _) in enumerate(members) if keys and key == keys[0]), None)
    first, last = 0, min(len(members), _MOST_MEMBERS)
    if chosen is not None and (isinstance(value, list) or chosen >= last):
        first, last = max(0, chosen - _NEIGHBOURS), min(len(members), chosen + 1 + _NEIGHBOURS)
    yield f"{opening}\n"
    if first:
        yield f"{inner}… {first} before\n"
    for number in range(first, last):
        key, one = members[number]
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        yield f"{inner}{name}"
        if number != chosen:
            yield _brief(one)
        elif len(keys) == 1:
            yield f"{_OPEN}{_brief(one, _LONGEST_MARKED)}{_CLOSE}"
        else:
            yield from _written(one, keys[1:], inner)
        yield ",\n" if number + 1 < len(members) else "\n"
    if last < len(members):
        yield f"{inner}… {len(members) - last} more\n"
    yield f"{indent}{closing}"


# The ribbon.


def _delivered(choice: Choice, entries: Sequence[Any], name: str, steps: Mapping[int, int]) -> list[int]:
    """By which step each entry of a joined array was there."""
    last = max(steps.values(), default=0)
    found: list[int] = []
    for emission in choice.emissions:
        carried = _carried(emission, name)
        if not isinstance(carried, str | list | tuple):
            continue
        first = next(iter(steps), 0)
        step = steps.get(emission.event.index, 0 if emission.event.index < first else last)
        size = len(carried) if choice.delivery is Delivery.INCREMENTAL else max(0, len(carried) - len(found))
        found += [step] * size
    return (found + [last] * len(entries))[: len(entries)]


def _carried(emission: Emission, name: str) -> Any:
    return getattr(emission, name) if name in {"output_ids", "text"} else emission.series.get(name)


def _joined(choice: Choice, name: str) -> Sequence[Any] | None:
    return getattr(choice, name) if name in {"output_ids", "text"} else choice.series(name)


def _as_of(choice: Choice, emission: Emission, name: str) -> tuple[Sequence[Any] | None, bool]:
    """An array as the illegal event left it, where events repeat all that was, else in the end; and whether
    it is that of the end.
    """
    carried = _carried(emission, name)
    snapshot = choice.delivery is Delivery.CUMULATIVE and isinstance(carried, str | list | tuple)
    if snapshot and emission is not choice.emissions[-1]:
        return carried, False
    return _joined(choice, name), True


def _ribbons(
    stream: Stream, emission: Emission, other: Stream | None, steps: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    choice = next(one for one in stream.choices if one.index == emission.choice)
    beside = next((one for one in other.choices if one.index == choice.index), None) if other else None
    mine, its = _kind(stream), _kind(other) if other else ""
    if its == mine:
        its = f"{its} {other.exchange.name}" if other else its
    names = ["output_ids", *sorted(choice.series_names | (beside.series_names if beside else frozenset()))]
    rows: list[Row] = []
    ids, _ = _as_of(choice, emission, "output_ids")
    for name in names:
        entries, ended = _as_of(choice, emission, name)
        known = _joined(beside, name) if beside else None
        title = "ids" if name == "output_ids" else name
        if known is not None:
            rows.append(Row(f"{title}, {its}", known, align(known, known)))
        if entries is None:
            continue
        if known is not None:
            aligned = align(known, entries, ended=ended)
            if not aligned.sound and name != "output_ids" and (parts := _parts(choice, name, len(known))):
                aligned = align_parts(known, parts)
        elif name != "output_ids" and ids is not None:
            aligned = _beside_ids(ids, entries, _parts(choice, name, len(ids)))
        else:
            aligned = align(entries, entries)
        rows.append(Row(f"{title}, {mine}", entries, aligned, _delivered(choice, entries, name, steps)))
    focus = len(_joined_before(choice, emission))
    if rows:
        yield ribbon("token", rows, focus)
    text, ended = _as_of(choice, emission, "text")
    known_text = beside.text if beside else None
    if text is not None and (known_text is not None or not rows) and (text != known_text):
        held = align(known_text, text, ended=ended) if known_text is not None else align(text, text)
        lines = [Row(f"text, {its}", known_text, align(known_text, known_text))] if known_text else []
        lines.append(Row(f"text, {mine}", text, held, _delivered(choice, text, "text", steps)))
        yield ribbon("character", lines, focus)


def _parts(choice: Choice, name: str, length: int) -> list[tuple[int, Sequence[Any]]]:
    """What each event brings of a series, and how many ids; none where ids do not tell where it belongs, and
    where each event brings as many entries as ids.
    """
    ids = choice.output_ids
    if choice.delivery is not Delivery.INCREMENTAL or ids is None or len(ids) != length:
        return []
    parts: list[tuple[int, Sequence[Any]]] = []
    for emission in choice.emissions:
        carried = emission.series.get(name)
        parts.append((len(emission.output_ids or ()), carried if isinstance(carried, list) else []))
    return [] if all(count == len(part) for count, part in parts) else parts


def _joined_before(choice: Choice, emission: Emission) -> Sequence[Any]:
    """What of ids, or else of text, the events before an emission delivered."""
    at = next(n for n, one in enumerate(choice.emissions) if one is emission)
    held = Choice(choice.index, choice.emissions[:at], choice.delivery)
    return held.output_ids or held.text or ()


def _beside_ids(
    ids: Sequence[Any], entries: Sequence[Any], parts: Sequence[tuple[int, Sequence[Any]]]
) -> Aligned:
    """A series held against the ids: by the id that each entry names, or else by their number alone."""

    def named(some: Sequence[Any]) -> list[Any]:
        return [one[1] if isinstance(one, list | tuple) and len(one) > 1 else None for one in some]

    if all(type(one) is int for one in named(entries)):
        aligned = align(ids, named(entries))
        if aligned.sound or not parts:
            return aligned
        return align_parts(ids, [(count, named(part)) for count, part in parts])
    first, counted = 0, []
    for count, part in parts:
        places = range(first, first + count)
        counted.append((count, [places[n] if n < count else None for n in range(len(part))]))
        first += count
    return align_parts(range(len(ids)), counted) if parts else align(range(len(ids)), range(len(entries)))
