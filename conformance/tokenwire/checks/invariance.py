"""Checks of invariance: results do not depend on the cache, on preemption or on how far a stream has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from statistics import median

from tokenwire.checks.about import INCREMENTAL
from tokenwire.checks.agreement import agree, as_declared, choice_pairs
from tokenwire.checks.check import Target, check, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.isolation import beginnings
from tokenwire.record import Answer, Stream, fact, integer
from tokenwire.requirement import tolerance

_LEAST_EVENTS = 64
"""Fewer say nothing about how the size of an event grows."""
_GROWTH = tolerance("event_growth")
_SLACK_BYTES = tolerance("event_slack")
"""Numbers get longer, and some tokens have longer texts than others."""


def _most(stream: Answer, counter: str) -> int:
    """The highest value of a counter in an answer."""
    return _highest(stream).get(counter, 0)


@fact(Stream)
def _highest(stream: Stream) -> dict[str, int]:
    """The highest value of each counter in an answer."""
    highest: dict[str, int] = {}
    for emission in stream.emissions():
        for name, value in emission.counters.items():
            if (count := integer(value)) is not None:
                highest[name] = max(count, highest.get(name, count))
    return highest


def _with_and_without(
    streams: tuple[Answer, ...], shows: Callable[[Answer], int], *, less: bool
) -> Iterator[tuple[Answer, Answer]]:
    """Each answer in which something happened, behind one that begins alike in which it did not, or less."""
    for group in beginnings(streams):
        baseline = min(group, key=shows)
        least = shows(baseline)
        if least and not less:
            continue
        for stream in group:
            if shows(stream) > least:
                baseline = baseline.load()  # read once for all that are held against it
                yield baseline, stream


@check_run("cache-changes-nothing")
def _cache_changes_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """A prompt from the cache is answered as the same prompt computed."""
    for cold, warm in _with_and_without(streams, lambda s: _most(s, "cached_tokens"), less=True):
        source = f"the answer with {_most(cold, 'cached_tokens')} cached tokens"
        for one, other in choice_pairs(cold, warm):
            yield from as_declared(agree(one, other, source), target)


def _told(stream: Answer) -> tuple[object, ...]:
    """What a request asks to be told, beside its result."""
    asked = stream.asked
    logprobs = (asked.logprobs, asked.logprob_start, asked.top_logprobs, asked.chosen_ids)
    return (*logprobs, asked.return_prompt_token_ids, asked.return_token_ids, asked.return_meta_info)


def _most_asked(stream: Answer) -> tuple[int, int]:
    return stream.asked.top_logprobs, stream.asked.max_new_tokens or 0


@check_run("asking-for-more-changes-nothing")
def _asking_for_more_changes_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """What a request asks to be told shapes what is told, and nothing else of the answer.

    Whole answers are looked at: a stream is held against one of these.
    """
    for beginning in beginnings(streams):
        group = [(_told(one), _most_asked(one), one) for one in beginning if not one.asked.stream]
        if len(group) < 2:
            continue
        all_told, _, most = max(group, key=itemgetter(1))
        for reported, _, stream in group:
            if reported != all_told:
                most = most.load()  # read once for all that are held against it
                for one, other in choice_pairs(most, stream):
                    source = f"the answer of {most.exchange.name}, which asks for more"
                    yield from as_declared(agree(one, other, source, told_apart=True), target)


@check_run("preemption-changes-nothing")
def _preemption_changes_nothing(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """A request that was preempted is answered as one that was not."""
    for calm, preempted in _with_and_without(streams, lambda s: _most(s, "num_retractions"), less=False):
        source = "the answer without preemption"
        for one, other in choice_pairs(calm, preempted):
            yield from as_declared(agree(one, other, source), target)


@check("events-do-not-grow", INCREMENTAL)
def _events_do_not_grow(stream: Stream, _target: Target) -> Iterator[Observation]:
    """In incremental delivery an event is as large late in a stream as it was early.

    Events are compared that carry equally many ids. Only streams of one choice: their events are all its own.
    """
    if len(stream.choices) != 1:
        return
    inner = [one for one in stream.choices[0].delivered if one.position > 0 and one.finish is None]
    counts = [one.new for one in inner]
    usual = max(set(counts), key=counts.count, default=0)
    alike = [one.event.place for one in inner if one.new == usual]
    if len(alike) < _LEAST_EVENTS:
        return
    quarter = len(alike) // 4
    early, late = (
        int(median(place.end - place.start for place in part)) for part in (alike[:quarter], alike[-quarter:])
    )
    message = f"early events have some {early} bytes, late ones {late}, for as many ids"
    yield expect(
        alike[-quarter], f"some {early} bytes", late, message, holds=late <= _GROWTH * early + _SLACK_BYTES
    )
