"""Checks of the chapter on delivery that one stream answers by itself: modes, intervals, joined outputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, pairwise
from operator import lt, sub
from typing import Any, NamedTuple

from tokenwire.checks.check import (
    Look,
    Observation,
    Target,
    check,
    check_run,
    condition_seen,
    demand,
    look_along,
    observe,
)
from tokenwire.checks.difference import first_difference, observe_sequence, observe_text
from tokenwire.checks.lockstep import lockstep
from tokenwire.checks.logprob_entry import LISTS
from tokenwire.checks.walk import (
    Field,
    Walked,
    as_list,
    ended,
    finished_choices,
    integer,
    read_once,
    streamed,
    untold_count,
    walked,
    walked_as_begun,
    walked_choice,
)
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import Choice, Columns, Delivery, Place, Stream, in_short

LONG_ANSWER = 50
"""Answers up to this many ids prove nothing about accumulation: servers may collect them in one piece.

SGLang sends what it has of a whole answer every 50 tokens.
"""

TELLING_GROWTHS = 3
"""So many texts in a row that each extend the one before are cumulative: pieces do not grow like that."""


def interval_of(stream: Stream, target: Target) -> int | None:
    """The stream_interval in force: the request's, or the server's; None where it is not known.

    0 stands for the server's value, a value below 0 for every step, which nothing can break. In some dialects
    a request can only raise what the server has.
    """
    interval = stream.asked.stream_interval or target.stream_interval
    if interval and target.stream_interval and policy_of(stream).stream_interval == "raises":
        interval = max(interval, target.stream_interval)
    return interval if interval is not None and interval > 0 else None


def _mode_of_length(length: int, count: int, grown: int) -> Delivery | None:
    """What the length of a list says of its mode, where there was something before; None if it fits none."""
    if length == grown:
        return Delivery.INCREMENTAL
    return Delivery.CUMULATIVE if length == count else None


def _mode_of_text(columns: Columns) -> Delivery | None:
    """What the texts of a choice say of their mode; None where that is not clear."""
    shown = list(compress(range(len(columns.text)), columns.text))
    texts = [columns.text[at] for at in shown]
    begins = list(map(str.startswith, texts[1:], texts))
    broken, grown, telling = begins.count(False), 0, 0
    for before, after in compress(pairwise(shown), begins):
        if columns.text[after] != columns.text[before]:
            grown += 1
            telling += not _begins_with(columns.output_ids[after], columns.output_ids[before])
    if broken > grown:
        return Delivery.INCREMENTAL
    return Delivery.CUMULATIVE if not broken and telling >= TELLING_GROWTHS else None


def _begins_with(ids: Sequence[Any] | None, before: Sequence[Any] | None) -> bool:
    """Whether the ids of an emission begin with those of the one before: then its text does, in any mode."""
    return bool(before) and list(before or ()) == list(ids or ())[: len(before or ())]


class _Shown(NamedTuple):
    """The modes that a list field shows, and in which emissions."""

    name: str
    at: Sequence[int]
    modes: Sequence[Delivery]


@read_once
def _modes(choice: Choice) -> list[_Shown]:
    """Which mode each list field of one choice shows, emission by emission, where it can be told.

    Counted against completion_tokens; where there is no counter, against the ids, which then cannot be wrong.
    """
    own = walked_choice(choice)
    counters = list(own.columns.counters.get("completion_tokens", [None] * len(own.at)))
    where: Sequence[int]
    if set(map(type, counters)) == {int} and counters[0] > 0 and all(map(lt, counters, counters[1:])):
        where, counts = range(1, len(counters)), counters[1:]
        grown = list(map(sub, counts, counters))
    else:
        counters = list(map(integer, counters))
        told: list[tuple[int, int, int]] = []
        before: int | None = 0
        for at, counter in enumerate(counters):
            count, last = (own.after[at], own.before[at]) if counter is None else (counter, before)
            before = counter
            if last is not None and 0 < last < count:
                told.append((at, count, count - last))
        where, counts, grown = map(list, zip(*told, strict=True)) if told else ([], [], [])
    lists = dict(own.columns.series)
    if "output_ids" not in lists:
        counted = [None if counter is None else ids for counter, ids in zip(counters, own.ids, strict=True)]
        lists = {"output_ids": counted} | lists
    shown = []
    for name, column in lists.items():
        entries = list(column[1:] if where == range(1, len(column)) else map(column.__getitem__, where))
        if not set(map(type, entries)) <= {list}:
            entries = list(map(as_list, entries))
        sizes = (
            [-1 if one is None else len(one) for one in entries]
            if None in entries
            else list(map(len, entries))
        )
        if sizes == grown:
            shown.append(_Shown(name, where, [Delivery.INCREMENTAL] * len(where)))
        elif sizes:
            modes = map(_mode_of_length, sizes, counts, grown)
            known = [(at, mode) for at, mode in zip(where, modes, strict=True) if mode is not None]
            shown.append(_Shown(name, [at for at, _ in known], [mode for _, mode in known]))
    return [one for one in shown if one.at]


@check("one-mode-per-stream")
def one_mode_per_stream(stream: Stream, _target: Target) -> Iterator[Observation]:
    """All fields are of the mode that the first telling field shows, ids before series before text."""
    if not streamed(stream):
        return

    def look(at: int, own: Walked, shown: _Shown, first: Delivery | None) -> Observation:
        mode = shown.modes[bisect_left(shown.at, at)]
        message = f"{shown.name} is {mode} in a stream that began {first}"
        place = own.emission(at).at(shown.name)
        return observe(place, expected=str(first), actual=str(mode), message=message)

    first: Delivery | None = None
    for own in walked_as_begun(stream):
        modes = _modes(own.choice)
        first = first or next((one.modes[0] for one in sorted(modes, key=lambda one: one.at[0])), None)
        yield from look_along(
            own.look(
                one.at,
                None if one.modes.count(first) == len(one.modes) else (mode is first for mode in one.modes),
                partial(look, own=own, shown=one, first=first),
            )
            for one in modes
        )
        columns = own.choice.columns
        text_mode = _mode_of_text(columns)
        if first is not None and text_mode is not None:
            last = max(at for at, text in enumerate(columns.text) if text is not None)
            message = f"text is {text_mode} in a stream whose ids and series are {first}"
            place = own.choice.emissions[last].at("text")
            yield observe(place, expected=str(first), actual=str(text_mode), message=message)


@check("mode-is-advertised")
def mode_is_advertised(stream: Stream, target: Target) -> Iterator[Observation]:
    """The ids of each choice come in the mode that the server says that it streams in.

    What it says holds for the endpoints that have both modes.
    """
    advertised, dialect = target.advertised_delivery, dialect_of(stream)
    if advertised is None or not streamed(stream) or (dialect is not None and dialect.fixed_delivery):
        return
    for own in walked_as_begun(stream):
        shown = next((one for one in _modes(own.choice) if one.name == "output_ids"), None)
        if shown is not None:
            mode = shown.modes[0]
            message = f"the server advertises {advertised} streams, but output_ids is {mode}"
            place = own.emission(shown.at[0]).at(shown.name)
            yield observe(place, expected=str(advertised), actual=str(mode), message=message)


Told = Callable[[Walked], Iterable[tuple[str, Field]]]


def _stays(stream: Stream, told: Told, observed: Callable[..., Observation]) -> Iterator[Observation]:
    """Look whether what was sent of some fields in a cumulative stream stays, and stays first."""
    if not streamed(stream) or stream.delivery is not Delivery.CUMULATIVE:
        return

    def look(at: int, own: Walked, name: str, field: Field) -> Observation:
        position = bisect_left(field.at, at)
        before, now = field.values[position - 1], field.values[position]
        place, source = own.emission(at).at(name), "the emission before it"
        return observed(place, name, expected=before, actual=now[: len(before)], source=source)

    def looks() -> Iterator[Look]:
        for own in walked(stream):
            for name, field in told(own):
                stays = (
                    now is before or first_difference(before, now[: len(before)]) is None
                    for before, now in pairwise(field.values)
                )
                yield own.look(field.at[1:], stays, partial(look, own=own, name=name, field=field))

    yield from look_along(looks())


@check("cumulative-ids-extend")
def cumulative_ids_extend(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Output ids that were sent stay, and stay first."""

    def observed(place: Place, _name: str, **compared: Any) -> Observation:
        return observe_sequence(place, "output id", **compared)

    yield from _stays(stream, lambda own: [("output_ids", own.carrying)], observed)


@check("cumulative-text-extends")
def cumulative_text_extends(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Text that was sent stays, and stays first."""

    def observed(place: Place, _name: str, **compared: Any) -> Observation:
        return observe_text(place, **compared)

    yield from _stays(stream, lambda own: [("text", own.where(own.columns.text))], observed)


@check("cumulative-series-extend")
def cumulative_series_extend(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Entries that were sent stay as they are, and stay first."""

    def observed(place: Place, name: str, **compared: Any) -> Observation:
        return observe_sequence(place, f"{name} entry", **compared)

    def series(own: Walked) -> Iterator[tuple[str, Field]]:
        for name, column in own.columns.series.items():
            yield name, own.where(list(map(as_list, column)))

    yield from _stays(stream, series, observed)


@check("incremental-ids-are-new")
def incremental_ids_are_new(stream: Stream, _target: Target) -> Iterator[Observation]:
    """An emission carries as many ids as completion_tokens grew by: none again, none left out."""
    if not streamed(stream) or stream.delivery is not Delivery.INCREMENTAL:
        return

    def look(at: int, own: Walked, growths: Field) -> Observation:
        before, count, carried = growths[at]
        message = f"{carried} output ids came while completion_tokens grew from {before} to {count}"
        place = own.emission(at).at("output_ids")
        return observe(place, expected=count - before, actual=carried, message=message)

    def looks() -> Iterator[Look]:
        for own in walked(stream):
            if not own.carrying.at:
                continue
            told = own.counter("completion_tokens")
            told = told if told.integers else told.some(integer(count) is not None for count in told.values)
            ends = told.of(own.after)
            carried = map(sub, ends, [0, *ends[:-1]])
            growths = Field(told.at, list(zip([0, *told.values[:-1]], told.values, carried, strict=False)))
            new = (count - before == brought for before, count, brought in growths.values)
            yield own.look(growths.at, new, partial(look, own=own, growths=growths))

    yield from look_along(looks())


@check("first-emission-has-a-token")
def first_emission_has_a_token(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Ids start with an id, not with an empty list."""
    if not streamed(stream):
        return
    for own in walked_as_begun(stream):
        if any(own.carrying.values):
            message = f"the first emission of choice {own.choice.index} carries no output id"
            size = len(own.carrying.values[0])
            yield demand(
                own.emission(own.carrying.at[0]).at("output_ids"),
                size > 0,
                expected="at least one id",
                actual=size,
                message=message,
            )


@check("interval-is-kept")
def interval_is_kept(stream: Stream, target: Target) -> Iterator[Observation]:
    """Between the first and the last emission of ids, none carries fewer new ids than the interval.

    An interval of 1 cannot be broken; an emission without new ids is another requirement's matter.
    """
    interval = interval_of(stream, target)
    if interval is None or interval == 1 or not streamed(stream):
        return

    def look(at: int, own: Walked) -> Observation:
        new, place = own.new[at], own.emission(at).at("output_ids")
        message = f"{new} new output ids at a stream_interval of {interval}"
        return demand(
            place, new >= interval, expected=f"at least {interval} new ids", actual=new, message=message
        )

    def looks() -> Iterator[Look]:
        for own in walked(stream):
            last = len(own.choice.emissions) - 1
            inner = [
                at
                for at in own.at
                if own.before[at] > 0
                and own.new[at] > 0
                and own.kept[at] != last
                and own.columns.finish[at] is None
                and own.ids[at] is not None
            ]
            yield own.look(inner, (own.new[at] >= interval for at in inner), partial(look, own=own))

    yield from look_along(looks())


def _bring(own: Walked) -> list[bool]:
    """Whether each emission of a choice brings an id, text or a finish reason."""
    held: Any = ""
    brings: list[bool] = []
    for text, new, finish in zip(own.columns.text, own.new, own.columns.finish, strict=True):
        new_text = bool(text) and (own.incremental or text != held)
        held = held if text is None else text
        brings.append(new > 0 or new_text or finish is not None)
    return brings


@check("no-idle-emissions")
def no_idle_emissions(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Every emission brings something: an id, text, a finish reason, or the role that opens a chat choice."""
    if not streamed(stream):
        return

    def look(at: int, own: Walked, brings: Sequence[bool]) -> Observation:
        return demand(
            own.emission(at).at("output_ids"),
            brings[at],
            expected="a new id, new text or a finish reason",
            actual="something new" if brings[at] else "nothing new",
            message="the emission brings no new id, no new text and no finish reason",
        )

    def looks() -> Iterator[Look]:
        for own in walked(stream):
            if not own.carrying.at:
                continue
            brings = [new > 0 for new in own.new]
            if not all(brings):
                brings = _bring(own)
            told = Field(own.at, brings)
            if "role" in own.columns.details:
                told = told.some(role is None for role in own.details("role"))
            yield own.look(told.at, told.values, partial(look, own=own, brings=brings))

    yield from look_along(looks())


@check("whole-accumulates")
def whole_accumulates(stream: Stream, _target: Target) -> Iterator[Observation]:
    """A long whole answer still has all its ids and entries, counted by its completion_tokens."""
    if stream.delivery is not Delivery.WHOLE or stream.asked.max_new_tokens == 0:
        return
    for choice in finished_choices(stream):
        count, untold = _told_count(stream, choice), untold_count(stream, choice)
        if count is None and untold is not None:  # lists of completions have entries for all of them
            count, names = untold, LISTS & choice.series_names
        else:
            names = choice.series_names
        for seen in _whole_lists(choice, count, names):
            if (count or 0) > LONG_ANSWER or not seen.holds:
                yield seen


def _told_count(stream: Stream, choice: Choice) -> int | None:
    """How many tokens an answer says that a choice has: beside the choice, or in the usage of a single one
    that carries ids.
    """
    count = choice.counter("completion_tokens")
    if count is None and len(stream.choices) == 1 and choice.output_ids is not None:
        count = integer((stream.usage or {}).get("completion_tokens"))
    return count


def _whole_lists(choice: Choice, count: int | None, names: frozenset[str]) -> Iterator[Observation]:
    emission = choice.emissions[-1]
    series = {name: value for name, value in emission.series.items() if name in names}
    lists = {"output_ids": emission.output_ids, **series}
    for name, value in lists.items():
        entries = as_list(value)
        if entries is not None and count is not None:
            message = f"{name} holds {len(entries)} entries of an answer of {count} tokens"
            yield observe(emission.at(name), expected=count, actual=len(entries), message=message)


@check("coalescing-keeps-all")
def coalescing_keeps_all(stream: Stream, target: Target) -> Iterator[Observation]:
    """An emission of more ids than one output holds has all of its entries, and its counters count them.

    One output holds as many new ids as the interval says, the first one id; where the interval is not known,
    1. What was lost is seen by completion_tokens, which counts on. Servers that yield several tokens in one
    step join outputs too, and owe the same.
    """
    if not streamed(stream):
        return
    interval = interval_of(stream, target) or 1
    for own in walked_as_begun(stream):
        joined = _joined(own, interval)
        names = sorted(own.columns.series) if joined else []
        for at, size in joined:
            emission = own.emission(at)
            yield condition_seen(
                emission.at("output_ids"), f"an emission of {size} ids at interval {interval}"
            )
            count = integer(emission.counters.get("completion_tokens"))
            if count is not None:
                message = f"the joined emission counts {count} tokens, but {own.after[at]} ids were delivered"
                place = emission.at("completion_tokens")
                yield observe(place, expected=own.after[at], actual=count, message=message)
            yield from look_along(lockstep(own, names, at))


def _joined(own: Walked, interval: int) -> list[tuple[int, int]]:
    """The emissions that carry more ids than one output holds, each with how many."""
    counted, joined = 0, []
    counts = own.columns.counters.get("completion_tokens", [None] * len(own.at))
    if max(own.new) <= 1 and set(map(type, counts)) == {int} and max(map(sub, counts, [0, *counts])) <= 1:
        return []
    for at, (new, count) in enumerate(zip(own.new, map(integer, counts), strict=True)):
        size = new if count is None else max(new, count - counted)
        counted = counted if count is None else count
        if size > (1 if own.before[at] == 0 else interval) and own.ids[at] is not None:
            joined.append((at, size))
    return joined


_TELLING_STREAMS = 4
"""In so many streams the first ids would hardly have been joined by chance each time."""


def _first_steps(streams: tuple[Stream, ...], target: Target) -> Iterator[tuple[Place, int, int]]:
    """Where the first ids stand of each choice longer than its interval, how many, and that interval."""
    for stream in streams:
        interval = interval_of(stream, target) or 0
        if interval < 2 or not streamed(stream) or stream.asked.stop:
            continue
        for place, new, after in _first_ids(stream):
            if after > interval:
                yield place, new, interval


@in_short(Stream)
def _first_ids(stream: Stream) -> tuple[tuple[Place, int, int], ...]:
    """Of each choice where its first ids stand, how many they are, and how many there are in the end."""
    begun = (
        (own, next((at for at in own.at if own.ids[at] and own.new[at]), None))
        for own in walked_as_begun(stream)
    )
    return tuple(
        (own.emission(at).at("output_ids"), own.new[at], own.after[-1]) for own, at in begun if at is not None
    )


@check_run("first-ids-at-once")
def first_ids_at_once(streams: tuple[Stream, ...], target: Target) -> Iterator[Observation]:
    """The first emission does not wait for the interval.

    Ids may be joined on the way, so one stream tells nothing: that not one of several sends its first ids
    before the interval is full does. Where some do, each of them is a witness.
    """
    firsts = list(_first_steps(streams, target))
    early = [(place, new, interval) for place, new, interval in firsts if new < interval]
    for place, new, interval in early or (firsts if len(firsts) >= _TELLING_STREAMS else []):
        yield demand(
            place,
            new < interval,
            expected=f"fewer than {interval} ids in the first emission of one of {len(firsts)} streams",
            actual=new,
            message=f"the first emission waited for {new} ids, as in all {len(firsts)} streams",
        )


_MANY = 64
"""So many events take a server a while to make."""
_LONG_S = 0.1
_AT_ONCE = 0.01
"""The share of an answer's time within which a burst arrives."""
_TOO_CLOSE_S = 2e-4
"""No server makes one event after the other so fast, but a burst of large ones arrives so."""
_SEVERAL = 2
"""A single stream may have had a late reader: so many have to come so."""


@in_short(Stream)
def _arrival(stream: Stream) -> tuple[int, float, float]:
    """How many emissions there are, and when the first and the last one came."""
    emissions = stream.emissions()
    times = (emissions[0].event.place.time, emissions[-1].event.place.time) if emissions else (0.0, 0.0)
    return len(emissions), *times


@check_run("stream-comes-in-a-burst")
def stream_comes_in_a_burst(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """Whether all long streams of an endpoint are held back."""
    long: dict[str, list[tuple[float, Stream]]] = {}
    for stream in streams:
        count, first, last = _arrival(stream) if streamed(stream) and ended(stream) else (0, 0.0, 0.0)
        if count >= _MANY and last >= _LONG_S:
            long.setdefault(stream.dialect, []).append(((last - first) / last, stream))
    for told in long.values():
        if len(told) < _SEVERAL:
            continue
        share, stream = max(told, key=lambda one: one[0])
        emissions = stream.emissions()
        place = emissions[-1].event.place
        took = share * place.time
        came = f"within {took:.3f} s, {place.time:.1f} s after the request"
        message = f"all {len(emissions)} events came {came}"
        expected = "events that come as they are made"
        as_made = share > _AT_ONCE and took > _TOO_CLOSE_S * len(emissions)
        yield demand(place, as_made, expected=expected, actual="a burst", message=message)
