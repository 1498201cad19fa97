"""The statistics of a twin comparison: how much the logprobs of the same ids differ, and how much of the
difference is rounding. There are two reasons why logprobs differ: other weights, or other rounding (another
kernel, number type or order of requests). The size of the difference does not show the reason. But rounding
errors change with every id before a token, and differences by other weights do not. So each text is also
scored after a second prompt that differs in its first id. Differences by rounding are then different, and
differences by other weights remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise, takewhile
from random import Random
from statistics import fmean
from typing import Any

from tokenwire.dialects.logprobs import Logprob, Position
from tokenwire.target.alike import ROUNDING

_OF_NOISE = 4
"""The limit for differences between two sides, as a multiple of the noise of both."""
_OF_NOISE_LASTING = 2
"""The limit for the part of the differences that another prompt shows again, as a multiple of the noise.

No kernel was seen to exceed a multiple of 1.
"""
_ROUNDING_LASTS = 0.2
"""The largest lasting share of differences that are caused by rounding alone (measured by `proofs/twins.py`).
"""
_FINER = 1.5
"""Two sides use the same number type if their steps differ by less than this factor."""
_SEEN_NOISE = 0.1
"""The least noise, as a fraction of a step, with which repetition counts as a measure of the noise."""
_FINEST = 11
"""The smallest step to look for is 2 to the power of minus this number."""
_WRITTEN = 1e-5
"""The tolerance for steps. Logprobs are float32 values computed from logits that have steps."""
_FARTHEST = 300
"""The largest argument of the exponential function, to avoid an overflow."""
_RESAMPLED = 500
LEAST_TEXTS = 4
"""The least number of texts for a result."""

Scoring = Sequence[Position]
"""The logprobs that one side gives the ids of a text."""


class Outcome(StrEnum):
    """The possible results of a comparison."""

    SAME = "the same"
    NOISE = "the same up to noise"
    OTHER = "another model"
    AROUND = "another deployment"
    """The weights are the same as far as they were compared, but the template, the tokenizer or the end ids
    differ.
    """
    UNDECIDED = "undecided"


class Doubt(StrEnum):
    """Reasons why the logprobs do not decide."""

    NONE = ""
    FEW = "too few tokens"
    KERNEL = "another kernel or other weights"
    """Rounding could cause differences of this size, but rounding alone does not explain them."""
    UNMEASURED = "no measure of rounding"
    """There are differences, but the noise could not be measured."""


@dataclass(frozen=True)
class Text:
    """A text: the continuation of a prompt, with its logprobs on both sides."""

    writer: int
    """The side that generated the text: 0 or 1."""
    scores: tuple[Scoring, Scoring]
    """The logprobs by A and by B, up to the first id that differs."""
    again: tuple[Scoring, Scoring] = ((), ())
    """The same logprobs, requested again without concurrent requests.

    Empty if they were not requested again.
    """
    written: Scoring = ()
    """The logprobs that the writer reported when it generated the text."""
    elsewhere: tuple[Scoring, Scoring] = ((), ())
    """The logprobs of the same ids after another prompt; empty if they were not requested."""


@dataclass(frozen=True)
class Interval:
    """A mean over all tokens, with its 99 % confidence interval."""

    mean: float
    low: float
    high: float

    def root(self) -> Interval:
        return Interval(*(math.sqrt(max(number, 0.0)) for number in (self.mean, self.low, self.high)))


@dataclass(frozen=True)
class Noise:
    """The noise of one side: how much its logprobs differ when they are repeated."""

    repeated: float
    """The root mean square difference between repeated logprobs of the same ids, in nats."""
    tokens: int
    """The number of logprobs that were repeated."""
    step: float
    """The size of the steps between the side's logprobs, as root mean square; 0 if there are no visible
    steps.
    """

    @property
    def size(self) -> float:
        """The noise in nats: from repetition, or else the size of a step."""
        return self.repeated if self.repeated > _SEEN_NOISE * self.step else self.step


@dataclass(frozen=True)
class Counted:
    """The numbers that one text contributes to the means."""

    apart: tuple[float, ...]
    """The differences between the logprobs of both sides, one for each id."""
    elsewhere: tuple[float, ...]
    """The differences after another prompt, for the first of these ids; empty if they were not requested."""
    by_itself: tuple[tuple[float, ...], ...]
    """The differences between repeated logprobs, for each side."""
    divergence: tuple[float, ...]
    """Estimates of the KL divergence of the writer's distribution from the other side's, one for each id."""
    steps: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    """For each id, the logprob difference in nats that keeps the sides from choosing the same most likely id.
    0 if both sides choose the same id.
    """

    @property
    def both(self) -> Iterator[tuple[float, float]]:
        """Yield the differences of each id after the first and after the second prompt."""
        return zip(self.apart, self.elsewhere, strict=False)


@dataclass(frozen=True)
class Weighed:
    """The result for several texts, with the numbers that decide it."""

    outcome: Outcome
    doubt: Doubt
    apart: Interval
    noise: tuple[Noise, Noise]
    limit: float
    """The largest difference that noise alone may cause."""
    lasting: Interval | None
    """The part of the difference that is equal after another prompt; None if this was not measured."""
    share: Interval | None
    """The share of the difference that is equal after another prompt: 0 means rounding, 1 means other
    weights.
    """


def _name(entry: Logprob) -> Any:
    return entry.text if entry.id is None else entry.id


def common(first: Scoring, second: Scoring) -> tuple[Scoring, Scoring]:
    """Return the beginnings of two scorings, up to the first id that differs or has no logprob."""
    both = zip(first, second, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: all(map(_has_number, pair)) and _same_id(*pair), both))
    return first[:same], second[:same]


def _has_number(position: Position) -> bool:
    return position.sampled is not None and position.sampled.number is not None


def _same_id(first: Position, second: Position) -> bool:
    return (
        first.sampled is not None
        and second.sampled is not None
        and _name(first.sampled) == _name(second.sampled)
    )


def _numbers(scoring: Scoring) -> list[float]:
    return [position.sampled.number or 0.0 for position in scoring if position.sampled is not None]


def _apart(first: Scoring, second: Scoring) -> Iterator[float]:
    ours, theirs = common(first, second)
    for mine, yours in zip(_numbers(ours), _numbers(theirs), strict=True):
        yield mine - yours


def _divergence(apart: float) -> float:
    """Return the contribution of one sampled id to the KL divergence of its side from the other side.

    This estimator is never negative, and is unbiased.
    """
    return math.expm1(min(-apart, _FARTHEST)) + apart


def _likeliest(position: Position) -> dict[Any, float]:
    known = ((_name(entry), entry.number) for entry in position.top or ())
    return {name: number for name, number in known if number is not None}


def _step(position: Position) -> float:
    """Return the largest power of two that divides all differences between top logprobs.

    Return 0 if there is none.
    """
    numbers = sorted(_likeliest(position).values())
    gaps = [after - before for before, after in pairwise(numbers)]
    if len(gaps) < LEAST_TEXTS - 1 or not any(gap > _WRITTEN for gap in gaps):
        return 0.0
    steps = (2.0**-exponent for exponent in range(-1, _FINEST + 1))
    return next(
        (step for step in steps if all(abs(math.remainder(gap, step)) < _WRITTEN for gap in gaps)), 0.0
    )


def _gap(first: Position, second: Position) -> float:
    """Return the logprob difference that keeps two sides from choosing the same most likely id.

    Of the two sides, the smaller difference counts.
    """
    ours, theirs = _likeliest(first), _likeliest(second)
    if not ours or not theirs:
        return 0.0
    mine, yours = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    if mine == yours:
        return 0.0
    # The result must not be 0, which would mean that both sides choose the same id.
    return min(
        ours[mine] - ours.get(yours, min(ours.values())),
        theirs[yours] - theirs.get(mine, min(theirs.values())),
    ) or math.ulp(0.0)


def counted(text: Text) -> Counted:
    """Compute the numbers of a text."""
    apart = tuple(_apart(*text.scores))
    by_itself = [list(_apart(score, again)) for score, again in zip(text.scores, text.again, strict=True)]
    by_itself[text.writer] += _apart(text.written, text.scores[text.writer])
    first, second = text.scores
    return Counted(
        apart,
        tuple(_apart(*text.elsewhere))[: len(apart)],
        (tuple(by_itself[0]), tuple(by_itself[1])),
        # The divergence is that of the writer from the other side, and `apart` is A minus B.
        tuple(_divergence(-number if text.writer else number) for number in apart),
        (tuple(map(_step, first)), tuple(map(_step, second))),
        tuple(map(_gap, first, second)),
    )


Sums = tuple[float, ...]
"""Sums over the tokens of one text, from which a ratio is computed."""


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _mean(sums: Sums) -> float:
    total, count = sums
    return _ratio(total, count)


def _correlation(sums: Sums) -> float:
    """Return the correlation between the differences after the first and after the second prompt."""
    product, square, other_square = sums
    return _ratio(product, math.sqrt(square * other_square))


def _resampled(sums: Sequence[Sums], of: Any) -> Interval:
    """Return a ratio of sums, with a bootstrap confidence interval.

    The resampling uses whole texts, because the tokens of a text are not independent.
    """
    if not sums:
        return Interval(0.0, 0.0, 0.0)

    def of_drawn(drawn: Sequence[Sums]) -> float:
        value: float = of(tuple(map(math.fsum, zip(*drawn, strict=True))))
        return value

    # The seed is fixed, so that two reports on the same answers are equal.
    draw = Random(0).choices
    drawn = sorted(of_drawn(draw(sums, k=len(sums))) for _ in range(_RESAMPLED))
    tail = _RESAMPLED // 200
    return Interval(of_drawn(sums), drawn[tail], drawn[-1 - tail])


def interval(numbers: Sequence[Sequence[float]]) -> Interval:
    """Return the mean of the numbers of all texts, with its confidence interval."""
    return _resampled([(math.fsum(of_text), len(of_text)) for of_text in numbers if of_text], _mean)


def _lasting(texts: Sequence[Counted]) -> tuple[Interval, Interval] | tuple[None, None]:
    """Return the part of the difference that is equal after another prompt, in nats, and as a share."""
    pairs = [list(text.both) for text in texts if text.elsewhere]
    if not pairs:
        return None, None
    products = [[here * there for here, there in of_text] for of_text in pairs]
    sums = [
        (
            math.fsum(product),
            math.fsum(here * here for here, _ in of_text),
            math.fsum(there * there for _, there in of_text),
        )
        for product, of_text in zip(products, pairs, strict=True)
    ]
    return interval(products).root(), _resampled(sums, _correlation)


def _root_mean_square(numbers: Sequence[float]) -> float:
    return math.sqrt(fmean(number * number for number in numbers)) if numbers else 0.0


def _noise(texts: Sequence[Counted], side: int) -> Noise:
    repeated = [number for text in texts for number in text.by_itself[side]]
    steps = sorted(step for text in texts for step in text.steps[side])
    shows = bool(steps) and steps[len(steps) // 2] > 0  # steps must show in more than half of the positions
    return Noise(_root_mean_square(repeated), len(repeated), _root_mean_square(steps) if shows else 0.0)


def weigh(texts: Sequence[Counted]) -> Weighed:
    """Decide the result from the numbers of several texts."""
    noise = _noise(texts, 0), _noise(texts, 1)
    apart = interval([[number * number for number in text.apart] for text in texts]).root()
    lasting, share = _lasting(texts)
    of_both = math.hypot(*(side.size for side in noise))
    limit = max(ROUNDING, _OF_NOISE * of_both)

    def decided(outcome: Outcome, doubt: Doubt = Doubt.NONE) -> Weighed:
        return Weighed(outcome, doubt, apart, noise, limit, lasting, share)

    if len(texts) < LEAST_TEXTS or (limit < apart.high and apart.low <= limit):
        return decided(Outcome.UNDECIDED, Doubt.FEW)
    if apart.low > limit:
        return decided(Outcome.OTHER)
    if apart.high <= ROUNDING:
        return decided(Outcome.NOISE)
    if lasting is None or share is None:
        # Without a second prompt, only a difference no larger than that of repetitions counts as noise.
        own = math.hypot(*(side.repeated for side in noise))
        if apart.high <= own:
            return decided(Outcome.NOISE)
        return decided(Outcome.UNDECIDED, Doubt.UNMEASURED)
    if lasting.low > _OF_NOISE_LASTING * of_both:
        return decided(Outcome.OTHER)
    # If one side rounds its weights to a coarser number type, this difference lasts as well. It counts as
    # noise.
    two_types = not _same_steps(noise) and lasting.high <= _OF_NOISE_LASTING * of_both
    if share.high <= _ROUNDING_LASTS or two_types:
        return decided(Outcome.NOISE)
    return decided(Outcome.UNDECIDED, Doubt.KERNEL if share.low > _ROUNDING_LASTS else Doubt.FEW)


def _same_steps(noise: Sequence[Noise]) -> bool:
    """True if both sides compute with the same precision, as far as the steps show it."""
    finer, coarser = sorted(side.step for side in noise)
    return coarser <= _FINER * finer


def told_within(texts: Sequence[Counted], outcome: Outcome) -> int:
    """Return the number of tokens that suffices for this result.

    Tokens are counted in the order of requests.
    """
    tokens = list(accumulate(len(text.apart) for text in texts))
    enough = len(texts)
    # The number of texts is reduced as long as the result stays the same.
    while enough > LEAST_TEXTS:
        fewer = max(LEAST_TEXTS, enough * 3 // 4)
        if weigh(texts[:fewer]).outcome is not outcome:
            break
        enough = fewer
    return tokens[enough - 1] if tokens else 0
