"""The playback of a failure on the HTML page: the events of the answer, the content that a client has after
each event, and the token ribbon. All values are computed here, with a limited size, and the script of the
page only displays them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from statistics import median
from typing import Any

from tokenwire.judging.judge import Judgement
from tokenwire.record import Choice, Delivery, Emission, Event, Stream
from tokenwire.report.excerpt import indented, written
from tokenwire.report.finding import (
    Point,
    Timeline,
    answer_of,
    differs_at,
    emission_at,
    emissions_until,
    held_against,
    illegal_events,
    timeline,
    window,
)
from tokenwire.report.plot import Plot, Span, plot
from tokenwire.report.ribbon import Aligned, RibbonRow, align, align_parts, ribbon
from tokenwire.report.wording import cut
from tokenwire.wire.inert import inert

_MOST_EVENTS = 60
"""The most events of a playback.

For a longer stream, the playback and the drawing have only the events around the first illegal event.
"""
_LONGEST_VALUE = 90
_LONGEST_TAIL = 60
_LAST_IDS = 8
_LONG_GAP = 0.1
"""The shortest pause that is drawn, in seconds.

A pause must also be several times as long as the median pause.
"""
_TIMES_THE_USUAL = 5
Spell = Callable[[Sequence[int]], bytes | None]

_NO_SERIES = ("output_ids", "text")
"""Arrays that are fields of the class `Emission`. All other arrays are series."""


@dataclass(frozen=True)
class _Step:
    """One event of the playback, as the script needs it."""

    event: int
    words: str
    """The time of the event, and the number of tokens so far, as text."""
    illegal: bool
    pointer: str
    json: tuple[str, str, str]
    """The event as indented JSON in three parts: before the marked value, the value, after it."""
    held: tuple[tuple[str, str], ...]
    """The content that a client has after the event, as pairs of a name and a text."""


@dataclass(frozen=True)
class Playback:
    """The data for playing the events of a failure."""

    exchange: str
    timeline: Timeline
    """The delivered output, with one point for each step."""
    steps: tuple[_Step, ...]
    left_out: str
    """A sentence about the events that were left out. Empty if the playback has all events."""
    gaps: tuple[Span, ...]
    """The long pauses in which the recorder read no data."""
    ribbons: tuple[Mapping[str, Any], ...]
    beside: str
    """The title of the ribbon row that shows the other answer or array."""

    @property
    def first(self) -> int:
        """The index of the step that is shown first."""
        illegal = (number for number, step in enumerate(self.steps) if step.illegal)
        return next(illegal, len(self.steps) - 1)

    @property
    def plot(self) -> Plot | None:
        """A drawing of the timeline, with a mark for each step; None if there is only one step."""
        illegal = [step.event for step in self.steps if step.illegal]
        return plot(asdict(self.timeline), illegal, self.gaps) if len(self.steps) > 1 else None

    def embedded(self) -> dict[str, Any]:
        """Return the data for the script, as JSON."""
        return {"first": self.first, "steps": list(map(asdict, self.steps)), "ribbons": self.ribbons}


def playback_of(judgement: Judgement) -> Playback | None:
    """Return the playback of a violation.

    None if the run does not have the answer, or if the answer has no events.
    """
    run, first = judgement.run, judgement.violations[0]
    stream = answer_of(run, first)
    if stream is None or not stream.events:
        return None
    other = held_against(run, run.by_exchange[stream.exchange.name], first)
    return played(
        stream,
        illegal_events(judgement.violations, stream),
        other.load() if other is not None else None,
        texts=(first.expected, first.actual),
    )


def played(
    stream: Stream,
    illegal: Mapping[int, str],
    beside: Stream | None = None,
    *,
    texts: tuple[Any, Any] = ("", ""),
    most: int = _MOST_EVENTS,
    spell: Spell = lambda _: None,
) -> Playback | None:
    """Return the playback of an answer, or None if the answer has no events.

    `illegal`: the pointers of the illegal events, by index. The ribbon shows the first illegal event, or the
    last event if `illegal` is empty. `texts`: expected and actual value. The ribbon compares these values if
    both are texts with an equal beginning. `spell`: returns the bytes of ids, if the vocabulary is known.
    """
    events = stream.events
    if not events:
        return None
    focus = next(iter(illegal), events[-1].index)
    middle = next((number for number, event in enumerate(events) if event.index == focus), 0)
    shown = events[window(len(events), middle, most=most, before=most // 2)]
    points = _of_events(timeline(stream), shown)
    start, end = shown[0].place.time, shown[-1].place.time
    emission = _emission_near(stream, focus, illegal.get(focus, ""))
    numbers = {event.index: number for number, event in enumerate(shown)}
    ribbons = tuple(_ribbons(stream, emission, beside, numbers)) if emission else ()
    if all(drawn["unit"] != "character" for drawn in ribbons):
        ribbons += tuple(_ribbon_of_texts(*texts))
    return Playback(
        exchange=inert(stream.exchange.name),
        timeline=points,
        steps=tuple(
            _step(stream, event, f"{point.time:.3f} s, {point.total} {points.unit}", illegal, spell)
            for event, point in zip(shown, points.points, strict=True)
        ),
        left_out=""
        if len(shown) == len(events)
        else f"events {shown[0].index} to {shown[-1].index} of {len(events)} are shown; "
        "the others are left out of this page",
        gaps=tuple(
            (begin, stop)
            for begin, stop in gaps([read.time for read in stream.exchange.reads])
            if stop >= start and begin <= end
        ),
        ribbons=ribbons,
        beside=inert(_comparison_in_words(stream, beside)),
    )


def _emission_near(stream: Stream, event: int, pointer: str) -> Emission | None:
    """Return the emission of an event to which a pointer leads, or the nearest emission."""
    emissions = stream.emissions()
    before = (emission for emission in reversed(emissions) if emission.event.index <= event)
    return emission_at(stream, event, pointer) or next(before, next(iter(emissions), None))


def _comparison_in_words(stream: Stream, other: Stream | None) -> str:
    """Describe the answer with which a stream is compared. Empty if the first answer is not a stream."""
    if other is not None:
        return f"held against {_kind_of_answer(other)} {other.exchange.name}"
    if stream.delivery is Delivery.WHOLE:
        return ""
    return "no whole answer to the same request was recorded: the series are held against the ids"


def _kind_of_answer(stream: Stream) -> str:
    return "the whole answer" if stream.delivery is Delivery.WHOLE else "the stream"


# The following functions compute the steps: the content that a client has after each event.


def _of_events(whole: Timeline, events: Sequence[Event]) -> Timeline:
    """Return a timeline with one point for each of these events, even if an event has no output."""
    carrying = {point.event: point for point in whole.points}
    earlier = [point.total for point in whole.points if point.event < events[0].index]
    points: list[Point] = []
    for event in events:
        total = points[-1].total if points else earlier[-1] if earlier else 0
        points.append(carrying.get(event.index, Point(event.index, event.place.time, total, None)))
    return replace(whole, points=tuple(points))


def _step(stream: Stream, event: Event, words: str, illegal: Mapping[int, str], spell: Spell) -> _Step:
    pointer = illegal.get(event.index, "")
    if event.data is None:
        shown = inert(written(stream.exchange.body, event.place) or "[DONE]" * event.done), "", ""
    else:
        shown = indented(event.data, pointer).parts
    return _Step(
        event.index,
        words,
        event.index in illegal,
        inert(pointer),
        shown,
        tuple(_client_contents(stream, event, spell)),
    )


def _client_contents(stream: Stream, event: Event, spell: Spell) -> Iterator[tuple[str, str]]:
    """Yield the content that a client has after an event, for each choice: a name and a text."""
    for choice in stream.choices:
        read = emissions_until(choice, event.index)
        if not read or read[-1].event.index != event.index:
            continue
        if len(stream.choices) > 1:
            yield "choice", str(choice.index)
        yield from _held_of(Choice(choice.index, choice.delivery, emissions=read), spell)


def _held_of(choice: Choice, spell: Spell) -> Iterator[tuple[str, str]]:
    if (ids := choice.output_ids) is not None:
        last = ", ".join(map(str, ids[-_LAST_IDS:]))
        yield "ids", f"{len(ids)}: {'… ' * (len(ids) > _LAST_IDS)}{cut(inert(last), _LONGEST_VALUE)}"
    if (text := choice.text) is not None:
        tail = json.dumps(text[-_LONGEST_TAIL:], ensure_ascii=False)
        yield "text", f"{len(text)} characters: {'… ' * (len(text) > _LONGEST_TAIL)}{inert(tail)}"
    if back := _held_back(choice, spell):
        yield "held back", back
    for name in sorted(choice.series_names):
        yield inert(name), f"{len(choice.series(name) or ())} entries"
    if counters := choice.emissions[-1].counters:
        words = ", ".join(f"{name} {value}" for name, value in counters.items())
        yield "counters", inert(cut(words, _LONGEST_VALUE))
    if choice.finish is not None:
        yield "finish", inert(cut(str(choice.finish.type), _LONGEST_VALUE))


def _held_back(choice: Choice, spell: Spell) -> str:
    """Describe the output whose text has not arrived yet, as the missing bytes or as the number of ids
    without text.
    """
    ids, text = choice.output_ids, choice.text
    if not ids or text is None or choice.finish is not None:
        return ""
    spelled, shown = spell(ids), text.encode(errors="replace")
    if spelled is not None and spelled.startswith(shown):
        return cut(inert(repr(spelled[len(shown) :])[1:]), _LONGEST_VALUE) if spelled != shown else ""
    quiet = 0
    for emission, before in zip(reversed(choice.emissions), (*choice.emissions[-2::-1], None), strict=True):
        earlier = before.text if before and choice.delivery is not Delivery.INCREMENTAL else ""
        if (emission.text or "") != (earlier or ""):
            break
        quiet += emission.new
    return f"no text yet for the last {quiet} ids" if quiet else ""


def gaps(times: Sequence[float]) -> Iterator[Span]:
    """Yield long pauses in which nothing was read.

    The cause may be a pause of the server or of the reader.
    """
    waits = [(start, end) for start, end in pairwise(times) if end > start]
    if not waits:
        return
    usual = median(end - start for start, end in waits)
    least = max(_TIMES_THE_USUAL * usual if len(waits) > 1 else 0.0, _LONG_GAP)
    yield from ((start, end) for start, end in waits if end - start >= least)


# The following functions compute the rows of the ribbon.


def _carried(emission: Emission, name: str) -> Any:
    return getattr(emission, name) if name in _NO_SERIES else emission.series.get(name)


def _joined(choice: Choice, name: str) -> Sequence[Any] | None:
    return getattr(choice, name) if name in _NO_SERIES else choice.series(name)


def _delivered(choice: Choice, entries: Sequence[Any], name: str, steps: Mapping[int, int]) -> list[int]:
    """Return the index of the step that delivered each entry of an array."""
    first, last = next(iter(steps), 0), max(steps.values(), default=0)
    delivered: list[int] = []
    for emission in choice.emissions:
        carried, event = _carried(emission, name), emission.event.index
        if isinstance(carried, str | list | tuple):
            new = len(carried) - (0 if choice.delivery is Delivery.INCREMENTAL else len(delivered))
            delivered += [steps.get(event, 0 if event < first else last)] * new
    return (delivered + [last] * len(entries))[: len(entries)]


def _as_of(choice: Choice, emission: Emission, name: str) -> tuple[Sequence[Any] | None, bool]:
    """Return the array that a cumulative stream has delivered with this emission.

    Return the whole array if the stream is not cumulative. The second value is True if the array is complete.
    """
    carried = _carried(emission, name)
    snapshot = choice.delivery is Delivery.CUMULATIVE and isinstance(carried, str | list | tuple)
    if snapshot and emission is not choice.emissions[-1]:
        return carried, False
    return _joined(choice, name), True


def _ribbons(
    stream: Stream, emission: Emission, other: Stream | None, steps: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    choice = next(choice for choice in stream.choices if choice.index == emission.choice)
    beside = (
        next((choice for choice in other.choices if choice.index == emission.choice), None) if other else None
    )
    kind, other_kind = _kind_of_answer(stream), _kind_of_answer(other) if other else ""
    if other and other_kind == kind:
        other_kind = f"{kind} {other.exchange.name}"
    ids, _ = _as_of(choice, emission, "output_ids")

    def rows(name: str, title: str) -> list[RibbonRow]:
        """Return two ribbon rows for an array: that of the other answer, and that of this answer."""
        known = _joined(beside, name) if beside else None
        entries, ended = _as_of(choice, emission, name)
        made = [] if known is None else [RibbonRow(f"{title}, {other_kind}", known, align(known, known))]
        if entries is not None:
            aligned = _aligned(choice, name, entries, known, ids, ended=ended)
            made.append(
                RibbonRow(f"{title}, {kind}", entries, aligned, _delivered(choice, entries, name, steps))
            )
        return made

    tokens = rows("output_ids", "ids")
    for name in sorted(choice.series_names | (beside.series_names if beside else frozenset())):
        tokens += rows(name, name)
    before = tuple(takewhile(lambda earlier: earlier is not emission, choice.emissions))
    held = Choice(choice.index, choice.delivery, emissions=before)
    focus = len(held.output_ids or held.text or ())
    if tokens:
        yield ribbon("token", tokens, focus)
    text, known = _as_of(choice, emission, "text")[0], beside.text if beside else None
    if text not in (None, known) and (known is not None or not tokens):
        lines = rows("text", "text")
        # An empty text has no cells to compare with.
        yield ribbon("character", lines[1:] if known == "" else lines, focus)


def _ribbon_of_texts(expected: Any, actual: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(expected, str) or not isinstance(actual, str):
        return
    index = differs_at(expected, actual)
    if index is not None:
        texts = {"expected": expected, "actual": actual}
        rows = [RibbonRow(f"text, {name}", text, align(expected, text)) for name, text in texts.items()]
        yield ribbon("character", rows, index)


def _aligned(
    choice: Choice,
    name: str,
    entries: Sequence[Any],
    known: Sequence[Any] | None,
    ids: Sequence[Any] | None,
    *,
    ended: bool,
) -> Aligned:
    """Align an array with the same array of another answer.

    Without another answer, align a series with the output ids.
    """
    is_series = name not in _NO_SERIES
    if known is not None:
        aligned = align(known, entries, ended=ended)
        parts = _parts(choice, name, len(known)) if is_series and not aligned.sound else []
        return align_parts(known, parts) if parts else aligned
    if is_series and ids is not None:
        return _beside_ids(ids, entries, _parts(choice, name, len(ids)))
    return align(entries, entries)


def _parts(choice: Choice, name: str, length: int) -> list[tuple[int, Sequence[Any]]]:
    """Return the number of ids and the entries of a series in each event.

    Return an empty list if these numbers cannot help to align the series: the stream is not incremental, its
    ids do not fit, or each event has as many entries as ids.
    """
    ids = choice.output_ids
    if choice.delivery is not Delivery.INCREMENTAL or ids is None or len(ids) != length:
        return []
    parts: list[tuple[int, Sequence[Any]]] = []
    for emission in choice.emissions:
        carried = emission.series.get(name)
        parts.append((len(emission.output_ids or ()), carried if isinstance(carried, list) else []))
    return [] if all(count == len(part) for count, part in parts) else parts


def _beside_ids(
    ids: Sequence[Any], entries: Sequence[Any], parts: Sequence[tuple[int, Sequence[Any]]]
) -> Aligned:
    """Align a series with the ids.

    Entries that contain an id are aligned by this id. Otherwise the numbers of entries in each event decide.
    """

    def named(some: Sequence[Any]) -> list[Any]:
        return [entry[1] if isinstance(entry, list | tuple) and len(entry) > 1 else None for entry in some]

    if all(type(name) is int for name in named(entries)):
        aligned = align(ids, named(entries))
        if aligned.sound or not parts:
            return aligned
        return align_parts(ids, [(count, named(part)) for count, part in parts])
    if not parts:
        return align(range(len(ids)), range(len(entries)))
    first, counted = 0, []
    for count, part in parts:
        positions: list[int | None] = [*range(first, first + min(count, len(part)))]
        counted.append((count, positions + [None] * (len(part) - count)))
        first += count
    return align_parts(range(len(ids)), counted)
