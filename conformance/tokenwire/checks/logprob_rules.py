"""The distribution that output logprobs describe: the model's, or the one from which the ids were sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenwire.ask import Asked
from tokenwire.checks.about import finished_choices
from tokenwire.checks.check import Target, check_run, once_per_run, select
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.dialects.logprobs import Logprob, ReportedLogprobs, reported_along
from tokenwire.record import Answer, Place, Stream, fact
from tokenwire.requirement import tolerance
from tokenwire.target.advertised import LOGPROB_RULES

OF_THE_MODEL, DIVIDED = "not divided by the temperature", "divided by the temperature"
BEFORE, AFTER = "taken before truncation", "taken after truncation"
UNBIASED, BIASED = "taken before biases and penalties", "taken after biases and penalties"
_DECLARED = dict(
    zip(
        LOGPROB_RULES,
        ((OF_THE_MODEL, BEFORE, UNBIASED), (DIVIDED, BEFORE, BIASED), (DIVIDED, AFTER, BIASED)),
        strict=True,
    )
)
"""The rule that a server reports or a user declares, as one rule for each transformation of the logits."""

_APART = 0.2
"""The minimum difference of two logprobs that shows the temperature."""
_FOR_A_DIFFERENCE = 2
_ROUNDING = tolerance("temperature_ratio")
"""The allowed relative error of the measured temperature."""
_MOST_KEPT = 0.9
"""The maximum total probability of the ids that remain after a truncation, for the truncation to be visible.

If more probability remains, the logprobs change too little.
"""
_SHIFT = tolerance("truncation_shift")
_BIASES = (1.0, 20.0)
"""The range of biases that are visible. Smaller ones change too little, and larger ones leave only one id."""


@dataclass(frozen=True)
class _Top:
    """The top logprobs of the first or second output id, by id, or by text if ids are not reported."""

    dialect: str
    asked: Asked
    place: Place
    by_id: Mapping[Any, float]
    sampled: object = None
    """The first output id, if these are its top logprobs."""
    before: tuple[Any, ...] = ()
    """The first output id, if these are the top logprobs of the second."""

    @property
    def temperature(self) -> float:
        """The number by which the logits are divided. It is 1 for greedy sampling."""
        return 1.0 if self.asked.greedy else self.asked.temperature or 1.0

    @property
    def truncates(self) -> bool:
        """True if sampling excludes some ids. Greedy sampling excludes none."""
        return self.asked.truncated and not self.asked.greedy

    @property
    def key(self) -> tuple[str, str]:
        """A key that is equal for answers of one endpoint whose first ids have the same logits."""
        return self.dialect, self.asked.prompt_key

    def added(self, token: Any) -> float:
        """Return the amount that the request's biases and penalties add to a logit."""
        return self.asked.logit_bias.get(token, 0.0) - self.asked.frequency_penalty * self.before.count(token)


def _name(entry: Logprob) -> object:
    """Return the key of an entry: its id, or its text if the text has only complete characters."""
    return entry.id if type(entry.id) is int else entry.whole_text


def _first_top(stream: Answer) -> _Top | None:
    """Return the top logprobs of the first output id; None if they cannot be assigned."""
    reported = _first_top_logprobs(stream)
    return None if reported is None else _Top(stream.dialect, stream.asked, *reported[:3])


def _second_top(stream: Answer) -> _Top | None:
    """Return the top logprobs of the second output id. None if they do not come in the same event as the
    first.
    """
    place, _, name, known = _first_top_logprobs(stream) or (None, None, None, None)
    return _Top(stream.dialect, stream.asked, place, known, before=(name,)) if place and known else None


_Tops = tuple[Place, dict[object, float], object, dict[object, float]]
"""The place and the top logprobs of the first output id, the name of the first output id, and the top
logprobs of the second output id.
"""


@fact(Stream)
def _first_top_logprobs(stream: Stream) -> _Tops | None:
    asked = stream.asked
    shaped = asked.constrained or (asked.other_sampling and not asked.logit_bias)
    if not asked.top_logprobs or asked.prompts * asked.n != 1 or shaped:
        return None
    if not finished_choices(stream):
        return None
    for emission, reported in reported_along(stream.choices[0]):
        # Only the first ids of two answers have the same logits. Later ids may follow different outputs.
        if emission.before:
            return None
        first, second = (_numbers(reported, position) for position in (0, 1))
        if len(first) >= _FOR_A_DIFFERENCE:
            sampled = reported.positions[0].sampled
            return emission.at(reported.top_series), first, sampled and _name(sampled), second
    return None


def _numbers(reported: ReportedLogprobs, position: int) -> dict[object, float]:
    """Return the top logprobs of a position, by id or text."""
    top = reported.positions[position].top if position < len(reported.positions) else ()
    read = {name: entry.number for entry in top or () if (name := _name(entry)) is not None}
    return {token: number for token, number in read.items() if number is not None}


def _scale(first_top: _Top, second_top: _Top) -> float | None:
    """Return the distance between two logprobs of the first answer, divided by their distance in the second
    answer. None if the ratio is unknown.
    """
    common = sorted(
        first_top.by_id.keys() & second_top.by_id.keys(), key=lambda token: -second_top.by_id[token]
    )
    if len(common) < _FOR_A_DIFFERENCE:
        return None
    first, last = common[0], common[-1]
    apart = second_top.by_id[first] - second_top.by_id[last]
    return (first_top.by_id[first] - first_top.by_id[last]) / apart if apart >= _APART else None


class SeenRule(NamedTuple):
    """The rule that an answer follows, inferred by comparison with another answer to the same prompt."""

    dialect: str
    rule: str
    place: Place
    base: Place


def _kept(base: _Top, asked: Asked) -> tuple[frozenset[Any], float] | None:
    """Return the ids that top_k, top_p and min_p leave, and their total probability.

    None if the alternatives of `base` do not include all of these ids.
    """
    if len(base.by_id) < base.asked.top_logprobs:  # some alternatives have no name
        return None
    ranked = sorted(base.by_id.items(), key=lambda item: -item[1])
    kept: list[Any] = []
    mass = 0.0
    for token, logprob in ranked:
        probability = math.exp(logprob)
        # A top_k of 0 or -1 excludes no id.
        full = 0 < (asked.top_k or 0) <= len(kept) or mass >= (asked.top_p or 1.0)
        if full or probability < (asked.min_p or 0.0) * math.exp(ranked[0][1]):
            return frozenset(kept), mass
        kept.append(token)
        mass += probability
    return (frozenset(kept), mass) if (asked.top_k or 0) == len(kept) else None


def _rule_of_temperature(top: _Top, base: _Top) -> str | None:
    scale = _scale(top, base)
    if scale is None:
        return None
    divided = 1.0 / top.temperature
    if abs(scale - divided) <= _ROUNDING * divided:
        return DIVIDED
    if abs(scale - 1.0) <= _ROUNDING:
        return OF_THE_MODEL
    return f"{scale:.2f} times as far apart as at temperature 1"


def _rule_of_truncation(top: _Top, base: _Top) -> str | None:
    kept = _kept(base, top.asked)
    if kept is None or not kept[0] <= top.by_id.keys() or not 0 < kept[1] <= _MOST_KEPT:
        return None
    shifts = [top.by_id[token] - base.by_id[token] for token in kept[0]]
    # After truncation, each remaining logprob grows by the same amount: minus the logarithm of their total
    # probability.
    due = -math.log(kept[1])
    if all(abs(shift) <= _SHIFT for shift in shifts):
        return BEFORE
    return AFTER if all(abs(shift - due) <= _SHIFT for shift in shifts) else f"higher by {max(shifts):.2f}"


@select
def _tells_top(stream: Stream) -> bool:
    return _first_top_logprobs(stream) is not None


def _rule_of_biases(top: _Top, base: _Top) -> str | None:
    """Infer the rule of biases from the change of the logprob of an id with a bias or penalty, relative to
    other ids.
    """
    common = top.by_id.keys() & base.by_id.keys()
    shifts = {token: top.by_id[token] - base.by_id[token] for token in common}
    biases = {token: bias for token in common if (bias := top.added(token) - base.added(token))}
    others = [shift for token, shift in shifts.items() if token not in biases]
    least, most = _BIASES
    moves = [
        # The change is relative to an id without a bias, because a bias moves all logprobs: probabilities add
        # up to 1.
        (shifts[token] - others[0], bias)
        for token, bias in biases.items()
        if others and token in shifts and least <= abs(bias) <= most
    ]
    if not moves:
        return None
    if all(abs(move) <= _SHIFT for move, _ in moves):
        # Nothing moves if the logprobs are taken before the bias, or if the server ignores the bias. In the
        # second case, the most likely id is still sampled. The same applies to a penalty.
        likeliest = max(base.by_id, key=base.by_id.__getitem__)
        acted = top.asked.greedy and top.sampled in biases and top.sampled != likeliest
        return UNBIASED if acted else None
    if all(abs(move - bias) <= _SHIFT for move, bias in moves):
        return BIASED
    return f"moved by {moves[0][0]:.2f} for a bias of {moves[0][1]:g}"


def _penalised(streams: tuple[Answer, ...]) -> Iterator[tuple[_Top, _Top]]:
    """Yield pairs of the top logprobs of second ids: with a penalty and without one."""
    seconds = [
        top for top in map(_second_top, _tells_top(streams)) if top is not None and top.asked.prompt_key
    ]
    alike: dict[object, _Top] = {}
    for top in seconds:
        if top.temperature == 1.0 and not top.truncates and not top.asked.frequency_penalty:
            alike.setdefault(_began(top), top)
    for top in seconds:
        base = alike.get(_began(top))
        if base is not None and top.temperature == 1.0 and not top.truncates and top.asked.frequency_penalty:
            yield top, base


def _began(top: _Top) -> tuple[object, ...]:
    """Return a key that is equal for second ids with the same logits."""
    return *top.key, top.before, tuple(sorted(top.asked.logit_bias.items()))


@dataclass(frozen=True)
class _Dimension:
    """A transformation of the distribution. Logprobs may be taken before or after it."""

    shapes: Callable[[_Top], bool]
    """A function that returns True if an answer has this transformation and no other."""
    rule: Callable[[_Top, _Top], str | None]
    """A function that returns the rule that an answer follows, or None if unclear. The second argument has no
    transformation.
    """
    legal: tuple[str, str]
    behind: Callable[[tuple[Answer, ...]], Iterator[tuple[_Top, _Top]]] = lambda _: iter(())
    """A function that yields further pairs: a transformed and an untransformed answer, after their first id.
    """


_TEMPERATURE = _Dimension(
    lambda top: top.temperature != 1.0 and not top.truncates and not top.asked.logit_bias,
    _rule_of_temperature,
    (OF_THE_MODEL, DIVIDED),
)
_TRUNCATION = _Dimension(
    lambda top: top.temperature == 1.0 and top.truncates and not top.asked.logit_bias,
    _rule_of_truncation,
    (BEFORE, AFTER),
)
_BIAS = _Dimension(
    lambda top: top.temperature == 1.0 and not top.truncates and bool(top.asked.logit_bias),
    _rule_of_biases,
    (UNBIASED, BIASED),
    _penalised,
)


_DIMENSIONS = (_TEMPERATURE, _TRUNCATION, _BIAS)


@once_per_run
def _tops(streams: tuple[Answer, ...]) -> tuple[list[_Top], dict[tuple[str, str], _Top]]:
    """Return the top logprobs of the first ids, and the model's own top logprobs by dialect and prompt.

    The first ids of two answers to the same prompt have the same logits.
    """
    known = [top for top in map(_first_top, _tells_top(streams)) if top is not None and top.asked.prompt_key]
    neutral: dict[tuple[str, str], _Top] = {}
    for top in known:
        if top.temperature == 1.0 and not top.truncates and not top.asked.logit_bias:
            neutral.setdefault(top.key, top)
    return known, neutral


def _shaped(dimension: _Dimension, streams: tuple[Answer, ...]) -> Iterator[tuple[_Top, _Top]]:
    """Yield pairs of top logprobs: of a transformed answer, and of the model itself."""
    known, neutral = _tops(streams)
    for top in known:
        base = neutral.get(top.key)
        if base is not None and dimension.shapes(top):
            yield top, base
    yield from dimension.behind(streams)


def _rules(dimension: _Dimension, streams: tuple[Answer, ...]) -> Iterator[SeenRule]:
    for top, base in _shaped(dimension, streams):
        rule = dimension.rule(top, base)
        if rule is not None:
            yield SeenRule(top.dialect, rule, top.place, base.place)


def _one_rule(dimension: _Dimension, streams: tuple[Answer, ...]) -> Iterator[Observation]:
    """Check that all answers of an endpoint follow one rule, and that this rule is legal."""
    rules: dict[str, SeenRule] = {}
    legal = dimension.legal
    for seen in _rules(dimension, streams):
        first = rules.setdefault(seen.dialect, seen)
        but = f", but {first.rule} in {first.place.exchange}" if seen.rule != first.rule else ""
        yield expect(
            seen.place,
            f"logprobs that are {first.rule if first.rule in legal else ' or '.join(legal)}",
            seen.rule,
            f"the logprobs are {seen.rule}{but}",
            holds=seen.rule == first.rule and seen.rule in legal,
            related=(first.place, seen.base),
        )


@check_run("logprobs-follow-one-rule")
def _logprobs_follow_one_rule(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all answers of an endpoint follow one rule: logits are divided by the temperature, or they
    are not.
    """
    yield from _one_rule(_TEMPERATURE, streams)


@check_run("logprobs-follow-one-bias-rule")
def _logprobs_follow_one_bias_rule(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all answers of an endpoint follow one rule: logprobs are taken before biases, or
    after them.
    """
    yield from _one_rule(_BIAS, streams)


@check_run("logprobs-follow-one-truncation")
def _logprobs_follow_one_truncation(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that all answers of an endpoint follow one rule: logprobs cover all ids, or only those that
    truncation leaves.
    """
    yield from _one_rule(_TRUNCATION, streams)
    for top, base in _shaped(_TRUNCATION, streams):
        if _rule_of_truncation(top, base) is None:
            why = f"the excluded ids are not reported, or have less than {1 - _MOST_KEPT:.0%} probability"
            yield left_out(top.place, why)


@check_run("logprobs-follow-the-declared-rule")
def _logprobs_follow_the_declared_rule(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that logprobs follow the declared rule. A trainer computes with this rule, and a single answer
    does not show it.
    """
    for name in sorted(_DECLARED.keys() & target.capabilities):
        for dimension, expected in zip(_DIMENSIONS, _DECLARED[name], strict=True):
            for seen in _rules(dimension, streams):
                yield expect(
                    seen.place,
                    f"logprobs that are {expected}, as {name} says",
                    seen.rule,
                    f"the logprobs are {seen.rule}, but {name} is declared",
                    holds=seen.rule == expected,
                    related=(seen.base,),
                )


def rules_seen(streams: tuple[Answer, ...]) -> Iterator[str]:
    """Yield a line of text for each dialect whose answers show the rule of its logprobs."""
    reported: dict[str, dict[str, str]] = {}
    for seen in (seen for dimension in _DIMENSIONS for seen in _rules(dimension, streams)):
        reported.setdefault(seen.dialect, {}).setdefault(seen.rule, seen.place.exchange)
    for dialect, rules in reported.items():
        words = " and ".join(f"{rule} (as {exchange} shows)" for rule, exchange in rules.items())
        yield f"{dialect}: output logprobs are {words}"
