"""Checks of the chapter on delivery that one stream answers by itself: modes, intervals, joined outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from tokenwire.checks.check import (
    Observation,
    Target,
    check,
    check_run,
    condition_seen,
    demand,
    look_at_each,
    observe,
)
from tokenwire.checks.difference import observe_sequence, observe_text
from tokenwire.checks.lockstep import lockstep
from tokenwire.checks.logprob_entry import LISTS
from tokenwire.checks.walk import (
    Step,
    as_list,
    by_choice,
    ended,
    finished_choices,
    integer,
    streamed,
    untold_count,
    walk,
)
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import Choice, Delivery, Emission, Stream

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
    if interval and target.stream_interval and policy_of(stream).get("stream_interval") == "raises":
        interval = max(interval, target.stream_interval)
    return interval if interval is not None and interval > 0 else None


def _mode_of_length(length: int, count: int, count_before: int) -> Delivery | None:
    """What the length of a list says of its mode, where there was something before; None if it fits none."""
    if length == count - count_before:
        return Delivery.INCREMENTAL
    return Delivery.CUMULATIVE if length == count else None


def _mode_of_text(emissions: Iterable[Emission]) -> Delivery | None:
    """What the texts of a choice say of their mode; None where that is not clear."""
    shown = [(emission, emission.text) for emission in emissions if emission.text]
    pairs = [(a[1], b[1], _repeats_ids(a[0], b[0])) for a, b in pairwise(shown)]
    grown = sum(after.startswith(before) and after != before for before, after, _ in pairs)
    broken = sum(not after.startswith(before) for before, after, _ in pairs)
    telling = sum(after.startswith(before) and after != before for before, after, same in pairs if not same)
    if broken > grown:
        return Delivery.INCREMENTAL
    return Delivery.CUMULATIVE if not broken and telling >= TELLING_GROWTHS else None


def _repeats_ids(before: Emission, after: Emission) -> bool:
    """Whether the ids of an emission begin with those of the one before: then its text does, in any mode."""
    ids = list(before.output_ids or ())
    return bool(ids) and ids == list(after.output_ids or ())[: len(ids)]


def _modes(steps: list[Step]) -> Iterator[tuple[Step, str, Delivery]]:
    """Which mode each list field of one choice shows, emission by emission, where it can be told.

    Counted against completion_tokens; where there is no counter, against the ids, which then cannot be wrong.
    """
    count_before: int | None = 0
    for step in steps:
        counter = integer(step.emission.counters.get("completion_tokens"))
        count, before = (step.after, step.before) if counter is None else (counter, count_before)
        count_before = counter
        if before is None or not 0 < before < count:
            continue  # nothing tells
        own = () if counter is None or "output_ids" in step.emission.series else (("output_ids", step.ids),)
        for name, value in (*own, *step.emission.series.items()):
            entries = as_list(value)
            mode = None if entries is None else _mode_of_length(len(entries), count, before)
            if mode is not None:
                yield step, name, mode


def _look_at_mode(shown: tuple[Step, str, Delivery], first: Delivery | None) -> Observation:
    step, name, mode = shown
    message = f"{name} is {mode} in a stream that began {first}"
    return observe(step.emission.at(name), expected=str(first), actual=str(mode), message=message)


@check("one-mode-per-stream")
def one_mode_per_stream(stream: Stream, _target: Target) -> Iterator[Observation]:
    """All fields are of the mode that the first telling field shows, ids before series before text."""
    if not streamed(stream):
        return
    choices = {choice.index: choice for choice in stream.choices}
    first: Delivery | None = None
    for index, steps in by_choice(walk(stream)).items():
        modes = list(_modes(steps))
        first = first or next((mode for *_, mode in modes), None)
        yield from look_at_each(
            modes, (mode is first for *_, mode in modes), partial(_look_at_mode, first=first)
        )
        text_mode = _mode_of_text(choices[index].emissions)
        if first is not None and text_mode is not None:
            place = next(e for e in reversed(choices[index].emissions) if e.text is not None).at("text")
            message = f"text is {text_mode} in a stream whose ids and series are {first}"
            yield observe(place, expected=str(first), actual=str(text_mode), message=message)


@check("mode-is-advertised")
def mode_is_advertised(stream: Stream, target: Target) -> Iterator[Observation]:
    """The ids of each choice come in the mode that the server says that it streams in.

    What it says holds for the endpoints that have both modes.
    """
    advertised, dialect = target.advertised_delivery, dialect_of(stream)
    if advertised is None or not streamed(stream) or (dialect is not None and dialect.fixed_delivery):
        return
    for steps in by_choice(walk(stream)).values():
        for step, name, mode in _modes(steps):
            if name == "output_ids":
                message = f"the server advertises {advertised} streams, but output_ids is {mode}"
                yield observe(
                    step.emission.at(name), expected=str(advertised), actual=str(mode), message=message
                )
                break


def _cumulative(stream: Stream) -> tuple[Step, ...]:
    return walk(stream) if streamed(stream) and stream.delivery is Delivery.CUMULATIVE else ()


@check("cumulative-ids-extend")
def cumulative_ids_extend(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Output ids that were sent stay, and stay first."""
    held: dict[int, list[Any]] = {}
    for step in _cumulative(stream):
        if step.ids is None:
            continue
        before = held.get(step.emission.choice)
        if before is not None:
            yield observe_sequence(
                step.emission.at("output_ids"),
                "output id",
                expected=before,
                actual=step.ids[: len(before)],
                source="the emission before it",
            )
        held[step.emission.choice] = step.ids


@check("cumulative-text-extends")
def cumulative_text_extends(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Text that was sent stays, and stays first."""
    held: dict[int, str] = {}
    for step in _cumulative(stream):
        text = step.emission.text
        if not isinstance(text, str):
            continue
        before = held.get(step.emission.choice)
        if before is not None:
            yield observe_text(
                step.emission.at("text"),
                expected=before,
                actual=text[: len(before)],
                source="the emission before it",
            )
        held[step.emission.choice] = text


@check("cumulative-series-extend")
def cumulative_series_extend(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Entries that were sent stay as they are, and stay first."""
    held: dict[tuple[int, str], list[Any]] = {}
    for step in _cumulative(stream):
        for name, value in step.emission.series.items():
            entries, key = as_list(value), (step.emission.choice, name)
            if entries is None:
                continue
            if key in held:
                yield observe_sequence(
                    step.emission.at(name),
                    f"{name} entry",
                    expected=held[key],
                    actual=entries[: len(held[key])],
                    source="the emission before it",
                )
            held[key] = entries


def _look_at_growth(growth: tuple[Step, int, int, int]) -> Observation:
    step, before, count, carried = growth
    message = f"{carried} output ids came while completion_tokens grew from {before} to {count}"
    return observe(step.emission.at("output_ids"), expected=count - before, actual=carried, message=message)


@check("incremental-ids-are-new")
def incremental_ids_are_new(stream: Stream, _target: Target) -> Iterator[Observation]:
    """An emission carries as many ids as completion_tokens grew by: none again, none left out."""
    if not streamed(stream) or stream.delivery is not Delivery.INCREMENTAL:
        return
    for steps in by_choice(walk(stream)).values():
        if all(step.ids is None for step in steps):
            continue
        counted, carried = 0, 0
        growths: list[tuple[Step, int, int, int]] = []
        for step in steps:
            carried += len(step.ids or ())
            count = integer(step.emission.counters.get("completion_tokens"))
            if count is not None:
                growths.append((step, counted, count, carried))
                counted, carried = count, 0
        new = (count - before == brought for _, before, count, brought in growths)
        yield from look_at_each(growths, new, _look_at_growth)


@check("first-emission-has-a-token")
def first_emission_has_a_token(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Ids start with an id, not with an empty list."""
    if not streamed(stream):
        return
    for choice, steps in by_choice(walk(stream)).items():
        carrying = [step for step in steps if step.ids is not None]
        if any(step.ids for step in carrying):
            message = f"the first emission of choice {choice} carries no output id"
            size = len(carrying[0].ids or ())
            yield demand(
                carrying[0].emission.at("output_ids"),
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

    def look(step: Step) -> Observation:
        message = f"{step.new} new output ids at a stream_interval of {interval}"
        expected, place = f"at least {interval} new ids", step.emission.at("output_ids")
        return demand(place, step.new >= interval, expected=expected, actual=step.new, message=message)

    inner = [
        step
        for step in walk(stream)
        if step.before > 0
        and not step.last
        and step.emission.finish is None
        and step.ids is not None
        and step.new > 0
    ]
    yield from look_at_each(inner, (step.new >= interval for step in inner), look)


def _look_for_something(told: tuple[Step, bool]) -> Observation:
    step, brings = told
    return demand(
        step.emission.at("output_ids"),
        brings,
        expected="a new id, new text or a finish reason",
        actual="something new" if brings else "nothing new",
        message="the emission brings no new id, no new text and no finish reason",
    )


@check("no-idle-emissions")
def no_idle_emissions(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Every emission brings something: an id, text, a finish reason, or the role that opens a chat choice."""
    if not streamed(stream):
        return
    for steps in by_choice(walk(stream)).values():
        if all(step.ids is None for step in steps):
            continue
        held: Any = ""
        told: list[tuple[Step, bool]] = []
        for step in steps:
            text = step.emission.text
            new_text = bool(text) and (step.delivery is Delivery.INCREMENTAL or text != held)
            held = held if text is None else text
            if step.emission.details.get("role") is None:
                told.append((step, step.new > 0 or new_text or step.emission.finish is not None))
        yield from look_at_each(told, (brings for _, brings in told), _look_for_something)


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
    for steps in by_choice(walk(stream)).values():
        names = sorted({name for step in steps for name in step.emission.series})
        counted = 0
        for step in steps:
            emission = step.emission
            count = integer(emission.counters.get("completion_tokens"))
            grown = 0 if count is None else count - counted
            counted = counted if count is None else count
            if step.ids is None or max(step.new, grown) <= (1 if step.before == 0 else interval):
                continue
            place = emission.at("output_ids")
            yield condition_seen(place, f"an emission of {max(step.new, grown)} ids at interval {interval}")
            if count is not None:
                message = f"the joined emission counts {count} tokens, but {step.after} ids were delivered"
                yield observe(
                    emission.at("completion_tokens"), expected=step.after, actual=count, message=message
                )
            yield from lockstep([(step, names)])


_TELLING_STREAMS = 4
"""In so many streams the first ids would hardly have been joined by chance each time."""


def _first_steps(streams: tuple[Stream, ...], target: Target) -> Iterator[tuple[Step, int]]:
    """The first step with ids of each choice that is longer than its interval, and that interval."""
    for stream in streams:
        interval = interval_of(stream, target) or 0
        if interval < 2 or not streamed(stream) or stream.asked.stop:
            continue
        for steps in by_choice(walk(stream)).values():
            first = next((step for step in steps if step.ids and step.new), None)
            if first is not None and steps[-1].after > interval:
                yield first, interval


@check_run("first-ids-at-once")
def first_ids_at_once(streams: tuple[Stream, ...], target: Target) -> Iterator[Observation]:
    """The first emission does not wait for the interval.

    Ids may be joined on the way, so one stream tells nothing: that not one of several sends its first ids
    before the interval is full does. Where some do, each of them is a witness.
    """
    firsts = list(_first_steps(streams, target))
    early = [(step, interval) for step, interval in firsts if step.new < interval]
    for step, interval in early or (firsts if len(firsts) >= _TELLING_STREAMS else []):
        yield demand(
            step.emission.at("output_ids"),
            step.new < interval,
            expected=f"fewer than {interval} ids in the first emission of one of {len(firsts)} streams",
            actual=step.new,
            message=f"the first emission waited for {step.new} ids, as in all {len(firsts)} streams",
        )


_MANY = 64
"""So many events take a server a while to make."""
_LONG_S = 0.1
_AT_ONCE = 0.01
"""The share of an answer's time within which a burst arrives."""
_TOO_CLOSE_S = 2e-4
"""No server makes one event after the other so fast, but a burst of large ones arrives so."""


@check_run("stream-comes-in-a-burst")
def stream_comes_in_a_burst(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """Whether all long streams of an endpoint are held back; a single one may have had a late reader."""
    long: dict[str, list[tuple[float, Stream]]] = {}
    for stream in streams:
        emissions = stream.emissions() if streamed(stream) and ended(stream) else ()
        if len(emissions) >= _MANY and emissions[-1].event.place.time >= _LONG_S:
            first, last = emissions[0].event.place.time, emissions[-1].event.place.time
            long.setdefault(stream.dialect, []).append(((last - first) / last, stream))
    for told in long.values():
        share, stream = max(told, key=lambda one: one[0])
        emissions = stream.emissions()
        place = emissions[-1].event.place
        took = share * place.time
        came = f"within {took:.3f} s, {place.time:.1f} s after the request"
        message = f"all {len(emissions)} events came {came}"
        expected = "events that come as they are made"
        as_made = share > _AT_ONCE and took > _TOO_CLOSE_S * len(emissions)
        yield demand(place, as_made, expected=expected, actual="a burst", message=message)
