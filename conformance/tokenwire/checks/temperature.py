"""Whether logprobs are those of the model or of the distribution that was sampled from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.logprob_entry import LogprobEntry, number_of, told_by
from tokenwire.checks.walk import finished_choices, walk
from tokenwire.judging.check import Observation, Target, check_run, demand
from tokenwire.record import Place, Stream
from tokenwire.requirement import tolerance

_APART = 0.2
"""Logprobs that lie closer together say nothing of the scale."""
_FOR_A_DIFFERENCE = 2
_ROUNDING = tolerance("temperature_ratio")
"""How far a ratio of differences may be from the rule that it shows."""


@dataclass(frozen=True)
class _Top:
    """The top logprobs of the first output id of an answer, by id, or by text where no ids are told."""

    stream: Stream
    place: Place
    by_id: Mapping[Any, float]

    @property
    def temperature(self) -> float:
        """By which the logits were divided: greedy sampling divides by nothing."""
        return 1.0 if self.stream.asked.greedy else self.stream.asked.temperature or 1.0


def _name(entry: LogprobEntry) -> object:
    """What an entry is known by: its id, or its text where that is whole characters."""
    return entry.token_id if type(entry.token_id) is int else entry.whole_text


def _first_top(stream: Stream) -> _Top | None:
    """The top logprobs of the first output id; None where nothing tells which is whose."""
    asked = stream.asked
    if (
        asked.prompts * asked.n != 1
        or asked.other_sampling
        or asked.truncated
        or not finished_choices(stream)
    ):
        return None
    for step in walk(stream):
        for told in told_by(step):
            top = told.positions[0].top if told.positions else None
            read = {name: number_of(e.logprob) for e in top or [] if (name := _name(e)) is not None}
            known = {token: number for token, number in read.items() if number is not None}
            if len(known) >= _FOR_A_DIFFERENCE:
                return _Top(stream, step.emission.at(told.top_series), known)
        if step.after:
            return None
    return None


def _scale(one: _Top, other: _Top) -> float | None:
    """How much further apart the logprobs of `one` lie than those of `other`; None where nothing tells."""
    common = sorted(one.by_id.keys() & other.by_id.keys(), key=lambda token: -other.by_id[token])
    if len(common) < _FOR_A_DIFFERENCE:
        return None
    first, last = common[0], common[-1]
    apart = other.by_id[first] - other.by_id[last]
    return (one.by_id[first] - one.by_id[last]) / apart if apart >= _APART else None


@check_run("logprobs-follow-one-rule")
def logprobs_follow_one_rule(streams: tuple[Stream, ...], _target: Target) -> Iterator[Observation]:
    """One rule for all answers of an endpoint: divided by the temperature, or not.

    Both answers begin after the same prompt, so their first ids have the same logits.
    """
    known = [top for top in map(_first_top, streams) if top is not None and top.stream.asked.prompt_key]
    neutral: dict[tuple[str, str], _Top] = {}
    for top in known:
        if top.temperature == 1.0:
            neutral.setdefault((top.stream.dialect, top.stream.asked.prompt_key), top)
    rules: dict[str, tuple[str, Place]] = {}
    for top in known:
        base = neutral.get((top.stream.dialect, top.stream.asked.prompt_key))
        scale = _scale(top, base) if base is not None and top.temperature != 1.0 else None
        if base is None or scale is None:
            continue
        divided = 1.0 / top.temperature
        if abs(scale - divided) <= _ROUNDING * divided:
            rule = "divided by the temperature"
        elif abs(scale - 1.0) <= _ROUNDING:
            rule = "of the model"
        else:
            rule = f"{scale:.2f} times as far apart as at temperature 1"
        first, place = rules.setdefault(top.stream.dialect, (rule, top.place))
        holds = rule == first and "times" not in rule
        message = f"the logprobs are {rule}" + (f", but {first} in {place.exchange}" if rule != first else "")
        yield demand(
            top.place,
            holds,
            expected=f"logprobs that are {first}",
            actual=rule,
            message=message,
            related=(place, base.place),
        )
