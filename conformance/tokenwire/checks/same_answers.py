"""Checks that compare two answers to one request: a stream with the whole answer, or streams at different
intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from tokenwire.checks.about import ANY, streamed, undisturbed_choices
from tokenwire.checks.acceptor import Rules, accept, deliveries_of, idle_start, record_of
from tokenwire.checks.check import Relation, Target, compare, compare_rows
from tokenwire.checks.delivery import interval_of
from tokenwire.checks.difference import first_difference, observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.chance import DRIFT, LoadedPair, Pair, entries_go_apart, goes_apart
from tokenwire.checks.reading.channels import CALLED, taken_apart
from tokenwire.checks.reading.fields import bringing, end_place, usage_count
from tokenwire.dialects.dialect import has_items
from tokenwire.dialects.logprobs import CONTENT, NAMED_TOP, TOP
from tokenwire.record import Choice, Delivery, Emission, Place, Stream, integer
from tokenwire.target.alike import ROUNDING, alike
from tokenwire.target.determinism import Comparison

COUNTERS = ("completion_tokens", "prompt_tokens", "reasoning_tokens")
"""Counters that the content determines. cached_tokens is not one of them, because it depends on earlier
requests.
"""

_TOO_NOISY = "{name} varies more than drift in answers to one request"
_HOLD_TOP = frozenset({TOP, CONTENT, NAMED_TOP})
"""Series whose entries contain as many top logprobs as the request enables."""


def _without(choice: Choice, names: frozenset[str]) -> Choice:
    def rest(emission: Emission) -> Emission:
        return replace(emission, series={n: value for n, value in emission.series.items() if n not in names})

    return replace(choice, emissions=tuple(map(rest, choice.emissions)))


def _without_bytes(choice: Choice) -> Choice:
    """Return a choice without the bytes in its logprobs.

    Endpoints with typed items send these bytes in closed items, but never in deltas.
    """

    def rest(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: rest(member) for name, member in value.items() if name != "bytes"}
        return list(map(rest, value)) if isinstance(value, list) else value

    emissions = (replace(emission, series=rest(emission.series)) for emission in choice.emissions)
    return replace(choice, emissions=tuple(emissions))


def _undisturbed_pairs(comparison: Comparison) -> list[LoadedPair]:
    """Return pairs of choices that both answers completed, without aborted choices.

    Top logprobs are removed if the requests enable different numbers of them.
    """
    alike_top = comparison.baseline.asked.top_logprobs == comparison.other.asked.top_logprobs
    unlike = frozenset() if alike_top else _HOLD_TOP

    def undisturbed(stream: Stream) -> dict[int, Choice]:
        finished = undisturbed_choices(stream)
        if has_items(stream):
            finished = list(map(_without_bytes, finished))
        return {c.index: _without(c, unlike) if unlike else c for c in finished}

    ours, theirs = undisturbed(comparison.baseline), undisturbed(comparison.other)
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    sides = (comparison.baseline, comparison.other)
    return [_unparsed(pair) if any(map(taken_apart, sides, pair)) else pair for pair in pairs]


def _unparsed(pair: LoadedPair) -> LoadedPair:
    """Return the choices without text and calls, because the checks of channels compare these."""
    called = any(part.finish is not None and part.finish.type == CALLED for part in pair)

    def rest(part: Emission) -> Emission:
        finish = part.finish
        if called and finish is not None and finish.type in (CALLED, "stop"):
            finish = replace(finish, type="stop", matched=None)
        return replace(part, text=None, finish=finish)

    ours, theirs = (replace(part, emissions=tuple(map(rest, part.emissions))) for part in pair)
    return ours, theirs


def _places(pair: Pair, field: str, position: int | None = None) -> tuple[Place, tuple[Place, ...]]:
    """Return the places of a field's entry in two choices: the place in the second choice, and a tuple with
    the place in the first choice.
    """
    ours, theirs = (bringing(choice, field, position) for choice in pair)
    return theirs, (ours,)


Rounding = Callable[[str], float]
"""A function that returns the maximum difference between two numbers of a series."""


def _close(_series: str) -> float:
    return ROUNDING


def same_ids(pair: Pair, source: str, _rounding: Rounding = _close) -> Iterator[Observation]:
    """Observe that two choices have the same output ids, if both have a list of ids."""
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


def same_text(pair: Pair, source: str, _rounding: Rounding = _close) -> Iterator[Observation]:
    """Observe that two choices have the same text, if both have a text."""
    ours, theirs = pair[0].text, pair[1].text
    if ours is not None and theirs is not None:
        place, related = _places(pair, "text", first_difference(ours, theirs))
        by_chance = ours != theirs and goes_apart(pair)
        yield observe_text(
            place, expected=ours, actual=theirs, source=source, related=related, by_chance=by_chance
        )


def same_series(pair: LoadedPair, source: str, rounding_of: Rounding = _close) -> Iterator[Observation]:
    """Observe that the common series of two choices are equal, except for rounding.

    Logprobs are skipped if they vary as much between equal answers as between positions.
    """
    customized = pair[0].customized & pair[1].customized
    for name in sorted(pair[0].series_names & pair[1].series_names):
        ours, theirs, rounding = pair[0].series(name), pair[1].series(name), rounding_of(name)
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


def same_finish(pair: Pair, source: str, _rounding: Rounding = _close) -> Iterator[Observation]:
    """Observe that two choices finished for the same reason."""
    ours, theirs = pair[0].finish, pair[1].finish
    if ours is None or theirs is None:
        return
    place, related = _places(pair, "finish")
    reported = [(f"finished with {theirs.type!r}, but {source} with {ours.type!r}", ours.type, theirs.type)]
    # If both choices stopped, both must name the stop. If one did not stop, only two names can differ.
    named = ours.matched is not None or theirs.matched is not None
    if named and (ours.type == theirs.type == "stop" or None not in (ours.matched, theirs.matched)):
        message = f"stopped by {theirs.matched!r}, but {source} by {ours.matched!r}"
        reported.append((message, ours.matched, theirs.matched))
    for message, expected, actual in reported:
        by_chance = expected != actual and goes_apart(pair)
        yield expect(place, expected, actual, message, related=related, by_chance=by_chance)


def same_counters(pair: Pair, source: str, _rounding: Rounding = _close) -> Iterator[Observation]:
    """Observe that two choices have equal counters. Choices that diverge may differ in length."""
    for name in COUNTERS:
        ours, theirs = (integer(choice.counter(name)) for choice in pair)
        if ours is not None and theirs is not None:
            place, related = _places(pair, name)
            message = f"{name} is {theirs} at the end, but {ours} in {source}"
            # A divergence at a near tie may change the length of the output, but not the length of the
            # prompt.
            by_chance = name != "prompt_tokens" and ours != theirs and goes_apart(pair)
            yield expect(place, ours, theirs, message, related=related, by_chance=by_chance)


USAGE = ("prompt_tokens", "completion_tokens")


def same_usage(
    comparison: Comparison, source: str, pairs: Iterable[Pair], names: Sequence[str] = USAGE
) -> Iterator[Observation]:
    """Observe that two answers report the same usage. `pairs` are their choices."""
    ours, theirs = comparison.baseline, comparison.other
    place = theirs.usage_place or end_place(theirs)
    related = (ours.usage_place or end_place(ours),)
    for name in names:
        expected, actual = (usage_count(stream, name) for stream in (ours, theirs))
        if expected is not None and actual is not None:
            message = f"{name} is {actual} in the usage, but {expected} in {source}"
            by_chance = name != "prompt_tokens" and expected != actual and any(map(goes_apart, pairs))
            yield expect(place, expected, actual, message, related=related, by_chance=by_chance)


# Selection of the answers that are compared.


class Pairs(NamedTuple):
    """Pairs of choices that must be equal. The first choice of each pair is the baseline."""

    source: str
    """A phrase for messages that names the baseline, such as `the whole answer`."""
    rounding: Rounding
    choices: Iterable[LoadedPair]


def _with_whole(comparison: Comparison, target: Target) -> Pairs | None:
    """Return the pairs of choices of a whole answer and a stream. None for any other comparison."""
    if comparison.baseline.delivery is not Delivery.WHOLE or not streamed(comparison.other):
        return None
    rounding = partial(target.noise.rounding, comparison.other)
    return Pairs("the whole answer", rounding, _undisturbed_pairs(comparison))


def _other_interval(comparison: Comparison, target: Target) -> Pairs | None:
    """Return the pairs of choices of two streams with different intervals. None for any other comparison."""
    both = (comparison.baseline, comparison.other)
    first, second = (interval_of(stream, target) for stream in both)
    if not all(map(streamed, both)) or first == second:
        return None
    rounding = partial(target.noise.rounding, comparison.other)
    source = f"the stream at interval {first or 'unknown'}"
    return Pairs(source, rounding, _undisturbed_pairs(comparison))


@dataclass(frozen=True)
class Same(Relation):
    """Two answers to one request must be equal in the given fields."""

    pairs: Callable[[Comparison, Target], Pairs | None]
    fields: tuple[Callable[[LoadedPair, str, Rounding], Iterator[Observation]], ...]


def observe_same(row: Same, comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Compare each field of each pair of choices."""
    found = row.pairs(comparison, target)
    if found is None:
        return
    for pair in found.choices:
        for same in row.fields:
            yield from same(pair, found.source, found.rounding)


compare_rows(
    observe_same,
    Same("stream-ids-equal-whole", ANY, _with_whole, (same_ids,)),
    Same("stream-text-equals-whole", ANY, _with_whole, (same_text,)),
    Same("stream-series-equal-whole", ANY, _with_whole, (same_series,)),
    Same("stream-finish-equals-whole", ANY, _with_whole, (same_finish, same_counters)),
    Same(
        "result-independent-of-interval",
        ANY,
        _other_interval,
        (same_ids, same_text, same_series, same_finish),
    ),
)


@compare("customized-info-in-streams")
def _customized_info_in_streams(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Check that a stream has all keys of a custom sampler that the whole answer has."""
    for ours, theirs in found.choices if (found := _with_whole(comparison, target)) else ():
        if not theirs.output_ids:
            continue
        for name in sorted(name for name in ours.customized if ours.series(name)):
            place, related = _places((ours, theirs), name)
            message = f"no emission has {name}, but the whole answer does"
            expected = f"{name}, as in the whole answer"
            actual = sorted(theirs.series_names)
            yield expect(place, expected, actual, message, holds=name in theirs.series_names, related=related)


@compare("stream-is-legal-delivery")
def _stream_is_legal_delivery(comparison: Comparison, target: Target) -> Iterator[Observation]:
    """Check that the stream is a legal delivery of the whole answer. The acceptor names the first illegal
    emission.

    A difference may be chance only if the stream is a legal delivery of its own content.
    """
    asked = comparison.other.asked
    interval, stop = interval_of(comparison.other, target), () if asked.no_stop_trim else asked.stop
    rounding_of = partial(target.noise.rounding, comparison.other)
    for pair in found.choices if (found := _with_whole(comparison, target)) else ():
        ours, theirs = pair
        compared = ours.series_names & theirs.series_names - ours.customized
        rounding = max(map(rounding_of, compared), default=ROUNDING)
        if rounding > DRIFT:
            name = max(compared, key=rounding_of)
            yield left_out(theirs.last_at(name), _TOO_NOISY.format(name=name))
            continue
        rules = Rules(theirs.delivery, interval, rounding, stop)
        delivered = deliveries_of(theirs)
        idle = idle_start(delivered) if theirs.delivery is Delivery.INCREMENTAL else 0
        delivered = delivered[idle:]
        verdict, loose = accept(record_of(ours), delivered, rules), replace(rules, logprob_tolerance=DRIFT)
        # Chance changes numbers by up to `DRIFT`, or makes ids diverge at a near tie. It does not explain an
        # illegal delivery of the stream's own content.
        by_chance = not verdict.legal and (
            accept(record_of(ours), delivered, loose).legal
            or (goes_apart(pair) and accept(record_of(theirs), delivered, loose).legal)
        )
        last = len(theirs.emissions) - 1
        emission = theirs.emissions[last if verdict.index is None else min(verdict.index + idle, last)]
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
