"""Checks of the chapter on delivery that need a single stream: delivery modes, intervals and joined
outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from tokenwire.checks.about import INCREMENTAL, STREAMED, about, ended, streamed
from tokenwire.checks.check import (
    Target,
    check,
    check_choices,
    check_each,
    check_equal,
    check_finished,
    check_run,
)
from tokenwire.checks.evidence import Observation, Row, condition_seen, expect, expect_equal
from tokenwire.checks.lockstep import lockstep
from tokenwire.checks.reading.fields import read_once, untold_count, usage_count
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.dialects.logprobs import LISTS
from tokenwire.record import Answer, Choice, Delivery, Emission, Place, Stream, as_list, fact
from tokenwire.typed_table import counted

LONG_ANSWER = 50
"""The minimum number of ids that proves accumulation, because a server may collect fewer ids in one piece.

SGLang sends the state of a whole answer every 50 tokens.
"""

TELLING_GROWTHS = 3
"""The least number of consecutive growing texts that proves the cumulative mode."""


def interval_of(stream: Answer, target: Target) -> int | None:
    """Return the stream interval in force, from the request or from the server. None if it is unknown.

    A request value of 0 means the server's value. A value below 0 makes the server emit at every step, which
    no emission can violate. In some dialects a request can only raise the server's value.
    """
    interval = stream.asked.stream_interval or target.stream_interval
    if interval and target.stream_interval and policy_of(stream).stream_interval == "raises":
        interval = max(interval, target.stream_interval)
    return interval if interval is not None and interval > 0 else None


def _mode_of_text(emissions: Sequence[Emission]) -> Delivery | None:
    """Infer the delivery mode from the texts of a choice; None if it is unclear."""
    broken = grown = telling = 0
    for before, after in pairwise(emission for emission in emissions if emission.text):
        if not (after.text or "").startswith(before.text or ""):
            broken += 1
        elif after.text != before.text:
            grown += 1
            telling += not _begins_with(after.output_ids, before.output_ids)
    if broken > grown:
        return Delivery.INCREMENTAL
    return Delivery.CUMULATIVE if not broken and telling >= TELLING_GROWTHS else None


def _begins_with(ids: Sequence[Any] | None, before: Sequence[Any] | None) -> bool:
    """True if the ids of an emission begin with the ids of the previous emission.

    Then its text begins with the previous text in both delivery modes.
    """
    return bool(before) and list(before or ()) == list(ids or ())[: len(before or ())]


@read_once
def _modes(choice: Choice) -> list[tuple[Emission, str, Delivery]]:
    """Infer the mode of each list of each emission from its length, where the length is conclusive.

    The length is compared with completion_tokens. Without this counter, series are compared with the number
    of ids.
    """
    emissions = choice.delivered
    names = dict.fromkeys(["output_ids", *(name for emission in emissions for name in emission.series)])
    shown = []
    before: int | None = 0
    for emission in emissions:
        counter = emission.counter("completion_tokens")
        count, last = (emission.after, emission.before) if counter is None else (counter, before)
        before = counter
        if last is None or not 0 < last < count:
            continue
        fields = (
            emission.series if counter is None else {"output_ids": emission.output_ids, **emission.series}
        )
        for name in names:
            entries = fields.get(name)
            if not isinstance(entries, list):
                continue
            if len(entries) == count - last:
                shown.append((emission, name, Delivery.INCREMENTAL))
            elif len(entries) == count:
                shown.append((emission, name, Delivery.CUMULATIVE))
    return shown


@check("one-mode-per-stream", STREAMED)
def _one_mode_per_stream(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that all fields of a stream have one delivery mode: the mode of the first conclusive field."""
    first: Delivery | None = None
    for choice in stream.delivering_as_begun:
        modes = _modes(choice)
        first = first or next((mode for _, _, mode in modes), None)
        rows = ((emission, name, str(first), str(mode)) for emission, name, mode in modes)
        yield from expect_equal(rows, "{field} is {actual} in a stream that began {expected}")
        text_mode = _mode_of_text(choice.emissions)
        if first is not None and text_mode is not None:
            last = [emission for emission in choice.emissions if emission.text is not None][-1]
            message = f"text is {text_mode} in a stream whose ids and series are {first}"
            yield expect(last.at("text"), str(first), str(text_mode), message)


@check("mode-is-advertised", STREAMED)
def _mode_is_advertised(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that the ids of each choice come in the mode that the server advertises.

    The advertisement applies to endpoints with both modes.
    """
    advertised, dialect = target.advertised_delivery, dialect_of(stream)
    if advertised is None or (dialect is not None and dialect.fixed_delivery):
        return
    for choice in stream.delivering_as_begun:
        shown = next((shown for shown in _modes(choice) if shown[1] == "output_ids"), None)
        if shown is not None:
            emission, name, mode = shown
            message = f"the server advertises {advertised} streams, but {name} is {mode}"
            yield expect(emission.at(name), str(advertised), str(mode), message)


@check_equal(
    "incremental-ids-are-new",
    INCREMENTAL,
    "{actual} output ids came while completion_tokens grew by {expected}",
)
def _new_ids(choice: Choice) -> Iterator[tuple[Emission, str, int, int]]:
    """Yield the growth of completion_tokens as the expected value, and the number of new ids as the actual
    value.
    """
    counted = delivered = 0
    for emission in choice.delivered if _carries_ids(choice) else ():
        count = emission.counter("completion_tokens")
        if count is not None:
            yield emission, "output_ids", count - counted, emission.after - delivered
            counted, delivered = count, emission.after


def _carries_ids(choice: Choice) -> bool:
    return any(emission.output_ids is not None for emission in choice.delivered)


@check("first-emission-has-a-token", STREAMED)
def _first_emission_has_a_token(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the first emission with a list of ids has at least one id."""
    for choice in stream.delivering_as_begun:
        carrying = [emission for emission in choice.delivered if emission.output_ids is not None]
        if any(emission.output_ids for emission in carrying):
            first, count = carrying[0], len(carrying[0].output_ids or ())
            message = f"the first emission of choice {choice.index} carries no output id"
            yield expect(first.at("output_ids"), "at least one id", count, message, holds=count > 0)


@check_choices("interval-is-kept", STREAMED)
def _interval_is_kept(choice: Choice, stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that no emission between the first and the last has fewer new ids than the interval.

    Every stream satisfies an interval of 1. Another requirement covers emissions without new ids.
    """
    interval = interval_of(stream, target)
    if interval is None or interval == 1:
        return
    every = choice.delivered[-1].after if choice.delivered else 0
    for emission in choice.delivered:
        inner = emission.before > 0 and emission.after < every  # the finish may come in a separate event
        if inner and emission.output_ids is not None and emission.finish is None and emission.new > 0:
            message = f"{emission.new} new output ids at a stream_interval of {interval}"
            place, expected = emission.at("output_ids"), f"at least {interval} new ids"
            yield expect(place, expected, emission.new, message, holds=emission.new >= interval)


@check_each("no-idle-emissions", STREAMED, "the emission brings no new id, no new text and no finish reason")
def _brought(choice: Choice) -> Iterator[Row]:
    """Yield a row for each emission.

    An emission must carry something new, or the role that opens a chat choice.
    """
    held = ""
    for emission in choice.delivered if _carries_ids(choice) else ():
        text, finish = emission.text, emission.finish
        new_text = bool(text) and (emission.incremental or text != held)
        parsed = bool(emission.reasoning) or any(piece.name or piece.arguments for piece in emission.calls)
        brings = emission.new > 0 or finish is not None or new_text or parsed
        held = held if text is None else text
        if emission.details.get("role") is None:
            actual = "something new" if brings else "nothing new"
            yield emission, "output_ids", brings, "a new id, new text or a finish reason", actual


@check_finished("whole-accumulates", about(delivery=Delivery.WHOLE))
def _whole_accumulates(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a long whole answer has as many ids and entries as completion_tokens says."""
    if stream.asked.max_new_tokens == 0:
        return
    count, names, emission = _reported_count(stream, choice), choice.series_names, choice.emissions[-1]
    if count is None:
        # The lists of completions have one entry for each of these tokens.
        count, names = untold_count(stream, choice), LISTS & names
    series = {name: value for name, value in emission.series.items() if name in names}
    for name, value in {"output_ids": emission.output_ids, **series}.items() if count is not None else ():
        entries = as_list(value)
        if entries is not None and count is not None and (count > LONG_ANSWER or len(entries) != count):
            message = f"{name} holds {counted(len(entries), 'entry')} of an answer of {count} tokens"
            yield expect(emission.at(name), count, len(entries), message)


def _reported_count(stream: Stream, choice: Choice) -> int | None:
    """Return the number of tokens that an answer reports for a choice.

    It is the choice's counter. If an answer has a single choice with ids, it may be the count in the usage.
    """
    count = choice.counter("completion_tokens")
    if count is None and len(stream.choices) == 1 and choice.output_ids is not None:
        count = usage_count(stream)
    return count


@check("coalescing-keeps-all", STREAMED)
def _coalescing_keeps_all(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an emission that joins several outputs has all of their entries, and that its counters
    include them.

    An output has as many new ids as the interval (the first output has one id), or 1 if the interval is
    unknown. A loss shows in completion_tokens, which continues to count. Speculative decoding also joins
    outputs, because it yields several tokens in one step.
    """
    interval = interval_of(stream, target) or 1
    for choice in stream.delivering_as_begun:
        names = sorted({name for emission in choice.delivered for name in emission.series})
        for emission, size in _joined(choice.delivered, interval):
            place = emission.at("output_ids")
            yield condition_seen(place, f"an emission of {size} ids at interval {interval}")
            count = emission.counter("completion_tokens")
            if count is not None:
                after = emission.after
                message = f"the joined emission counts {count} tokens, but {after} ids were delivered"
                yield expect(emission.at("completion_tokens"), after, count, message)
            yield from lockstep([emission], names)


def _joined(emissions: Sequence[Emission], interval: int) -> Iterator[tuple[Emission, int]]:
    """Yield each emission with more ids than one output has, and the number of its ids."""
    counted = 0
    for emission in emissions:
        count = emission.counter("completion_tokens")
        size = emission.new if count is None else max(emission.new, count - counted)
        counted = counted if count is None else count
        if size > (1 if emission.before == 0 else interval) and emission.output_ids is not None:
            yield emission, size


_TELLING_STREAMS = 4
"""The minimum number of streams. In fewer streams, all first ids may be joined by chance."""


@fact(Stream)
def _first_ids(stream: Stream) -> tuple[tuple[Place, int, int], ...]:
    """Return for each choice the place and the number of its first ids, and its total number of ids."""
    return tuple(
        (first.at("output_ids"), first.new, choice.delivered[-1].after)
        for choice in stream.delivering_as_begun
        for first in [emission for emission in choice.delivered if emission.output_ids and emission.new][:1]
    )


@check_run("first-ids-at-once")
def _first_ids_at_once(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the first emission does not wait until the interval is full.

    The network may join ids, so one stream proves nothing. The requirement is violated only if all of several
    streams send a full interval first. Otherwise each stream that sends its first ids early is a witness.
    """
    intervals = ((stream, interval_of(stream, target) or 0) for stream in streams)
    firsts = [
        (place, new, interval)
        for stream, interval in intervals
        if interval > 1 and streamed(stream) and not stream.asked.stop
        for place, new, after in _first_ids(stream)
        if after > interval
    ]
    early = [(place, new, interval) for place, new, interval in firsts if new < interval]
    for place, new, interval in early or (firsts if len(firsts) >= _TELLING_STREAMS else []):
        message = f"the first emission waited for {new} ids, as in all {len(firsts)} streams"
        expected = f"fewer than {interval} ids in the first emission of one of {len(firsts)} streams"
        yield expect(place, expected, new, message, holds=new < interval)


_MANY = 64
"""The minimum number of events in a stream. A server cannot generate this number all at once."""
_LONG_S = 0.1
_AT_ONCE = 0.01
"""The maximum share of an answer's time in which the events of a burst arrive."""
_TOO_CLOSE_S = 2e-4
"""Seconds per event. A server needs more time to generate an event; events that were held back come faster.
"""
_SEVERAL = 2
"""The minimum number of long streams, because a single stream may have had a late reader."""


@fact(Stream)
def _arrival(stream: Stream) -> tuple[int, float, float]:
    """Return the number of emissions, and the times of the first and the last one."""
    emissions = stream.emissions()
    times = (emissions[0].event.place.time, emissions[-1].event.place.time) if emissions else (0.0, 0.0)
    return len(emissions), *times


@check_run("stream-comes-in-a-burst")
def _stream_comes_in_a_burst(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an endpoint does not hold back its long streams until their end."""
    long: dict[str, list[tuple[float, Answer]]] = {}
    for stream in streams:
        count, first, last = _arrival(stream) if streamed(stream) and ended(stream) else (0, 0.0, 0.0)
        if count >= _MANY and last >= _LONG_S:
            long.setdefault(stream.dialect, []).append(((last - first) / last, stream))
    for reported in long.values():
        if len(reported) < _SEVERAL:
            continue
        share, stream = max(reported, key=lambda entry: entry[0])
        emissions = stream.load().emissions()
        place = emissions[-1].event.place
        took = share * place.time
        came = f"within {took:.3f} s, {place.time:.1f} s after the request"
        message = f"all {counted(len(emissions), 'event')} came {came}"
        expected = "events that come as they are generated"
        as_made = share > _AT_ONCE and took > _TOO_CLOSE_S * len(emissions)
        yield expect(place, expected, "a burst", message, holds=as_made)
