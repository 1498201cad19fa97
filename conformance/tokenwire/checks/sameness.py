"""Checks that compare answers to one request: a stream with the whole answer, one interval with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tokenwire.checks.about import ended, streamed
from tokenwire.checks.acceptor import Rules, accept, deliveries_of, record_of
from tokenwire.checks.check import Target, compare
from tokenwire.checks.delivery import interval_of
from tokenwire.checks.difference import first_difference, observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.logprob_entry import CONTENT, NAMED_TOP, TOP
from tokenwire.checks.reading.chance import DRIFT, LoadedPair, Pair, entries_go_apart, goes_apart
from tokenwire.checks.reading.channels import CALLED, taken_apart
from tokenwire.checks.reading.fields import bringing
from tokenwire.record import Choice, Delivery, Emission, Place, Stream, as_list, integer
from tokenwire.target.alike import ROUNDING, alike
from tokenwire.target.determinism import Comparison

COUNTERS = ("completion_tokens", "prompt_tokens", "reasoning_tokens")
"""Counters that the result decides; cached_tokens depends on what ran before."""

_TOO_NOISY = "{name} varies more than drift in answers to one request"
_HOLD_TOP = frozenset({TOP, CONTENT, NAMED_TOP})
"""Series whose entries hold as many top logprobs as were asked for."""


def _without(choice: Choice, names: frozenset[str]) -> Choice:
    emissions = (
        replace(
            emission, series={name: value for name, value in emission.series.items() if name not in names}
        )
        for emission in choice.emissions
    )
    return replace(choice, emissions=tuple(emissions))


def _pairs(comparison: Comparison) -> list[LoadedPair]:
    """The choices that both answers finished undisturbed, baseline first.

    Where they were asked for different numbers of top logprobs, they go without these.
    """
    alike_top = comparison.baseline.asked.top_logprobs == comparison.other.asked.top_logprobs
    unlike = frozenset() if alike_top else _HOLD_TOP

    def undisturbed(stream: Stream) -> dict[int, Choice]:
        if not stream.answered or not ended(stream):
            return {}
        finished = (c for c in stream.choices if c.finish is not None and c.finish.type != "abort")
        return {c.index: _without(c, unlike) if unlike else c for c in finished}

    ours, theirs = undisturbed(comparison.baseline), undisturbed(comparison.other)
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    sides = (comparison.baseline, comparison.other)
    return [_unparsed(pair) if any(map(taken_apart, sides, pair)) else pair for pair in pairs]


def _unparsed(pair: LoadedPair) -> LoadedPair:
    """Choices that a parser took apart, without what the chapter on channels compares: their text, and
    whether they end in tool calls.
    """
    called = any(one.finish is not None and one.finish.type == CALLED for one in pair)

    def rest(one: Emission) -> Emission:
        finish = one.finish
        if called and finish is not None and finish.type in (CALLED, "stop"):
            finish = replace(finish, type="stop", matched=None)
        return replace(one, text=None, finish=finish)

    ours, theirs = (replace(one, emissions=tuple(map(rest, one.emissions))) for one in pair)
    return ours, theirs


def _with_whole(comparison: Comparison) -> list[LoadedPair]:
    """The pairs of a comparison between a whole answer and a stream."""
    is_one = comparison.baseline.delivery is Delivery.WHOLE and streamed(comparison.other)
    return _pairs(comparison) if is_one else []


def _places(pair: Pair, field: str, position: int | None = None) -> tuple[Place, tuple[Place, ...]]:
    """Where the other choice brings the entry of a field at a position, and where the first one does."""
    ours, theirs = (bringing(choice, field, position) for choice in pair)
    return theirs, (ours,)


def same_ids(pair: Pair, source: str) -> Iterator[Observation]:
    """Look whether two choices have the same output ids, where both carry any list of them."""
    ours, theirs = pair[0].output_ids, pair[1].output_ids
    if ours is not None and theirs is not None:
        place, related = _places(pair, "output_ids", first_difference(ours, theirs))
        yield observe_sequence(
            place,
            "output id",
            expected=ours,
            actual=theirs,
            source=source,
            related=related,
            by_chance=ours != theirs and goes_apart(pair),
        )


def same_text(pair: Pair, source: str) -> Iterator[Observation]:
    """Look whether two choices have the same text, where both carry text."""
    ours, theirs = pair[0].text, pair[1].text
    if ours is not None and theirs is not None:
        place, related = _places(pair, "text", first_difference(ours, theirs))
        by_chance = ours != theirs and goes_apart(pair)
        yield observe_text(
            place, expected=ours, actual=theirs, source=source, related=related, by_chance=by_chance
        )


def _rounding(_series: str) -> float:
    return ROUNDING


def same_series(
    pair: LoadedPair, source: str, rounding_of: Callable[[str], float] = _rounding
) -> Iterator[Observation]:
    """Look whether the series that both choices carry are the same up to rounding.

    Logprobs that vary as much as those of different positions do are not compared.
    """
    customized = pair[0].customized & pair[1].customized
    for name in sorted(pair[0].series_names & pair[1].series_names):
        ours, theirs, rounding = (
            as_list(pair[0].series(name)),
            as_list(pair[1].series(name)),
            rounding_of(name),
        )
        same = partial(alike, tolerance=rounding)
        if ours is None or theirs is None:
            continue
        if rounding > DRIFT and name not in customized:
            yield left_out(pair[1].last_at(name), _TOO_NOISY.format(name=name))
            continue
        position = first_difference(ours, theirs, same)
        place, related = _places(pair, name, position)
        yield observe_sequence(
            place,
            f"{name} entry",
            expected=ours,
            actual=theirs,
            source=source,
            same=same,
            related=related,
            by_chance=position is not None and entries_go_apart(pair, position, (ours, theirs)),
        )


def same_finish(pair: Pair, source: str) -> Iterator[Observation]:
    """Look whether two choices finished for the same reason."""
    ours, theirs = pair[0].finish, pair[1].finish
    if ours is None or theirs is None:
        return
    place, related = _places(pair, "finish")
    reported = [(f"finished with {theirs.type!r}, but {source} with {ours.type!r}", ours.type, theirs.type)]
    named = ours.matched is not None or theirs.matched is not None
    if named and (ours.type == theirs.type == "stop" or None not in (ours.matched, theirs.matched)):
        message = f"stopped by {theirs.matched!r}, but {source} by {ours.matched!r}"
        reported.append((message, ours.matched, theirs.matched))
    for message, expected, actual in reported:
        by_chance = expected != actual and goes_apart(pair)
        yield expect(place, expected, actual, message, related=related, by_chance=by_chance)


@compare("result-independent-of-interval")
def _result_independent_of_interval(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Two streams of one request at different intervals are the same record, cut differently."""
    ours, theirs = comparison.baseline, comparison.other
    if not (streamed(ours) and streamed(theirs)):
        return
    intervals = [interval_of(stream, target) for stream in (ours, theirs)]
    if intervals[0] == intervals[1]:
        return
    source = f"the stream at interval {intervals[0] or 'unknown'}"
    for pair in _pairs(comparison):
        yield from same_ids(pair, source)
        yield from same_text(pair, source)
        yield from same_series(pair, source, partial(target.noise.rounding, theirs))
        yield from same_finish(pair, source)


@compare("stream-ids-equal-whole")
def _stream_ids_equal_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """No id is lost, repeated or changed by streaming."""
    for pair in _with_whole(comparison):
        yield from same_ids(pair, "the whole answer")


@compare("stream-text-equals-whole")
def _stream_text_equals_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """No character is lost, repeated or changed by streaming."""
    for pair in _with_whole(comparison):
        yield from same_text(pair, "the whole answer")


@compare("stream-series-equal-whole")
def _stream_series_equal_whole(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """No entry is lost, repeated or changed by streaming."""
    for pair in _with_whole(comparison):
        yield from same_series(pair, "the whole answer", partial(target.noise.rounding, comparison.other))


@compare("customized-info-in-streams")
def _customized_info_in_streams(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """The keys that a sampler brings stand in the whole answer, and must stand in the stream as well."""
    for ours, theirs in _with_whole(comparison):
        if not theirs.output_ids:
            continue
        for name in sorted(name for name in ours.customized if as_list(ours.series(name))):
            place, related = _places((ours, theirs), name)
            message = f"no emission carries {name}, which stands in the whole answer"
            expected = f"{name}, as in the whole answer"
            actual = sorted(theirs.series_names)
            yield expect(place, expected, actual, message, holds=name in theirs.series_names, related=related)


@compare("stream-finish-equals-whole")
def _stream_finish_equals_whole(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """A stream ends for the same reason and with the same counters."""
    for pair in _with_whole(comparison):
        yield from same_finish(pair, "the whole answer")
        for name in COUNTERS:
            ours, theirs = (integer(choice.counter(name)) for choice in pair)
            if ours is not None and theirs is not None:
                place, related = _places(pair, name)
                message = f"{name} is {theirs} at the end, but {ours} in the whole answer"
                by_chance = name != "prompt_tokens" and ours != theirs and goes_apart(pair)
                yield expect(place, ours, theirs, message, related=related, by_chance=by_chance)


@compare("stream-is-legal-delivery")
def _stream_is_legal_delivery(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """The stream sent some legal cut of the whole answer; the acceptor names the first step that is not.

    Where the stream is a legal cut of what it joins to itself, only its content can be at fault.
    """
    asked = comparison.other.asked
    interval, stop = interval_of(comparison.other, target), () if asked.no_stop_trim else asked.stop
    rounding_of = partial(target.noise.rounding, comparison.other)
    for pair in _with_whole(comparison):
        ours, theirs = pair
        compared = ours.series_names & theirs.series_names - ours.customized
        rounding = max(map(rounding_of, compared), default=ROUNDING)
        if rounding > DRIFT:
            name = max(compared, key=rounding_of)
            yield left_out(theirs.last_at(name), _TOO_NOISY.format(name=name))
            continue
        rules = Rules(theirs.delivery, interval, rounding, stop)
        delivered = deliveries_of(theirs)
        verdict, loose = accept(record_of(ours), delivered, rules), replace(rules, logprob_tolerance=DRIFT)
        by_chance = not verdict.legal and (
            accept(record_of(ours), delivered, loose).legal
            or (goes_apart(pair) and accept(record_of(theirs), delivered, loose).legal)
        )
        last = len(theirs.emissions) - 1
        emission = theirs.emissions[last if verdict.at is None else min(verdict.at, last)]
        field = verdict.field or "output_ids"
        yield expect(
            emission.at(field),
            "a legal delivery of the whole answer",
            verdict.reason or "a legal delivery of the whole answer",
            f"{verdict.field} {verdict.reason}",
            holds=verdict.legal,
            related=(bringing(ours, field),),
            by_chance=by_chance,
        )
