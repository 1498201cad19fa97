"""The numbers of twins: how far the logprobs of the same ids lie apart, and how much of that is rounding.

Two things make the logprobs of one model differ: other weights, and another rounding (a kernel, a type of
numbers, an order of requests). Their size alone does not tell one from the other. Rounding changes with each
id before a token, and other weights do not: so each text is scored behind a second prompt, which differs in
its first id. What rounding did is another number there. What other weights did is still there.
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
"""The factor by which the distance of two sides may exceed the noise of both."""
_OF_NOISE_LASTING = 2
"""The factor for the part of the distance that lasts: no kernel was seen to exceed 1."""
_ROUNDING_LASTS = 0.2
"""The share of a distance that may last if rounding alone caused it (`proofs/twins.py` measures it)."""
_FINER = 1.5
"""Two sides have one type of numbers if their steps differ by less than this factor."""
_SEEN_NOISE = 0.1
"""Repetition that shows less than this part of a step of the numbers shows no noise."""
_FINEST = 11
"""Steps are looked for down to 2 to the power of minus this."""
_WRITTEN = 1e-5
"""Steps are as exact as this: logprobs are what float32 leaves of logits in steps."""
_FARTHEST = 300
"""The largest exponent, in nats."""
_RESAMPLED = 500
LEAST_TEXTS = 4
"""Fewer texts decide nothing."""

Scoring = Sequence[Position]
"""The logprobs that a side gives each id of a text."""


class Outcome(StrEnum):
    """Relations between two sides."""

    SAME = "the same"
    NOISE = "the same up to noise"
    OTHER = "another model"
    AROUND = "another deployment"
    """The weights are the same, as far as they were compared; what is around them is not."""
    UNDECIDED = "undecided"


class Doubt(StrEnum):
    """Reasons why the numbers decide nothing."""

    NONE = ""
    FEW = "too few tokens"
    KERNEL = "another kernel or other weights"
    """The sides lie no further apart than rounding can bring them, but rounding alone does not explain it."""
    UNMEASURED = "no measure of rounding"
    """The sides lie apart, and nothing shows how much of it is rounding."""


@dataclass(frozen=True)
class Text:
    """A continuation of a prompt, and what both sides make of it."""

    writer: int
    """The side that sampled it."""
    scores: tuple[Scoring, Scoring]
    """The logprobs by A and by B, cut where their ids go apart."""
    again: tuple[Scoring, Scoring] = ((), ())
    """The same, asked alone; empty where it was not."""
    written: Scoring = ()
    """The logprobs that its writer reported while it wrote."""
    elsewhere: tuple[Scoring, Scoring] = ((), ())
    """The same ids behind another prompt; empty where they were not scored."""


@dataclass(frozen=True)
class Interval:
    """A mean over all tokens, and where it lies with 99 % confidence."""

    mean: float
    low: float
    high: float

    def root(self) -> Interval:
        return Interval(*(math.sqrt(max(number, 0.0)) for number in (self.mean, self.low, self.high)))


@dataclass(frozen=True)
class Noise:
    """The noise of a side, in nats: how much it differs from itself."""

    repeated: float
    """The root of the mean square by which logprobs of one text lie apart that it gave twice."""
    tokens: int
    """The number of these logprobs."""
    step: float
    """The steps in which its numbers come, as the root of their mean square; 0 for none that show."""

    @property
    def size(self) -> float:
        """Return what counts as the noise of the side."""
        return self.repeated if self.repeated > _SEEN_NOISE * self.step else self.step


@dataclass(frozen=True)
class Counted:
    """Numbers of a text's tokens, which it adds to the means."""

    apart: tuple[float, ...]
    """Differences of the logprobs of its ids, between the sides."""
    elsewhere: tuple[float, ...]
    """The same behind another prompt, for the first of these ids; empty where they were not scored."""
    by_itself: tuple[tuple[float, ...], ...]
    """And of each side from itself."""
    divergence: tuple[float, ...]
    """Estimates of the divergence of the writer from the other side, each from one id."""
    steps: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    """The distances in nats from the same likeliest id; 0 where both sides have the same."""

    @property
    def both(self) -> Iterator[tuple[float, float]]:
        """Yield the differences of each id behind both prompts."""
        return zip(self.apart, self.elsewhere, strict=False)


@dataclass(frozen=True)
class Weighed:
    """The outcome of some texts, with the numbers that decide it."""

    outcome: Outcome
    doubt: Doubt
    apart: Interval
    noise: tuple[Noise, Noise]
    limit: float
    """The distance that noise alone may cause."""
    lasting: Interval | None
    """The part of the distance that is the same behind another prompt; None where that was not asked."""
    share: Interval | None
    """The share of the distance that lasts, from 0 (rounding) to 1 (other weights)."""


def _name(entry: Logprob) -> Any:
    return entry.text if entry.id is None else entry.id


def common(first: Scoring, second: Scoring) -> tuple[Scoring, Scoring]:
    """Return the beginnings of two scorings that are about the same ids."""
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
    """Compute what one sampled id adds to the divergence of its side from the other. It is never below 0, and
    its mean is right.
    """
    return math.expm1(min(-apart, _FARTHEST)) + apart


def _likeliest(position: Position) -> dict[Any, float]:
    known = ((_name(entry), entry.number) for entry in position.top or ())
    return {name: number for name, number in known if number is not None}


def _step(position: Position) -> float:
    """Return the largest power of two of which all distances between candidates are multiples; 0 for none."""
    numbers = sorted(_likeliest(position).values())
    gaps = [after - before for before, after in pairwise(numbers)]
    if len(gaps) < LEAST_TEXTS - 1 or not any(gap > _WRITTEN for gap in gaps):
        return 0.0
    steps = (2.0**-exponent for exponent in range(-1, _FINEST + 1))
    return next(
        (step for step in steps if all(abs(math.remainder(gap, step)) < _WRITTEN for gap in gaps)), 0.0
    )


def _gap(first: Position, second: Position) -> float:
    """Return how far two sides are from the same likeliest id; the nearer side counts."""
    ours, theirs = _likeliest(first), _likeliest(second)
    if not ours or not theirs:
        return 0.0
    mine, yours = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    if mine == yours:
        return 0.0
    # Never 0, which would mean that both sides have the same likeliest id.
    return min(
        ours[mine] - ours.get(yours, min(ours.values())),
        theirs[yours] - theirs.get(mine, min(theirs.values())),
    ) or math.ulp(0.0)


def counted(text: Text) -> Counted:
    """Return the numbers of a text."""
    apart = tuple(_apart(*text.scores))
    by_itself = [list(_apart(score, again)) for score, again in zip(text.scores, text.again, strict=True)]
    by_itself[text.writer] += _apart(text.written, text.scores[text.writer])
    first, second = text.scores
    return Counted(
        apart,
        tuple(_apart(*text.elsewhere))[: len(apart)],
        (tuple(by_itself[0]), tuple(by_itself[1])),
        # The divergence is that of the writer from the other side; `apart` is A less B.
        tuple(_divergence(-number if text.writer else number) for number in apart),
        (tuple(map(_step, first)), tuple(map(_step, second))),
        tuple(map(_gap, first, second)),
    )


Sums = tuple[float, ...]
"""Sums over the tokens of one text, which a ratio is computed of."""


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _mean(sums: Sums) -> float:
    total, count = sums
    return _ratio(total, count)


def _correlation(sums: Sums) -> float:
    """Return the share of the differences behind one prompt that are there behind the other, too."""
    product, square, other_square = sums
    return _ratio(product, math.sqrt(square * other_square))


def _resampled(sums: Sequence[Sums], of: Any) -> Interval:
    """Return a ratio of sums. Texts are drawn again for its bounds: tokens of one text are alike."""
    if not sums:
        return Interval(0.0, 0.0, 0.0)

    def of_drawn(drawn: Sequence[Sums]) -> float:
        value: float = of(tuple(map(math.fsum, zip(*drawn, strict=True))))
        return value

    # A fixed seed: two reports of the same answers have to agree.
    draw = Random(0).choices
    drawn = sorted(of_drawn(draw(sums, k=len(sums))) for _ in range(_RESAMPLED))
    tail = _RESAMPLED // 200
    return Interval(of_drawn(sums), drawn[tail], drawn[-1 - tail])


def interval(numbers: Sequence[Sequence[float]]) -> Interval:
    """Return the mean of the numbers of texts."""
    return _resampled([(math.fsum(of_text), len(of_text)) for of_text in numbers if of_text], _mean)


def _lasting(texts: Sequence[Counted]) -> tuple[Interval, Interval] | tuple[None, None]:
    """Return the part of the distance that is the same behind another prompt, in nats, and its share."""
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
    shows = bool(steps) and steps[len(steps) // 2] > 0  # in more than half of the positions
    return Noise(_root_mean_square(repeated), len(repeated), _root_mean_square(steps) if shows else 0.0)


def weigh(texts: Sequence[Counted]) -> Weighed:
    """Decide the outcome from the numbers of some texts."""
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
        # A side lies no further from the other than from itself, or nothing is known of the rounding.
        own = math.hypot(*(side.repeated for side in noise))
        if apart.high <= own:
            return decided(Outcome.NOISE)
        return decided(Outcome.UNDECIDED, Doubt.UNMEASURED)
    if lasting.low > _OF_NOISE_LASTING * of_both:
        return decided(Outcome.OTHER)
    # Weights that one side rounded to its type of numbers last as well, and are what that type costs.
    two_types = not _same_steps(noise) and lasting.high <= _OF_NOISE_LASTING * of_both
    if share.high <= _ROUNDING_LASTS or two_types:
        return decided(Outcome.NOISE)
    return decided(Outcome.UNDECIDED, Doubt.KERNEL if share.low > _ROUNDING_LASTS else Doubt.FEW)


def _same_steps(noise: Sequence[Noise]) -> bool:
    """True if both sides compute with the same number of digits, as far as their numbers show it."""
    finer, coarser = sorted(side.step for side in noise)
    return coarser <= _FINER * finer


def told_within(texts: Sequence[Counted], outcome: Outcome) -> int:
    """Count the tokens, in the order of asking, that suffice for the outcome of all."""
    tokens = list(accumulate(len(text.apart) for text in texts))
    enough = len(texts)
    # By shrinking, not growing: the fewest tokens of which every larger part tried says the same.
    while enough > LEAST_TEXTS:
        fewer = max(LEAST_TEXTS, enough * 3 // 4)
        if weigh(texts[:fewer]).outcome is not outcome:
            break
        enough = fewer
    return tokens[enough - 1] if tokens else 0
