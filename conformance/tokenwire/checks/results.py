"""Checks of results, such as embeddings and scores. A result depends only on its input, however
it is sent.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

from tokenwire.checks.about import ANSWERED
from tokenwire.checks.check import Target, check, check_run, select
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import end_place, usage_count
from tokenwire.dialects.dialect import gives_results, is_ranked
from tokenwire.record import Answer, Choice, ChoiceFacts, Stream, fact
from tokenwire.requirement import tolerance
from tokenwire.typed_table import counted
from tokenwire.wire.json_pointer import parse

RESULT = "result"
_APART = tolerance("apart")
_SHORTEST = tolerance("apart_at_least") / _APART
"""The minimum length of a vector by which a distance is divided."""
_FLOAT = 4
"""The number of bytes of one number in base64."""

Vector = tuple[float, ...]
Input = tuple[int, ...] | str


def _numbers(value: Any) -> Vector | None:
    """Return the numbers of a result, which may be packed in base64. None if they are invalid or
    not finite.
    """
    if isinstance(value, str):
        try:
            packed = b64decode(value, validate=True)
            value = list(struct.unpack(f"<{len(packed) // _FLOAT}f", packed))
        except (ValueError, struct.error):
            return None
    listed = value if isinstance(value, list) else [value]
    if not listed or not {*map(type, listed)} <= {int, float} or not all(map(math.isfinite, listed)):
        return None
    return tuple(map(float, listed))


@fact(Choice)
def _vector(choice: Choice) -> Vector | None:
    return _numbers(choice.emissions[-1].details.get(RESULT))


def _distance(first: Vector | None, second: Vector | None) -> float:
    """Return the distance of two vectors, divided by the length of the longer one. Infinite if they cannot be
    compared.
    """
    if first is None or second is None or len(first) != len(second):
        return math.inf
    return math.dist(first, second) / max(_SHORTEST, math.hypot(*first), math.hypot(*second))


@select
def _of_inputs(stream: Stream) -> bool:
    return gives_results(stream) and stream.answered


def _input(answer: Answer, index: int) -> Input | None:
    inputs: Sequence[Input] = answer.asked.input_ids or answer.asked.texts
    return inputs[index] if index < len(inputs) else None


def _key(answer: Answer, sent: Input, truncate: int | None) -> tuple[object, ...]:
    """Return a key that is equal for inputs that must have the same result."""
    return answer.dialect, answer.asked.model, answer.asked.other_sampling, truncate, sent


def _first_results(streams: tuple[Answer, ...]) -> dict[tuple[object, ...], ChoiceFacts]:
    first: dict[tuple[object, ...], ChoiceFacts] = {}
    for answer in _of_inputs(streams):
        for choice in answer.choices:
            if (sent := _input(answer, choice.index)) is not None:
                first.setdefault(_key(answer, sent, answer.asked.truncate), choice)
    return first


@check_run("results-depend-on-their-input-alone", alone=True)
def _results_depend_on_their_input_alone(
    streams: tuple[Answer, ...], _target: Target
) -> Iterator[Observation]:
    """Compare each result of an input with its first result: alone, in a batch, or as base64."""
    first = _first_results(streams)
    for answer in _of_inputs(streams):
        for choice in answer.choices:
            sent = _input(answer, choice.index)
            before = first[_key(answer, sent, answer.asked.truncate)] if sent is not None else choice
            if before is choice:
                continue
            expected, actual = _vector(before), _vector(choice)
            apart = _distance(expected, actual)
            yield expect(
                choice.last_at(RESULT),
                (expected or ())[:_FLOAT],
                (actual or ())[:_FLOAT],
                f"two results of one input differ by {apart:.2g} of their length",
                holds=apart <= _APART,
                related=(before.last_at(RESULT),),
            )


@check_run("best-results-are-left")
def _best_results_are_left(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an answer with only the best results has no lower score than a result that it left out.

    The scores of all results come from other answers to the same inputs.
    """
    first = _first_results(streams)
    for answer in _of_inputs(streams):
        held = {choice.index: choice for choice in answer.choices}
        count = max(len(answer.asked.texts or ()), len(answer.asked.input_ids or ()))
        if answer.asked.most is None or not held or len(held) >= count:
            continue
        known = {
            index: other
            for index in range(count)
            if (sent := _input(answer, index)) is not None
            and (other := first.get(_key(answer, sent, answer.asked.truncate))) is not None
        }
        scores = {
            index: vector[0] for index, c in known.items() if (vector := _vector(c)) and len(vector) == 1
        }
        if scores.keys() != set(range(count)):
            continue
        worst = min(held, key=lambda index: scores[index])
        best = max((index for index in scores if index not in held), key=lambda index: scores[index])
        apart = _distance((scores[worst],), (scores[best],))
        yield expect(
            held[worst].last_at(RESULT),
            f"the best {len(held)} of {count}",
            sorted(held),
            f"result {best}, score {scores[best]:.4g}, is missing; {worst} has {scores[worst]:.4g}",
            holds=scores[best] <= scores[worst] or apart <= _APART,
            related=(known[best].last_at(RESULT),),
        )


@check_run("truncated-inputs-are-counted")
def _truncated_inputs_are_counted(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that prompt_tokens counts the part of the input to which the result belongs.

    This part is the whole input, its beginning or its end, whose results come from other answers.
    """
    first = _first_results(streams)
    for answer in _of_inputs(streams):
        keep, ids = answer.asked.truncate, answer.asked.input_ids
        if keep is None or ids is None or len(ids) != 1 or not 0 < keep < len(ids[0]):
            continue
        choice, known = answer.choices[0], {}
        for run in (ids[0], ids[0][:keep], ids[0][-keep:]):
            if (same := first.get(_key(answer, run, None))) is not None:
                known[_distance(_vector(same), _vector(choice))] = run, same
        count = choice.counter("prompt_tokens") or usage_count(answer, "prompt_tokens")
        if not known or count is None or (nearest := min(known)) > _APART:
            continue
        run, same = known[nearest]
        message = f"prompt_tokens is {count}, but the result belongs to {counted(len(run), 'token')}"
        place = choice.last_at("prompt_tokens")
        yield expect(place, len(run), count, message, related=(same.last_at(RESULT),))


def _in_wire_order(stream: Stream) -> list[tuple[int, Any]]:
    """Return the index and the value of each result, in the order of the answer."""
    placed = [
        ([int(key) for key in parse(emission.pointers[RESULT]) if key.isdecimal()], emission)
        for emission in stream.emissions()
        if RESULT in emission.pointers
    ]
    ordered = sorted(placed, key=lambda found: found[0])
    return [(emission.choice, emission.details[RESULT]) for _, emission in ordered]


@check("results-stand-in-order", ANSWERED)
def _results_stand_in_order(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that results come in the order of the inputs, because clients match them by position.

    Results that are sorted by score are skipped.
    """
    indexes = [index for index, _ in _in_wire_order(stream)]
    if len(indexes) > 1 and not is_ranked(stream):
        message = f"the results of inputs 0, 1, … are in the order {indexes[:8]}"
        yield expect(end_place(stream), sorted(indexes), indexes, message)


@check("best-results-come-first", ANSWERED)
def _best_results_come_first(stream: Stream, _target: Target) -> Iterator[Observation]:
    scores = [value for _, value in _in_wire_order(stream) if isinstance(value, (int, float))]
    if len(scores) > 1 and is_ranked(stream):
        message = f"the scores are not in descending order: {scores[:8]}"
        yield expect(end_place(stream), sorted(scores, reverse=True), scores, message)
