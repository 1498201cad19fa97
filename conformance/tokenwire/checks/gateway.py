"""Checks of gateways: the gateway's answer is compared with the worker's answer.

A gateway may cut the stream differently, and may add its own fields. It must not lose or change the worker's
fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tokenwire.checks.about import ANY, ended, is_error
from tokenwire.checks.check import Target, check_run, compare, compare_rows
from tokenwire.checks.difference import first_difference, observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.chance import DRIFT, LoadedPair, goes_apart
from tokenwire.checks.reading.fields import (
    end_place,
    first_of_prompt,
    first_prompt_ids,
    names_of_prompt,
    start_place,
)
from tokenwire.checks.reading.json_fields import lost, place_of_loss, told_by
from tokenwire.checks.reading.refusals import ABOUT_ACCESS_OR_LOAD, was_refused, words_of
from tokenwire.checks.same_answers import (
    USAGE,
    Pairs,
    Rounding,
    Same,
    observe_same,
    same_counters,
    same_ids,
    same_series,
    same_text,
    same_usage,
)
from tokenwire.dialects.dialect import dialect_of
from tokenwire.record import Answer, Stream
from tokenwire.requirement import Level
from tokenwire.target.alike import alike
from tokenwire.target.cuts import CUT
from tokenwire.target.determinism import Comparison
from tokenwire.target.shown import least_inner_step
from tokenwire.wire.exchange import Ending

_SOURCE = "the worker's answer"
_ERROR, _BROKEN = "an error event", "a broken connection"
"""The ends of a stream whose worker broke off, that a client does not take for the end of a complete stream.
"""
_MOST_NAMED = 5
"""The maximum number of lost fields that one message names."""


def _answered(comparison: Comparison) -> bool:
    """True if the worker's answer is complete, and the gateway answered at least in part."""
    worker, gateway = comparison.baseline, comparison.other
    return worker.answered and ended(worker) and gateway.answered


def _gateway(comparison: Comparison, _target: Target | None = None) -> Pairs | None:
    """Return the choices that the worker finished and the gateway delivered. None if the answers cannot be
    compared.
    """
    if not comparison.repeats or not _answered(comparison):
        return None
    theirs = {choice.index: choice for choice in comparison.other.choices}
    finished = (c for c in comparison.baseline.choices if c.finish is not None and c.finish.type != "abort")
    both = [(choice, theirs[choice.index]) for choice in finished if choice.index in theirs]
    return Pairs(_SOURCE, partial(comparison.noise.rounding, comparison.other), both)


@compare("gateway-keeps-the-status")
def _gateway_keeps_the_status(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that the gateway answers or refuses with the worker's status.

    A gateway may have its own statuses for access and load.
    """
    worker, gateway = comparison.baseline, comparison.other
    theirs = gateway.exchange.status
    if theirs in ABOUT_ACCESS_OR_LOAD or not ((worker.answered and ended(worker)) or was_refused(worker)):
        return
    message = f"answered with status {theirs}, but the worker answers with {worker.exchange.status}"
    expected = worker.exchange.status
    yield expect(start_place(gateway), expected, theirs, message, related=(start_place(worker),))


@compare("gateway-keeps-the-reason")
def _gateway_keeps_the_reason(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that the gateway keeps the worker's error message, because only the worker knows the error in a
    request.
    """
    worker, gateway = comparison.baseline, comparison.other
    ours = words_of(worker.error)
    if not was_refused(worker) or not was_refused(gateway) or not ours:
        return
    theirs = words_of(gateway.error)
    message = "the refusal does not contain the worker's message"
    place = start_place(gateway)
    yield expect(place, ours, theirs, message, holds=ours in theirs, related=(start_place(worker),))


@compare("gateway-keeps-every-field")
def _gateway_keeps_every_field(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that no field is lost. A gateway that parses answers into a type of its own drops
    unknown fields.
    """
    worker, gateway = comparison.baseline, comparison.other
    if not _answered(comparison):
        return
    ours, missing = told_by(worker), lost(worker, gateway)
    dialect = dialect_of(worker)
    names = dialect.told_names if dialect else frozenset()
    promised = [path for path in missing if not names or names.intersection(path.split("/"))]
    other = [path for path in missing if path not in promised]
    for paths, level in ((promised, None), (other, Level.SHOULD))[: 2 if other else 1]:
        plural = "s" * (len(paths) != 1)
        seen = expect(
            place_of_loss(gateway, paths[0]) if paths else end_place(gateway),
            _first_paths(paths) or f"the {len(ours)} fields of {_SOURCE}",
            "missing" if paths else f"the {len(ours)} fields of {_SOURCE}",
            f"{len(paths)} field{plural} of {_SOURCE} lost, first {paths[0] if paths else ''}",
            holds=not paths,
            related=(ours[paths[0]] if paths else start_place(worker),),
        )
        yield seen._replace(level=level)


def _first_paths(paths: Sequence[str]) -> str:
    """List the first of some paths."""
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _same_prompt_ids(pair: LoadedPair, source: str, _rounding: Rounding) -> Iterator[Observation]:
    expected, actual = (first_prompt_ids(choice) for choice in pair)
    if expected is not None and actual is not None:
        yield observe_sequence(
            actual[0].at("prompt_token_ids"),
            "prompt token id",
            expected=expected[1],
            actual=actual[1],
            source=source,
            related=(expected[0].at("prompt_token_ids"),),
        )


def _same_prompt_series(pair: LoadedPair, source: str, rounding_of: Rounding) -> Iterator[Observation]:
    ours, theirs = pair
    for name in sorted(names_of_prompt(ours) & names_of_prompt(theirs)):
        first, other = (first_of_prompt(choice, name, empty=False) for choice in (ours, theirs))
        if first is None or other is None:
            continue
        expected, actual = first[1], other[1]
        position = first_difference(expected, actual, partial(alike, tolerance=rounding_of(name)))
        message = f"{name} differs from {source} at position {position}"
        yield expect(
            other[0].at(name),
            expected if position is None else expected[position : position + 1],
            actual if position is None else actual[position : position + 1],
            message,
            holds=position is None,
            related=(first[0].at(name),),
            by_chance=alike(expected, actual, DRIFT),
        )


compare_rows(
    observe_same,
    Same("gateway-keeps-the-ids", ANY, _gateway, (same_ids, _same_prompt_ids)),
    Same("gateway-keeps-the-text", ANY, _gateway, (same_text,)),
    Same("gateway-keeps-the-series", ANY, _gateway, (same_series, _same_prompt_series)),
)


@compare("gateway-keeps-the-finish")
def _gateway_keeps_the_finish(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that the gateway has every choice that the worker finished, with the same finish reason."""
    worker, gateway = comparison.baseline, comparison.other
    if not comparison.repeats or not _answered(comparison):
        return
    theirs = {choice.index: choice for choice in gateway.choices}
    for choice in worker.choices:
        if choice.finish is None:
            continue
        other = theirs.get(choice.index)
        finish = other.finish if other is not None else None
        reported = (finish.type, finish.matched) if finish is not None else None
        due = choice.finish.type, choice.finish.matched
        place = other.last_at("finish") if other is not None else end_place(gateway)
        message = f"choice {choice.index} ended with {reported}, but in {_SOURCE} with {due}"
        by_chance = other is not None and reported not in (None, due) and goes_apart((choice, other))
        yield expect(place, due, reported, message, related=(choice.last_at("finish"),), by_chance=by_chance)


@compare("gateway-keeps-the-interval")
def _gateway_keeps_the_interval(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Check that the gateway's events have at least as many new ids as the interval, if the worker's events
    have them.
    """
    worker, gateway = comparison.baseline, comparison.other
    interval = worker.asked.stream_interval or 0
    if interval < 2 or not _answered(comparison) or least_inner_step(worker) < interval:
        return
    step = least_inner_step(gateway)
    if step:
        message = f"an event has {step} new ids at an interval of {interval}, which the worker keeps"
        place = gateway.choices[0].last_at("output_ids")
        expected = f"at least {interval} new ids"
        related = (end_place(worker),)
        yield expect(place, expected, step, message, holds=step >= interval, related=related)


@compare("gateway-keeps-the-counts")
def _gateway_keeps_the_counts(comparison: Comparison, _target: Target) -> Iterator[Observation]:
    """Compare counters and usage with the worker's. Cached tokens are not compared, because they depend on
    earlier requests.
    """
    found = _gateway(comparison)
    for pair in found.choices if found else ():
        yield from same_counters(pair, _SOURCE)
    if found:
        yield from same_usage(comparison, _SOURCE, found.choices, (*USAGE, "total_tokens"))


def _was_complete(stream: Stream, streams: tuple[Answer, ...]) -> bool:
    """True if the worker sent all text before it was cut, so that the stream may end like a complete one.

    The request after the cut shows the text of a complete answer.
    """
    same = (
        other
        for other in streams
        if (other.exchange.scenario, other.dialect) == (CUT, stream.dialect) and not other.asked.stream
    )
    return any(other.choices and _texts_of(other) == _texts_of(stream) for other in same)


def _texts_of(stream: Answer) -> list[object]:
    return [choice.text for choice in stream.choices]


def _cut(streams: tuple[Answer, ...], target: Target) -> Iterator[Stream]:
    """Yield the streams whose worker broke off before it had sent everything."""
    for answer in target.severed:
        stream = answer.load()
        if stream.events and not _was_complete(stream, streams):
            yield stream


def _end_of(stream: Stream) -> str:
    """Describe the end of a stream, as a client sees it."""
    finishes = [choice.finish for choice in stream.choices if choice.finish is not None]
    reasons = [finish.type for finish in finishes if not is_error(finish) and finish.type != "abort"]
    if reasons:
        return f"the finish reason {reasons[0]!r}"
    if stream.error_events or finishes:
        return _ERROR
    if any(event.done for event in stream.events):
        return "the end mark, and no error"
    ending = stream.exchange.ending
    return _BROKEN if ending is Ending.TRUNCATED else f"no error ({ending})"


@check_run("gateway-shows-a-cut")
def _gateway_shows_a_cut(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a stream whose worker broke off does not look complete, and that it ends."""
    for stream in _cut(streams, target):
        end = _end_of(stream)
        message = f"the worker broke off after some events, and the stream ends with {end}"
        expected = f"{_ERROR} or {_BROKEN}"
        yield expect(end_place(stream), expected, end, message, holds=end in (_ERROR, _BROKEN))


@check_run("gateway-explains-a-cut")
def _gateway_explains_a_cut(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a stream whose worker broke off ends with an error event."""
    for stream in _cut(streams, target):
        end = _end_of(stream)
        message = f"the worker broke off after some events, and the stream ends with {end}"
        yield expect(end_place(stream), _ERROR, end, message, holds=end == _ERROR)
