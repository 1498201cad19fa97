"""Decides if two deployments serve one model, by their logprobs of the same ids.

Both sides score the same texts, token by token. The noise of a side is measured on it alone: a text is scored
again, and compared with the logprobs of its writer. A side that repeats itself to the last digit hides its
noise. The steps between its numbers then replace it, because they show the digits of its computation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import accumulate, chain, pairwise, takewhile
from random import Random
from statistics import fmean
from typing import Any

from tokenwire.checks.reading.fields import stated_by_both
from tokenwire.dialects.logprobs import Logprob, Position
from tokenwire.judging.beside import side_by_side
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Answer
from tokenwire.target.alike import ROUNDING
from tokenwire.target.determinism import AnswerPair
from tokenwire_twin.answers import Difference, differences
from tokenwire_twin.difference_report import LABELS

_OF_NOISE = 4
"""The factor by which the distance of two sides may exceed the noise of both."""
_SEEN_NOISE = 0.1
"""The part of a step below which repetition shows no noise."""
_FINEST = 11
"""The exponent of the finest step to search, 2 to the power of minus this."""
_WRITTEN = 1e-5
"""The precision of steps, because logprobs are float32 differences of logits in steps."""
_FARTHEST = 300
"""The greatest exponent, in nats."""
_RESAMPLED = 500
_LEAST_TEXTS = 4
"""The least number of texts from which a share represents all."""
_EDGES = tuple(10 ** (half / 2) for half in range(-12, 3))
"""Bins of a histogram: two to a decade, from a millionth of a nat to ten."""
_CONSEQUENCES = frozenset({"ids", "text", "series", "finish", "counter", "value"})
"""Kinds of differences that follow from different numbers."""

SEEDED = "seeded"
"""The prefix of the labels of samples with a seed."""
_SAMPLE = re.compile(rf"{SEEDED}-\d+")

Scoring = Sequence[Position]
"""A side's logprobs of each id of a text."""


class Outcome(StrEnum):
    """Relations between two sides."""

    SAME = "the same"
    NOISE = "the same up to noise"
    OTHER = "another model"
    UNDECIDED = "undecided"


_STATUS = {Outcome.OTHER: ExitStatus.VIOLATION, Outcome.UNDECIDED: ExitStatus.NOTHING_EVALUATED}


@dataclass(frozen=True)
class Text:
    """A continuation of a prompt, with the scores of both sides."""

    writer: int
    """The side that sampled it."""
    scores: tuple[Scoring, Scoring]
    """The scores of A and of B, cut where their ids diverge."""
    again: tuple[Scoring, Scoring] = ((), ())
    """The scores of a repetition without concurrent requests; empty without one."""
    written: Scoring = ()
    """The logprobs that the writer reported while sampling."""


@dataclass(frozen=True)
class TwinSide:
    """A description of a side."""

    url: str
    model: str
    dialect: str
    keeps_seeds: bool | None = None
    """True if repeated samples of one seed were equal; None without such samples."""


@dataclass(frozen=True)
class Interval:
    """A mean over all tokens, and its 99 % confidence interval."""

    mean: float
    low: float
    high: float

    def root(self) -> Interval:
        return Interval(math.sqrt(self.mean), math.sqrt(self.low), math.sqrt(self.high))


@dataclass(frozen=True)
class Noise:
    """The noise of a side in nats: its difference from itself."""

    repeated: float
    """The root mean square of differences between repeated logprobs of one text."""
    tokens: int
    """The number of tokens in this mean."""
    step: float
    """The root mean square of the steps between its numbers; 0 without visible steps."""

    @property
    def size(self) -> float:
        """The effective noise of the side."""
        return self.repeated if self.repeated > _SEEN_NOISE * self.step else self.step


@dataclass(frozen=True)
class _Counted:
    """The contributions of one text's tokens to the means."""

    apart: tuple[float, ...]
    """Differences between the sides' logprobs of its ids."""
    by_itself: tuple[tuple[float, ...], ...]
    """Differences of each side from itself."""
    divergence: tuple[float, ...]
    """Estimates of the divergence of the writer from the other side, one for each id."""
    steps: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    """The distance in nats from an equal likeliest id, at each token; 0 if it is equal."""


@dataclass(frozen=True)
class TwinTally:
    """Counts of one comparison. Tallies of several can be merged."""

    sides: tuple[TwinSide, ...]
    texts: tuple[_Counted, ...]
    same_answers: int
    compared_answers: int
    seeds: tuple[int, ...]
    besides: tuple[Difference, ...]


@dataclass(frozen=True)
class TwinReport:
    """The comparison of two sides."""

    sides: tuple[TwinSide, ...]
    outcome: Outcome
    tokens: int
    told_within: int
    """The number of tokens that is enough to show the outcome."""
    apart: Interval
    """The root mean square of differences between the sides' logprobs of one id."""
    noise: tuple[Noise, Noise]
    limit: float
    """The distance that noise alone may cause."""
    divergence: Interval
    """The divergence of the distributions, in nats for each token."""
    agreed: int
    """The number of tokens with the same likeliest id on both sides."""
    near_ties: int
    """The number of other tokens that noise explains."""
    same_answers: int
    compared_answers: int
    seeds: tuple[int, ...]
    """The number of seeded samples with equal ids on both sides, and the number compared."""
    besides: tuple[Difference, ...]
    """Differences of answers that do not follow from numbers."""
    histograms: tuple[tuple[int, ...], ...]
    """Numbers of tokens by difference of logprobs: A from itself, B from itself, A from B.

    The first bin counts equal ones, the others those above each of `edges`.
    """
    edges: tuple[float, ...] = (0.0, *_EDGES)

    @property
    def exit_status(self) -> int:
        """Return 0 for one model, 1 for another, 4 if undecided."""
        return _STATUS.get(self.outcome, ExitStatus.CONFORMS)


def _name(entry: Logprob) -> Any:
    return entry.text if entry.id is None else entry.id


def common(first: Scoring, second: Scoring) -> tuple[Scoring, Scoring]:
    """Return the beginnings of two scorings with equal ids."""
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
    """Return the contribution of one sampled id to the divergence of its side from the other.

    It is never below 0, and its mean is unbiased.
    """
    return math.expm1(min(-apart, _FARTHEST)) + apart


def _likeliest(position: Position) -> dict[Any, float]:
    known = ((_name(entry), entry.number) for entry in position.top or ())
    return {name: number for name, number in known if number is not None}


def _step(position: Position) -> float:
    """Return the largest power of two that divides all distances between candidates; 0 without one."""
    numbers = sorted(_likeliest(position).values())
    gaps = [after - before for before, after in pairwise(numbers)]
    if len(gaps) < _LEAST_TEXTS - 1 or not any(gap > _WRITTEN for gap in gaps):
        return 0.0
    steps = (2.0**-exponent for exponent in range(-1, _FINEST + 1))
    return next(
        (step for step in steps if all(abs(math.remainder(gap, step)) < _WRITTEN for gap in gaps)), 0.0
    )


def _gap(first: Position, second: Position) -> float:
    """Return the distance of two sides from an equal likeliest id; the nearer side counts."""
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


def _counted(text: Text) -> _Counted:
    apart = tuple(_apart(*text.scores))
    by_itself = [list(_apart(score, again)) for score, again in zip(text.scores, text.again, strict=True)]
    by_itself[text.writer] += _apart(text.written, text.scores[text.writer])
    first, second = text.scores
    return _Counted(
        apart,
        (tuple(by_itself[0]), tuple(by_itself[1])),
        # The divergence is from the writer to the other side; `apart` is the logprob of A minus that of B.
        tuple(_divergence(-number if text.writer else number) for number in apart),
        (tuple(map(_step, first)), tuple(map(_step, second))),
        tuple(map(_gap, first, second)),
    )


def _interval(numbers: Sequence[Sequence[float]]) -> Interval:
    """Return the mean of the texts' numbers. Whole texts are resampled, because tokens of one text are
    similar.
    """
    sums = [(math.fsum(of_text), len(of_text)) for of_text in numbers if of_text]
    if not sums:
        return Interval(0.0, 0.0, 0.0)

    def mean(drawn: Sequence[tuple[float, int]]) -> float:
        return math.fsum(total for total, _ in drawn) / sum(count for _, count in drawn)

    # A fixed seed, so that two reports of the same answers agree.
    draw = Random(0).choices
    means = sorted(mean(draw(sums, k=len(sums))) for _ in range(_RESAMPLED))
    tail = _RESAMPLED // 200
    return Interval(mean(sums), means[tail], means[-1 - tail])


def _root_mean_square(numbers: Sequence[float]) -> float:
    return math.sqrt(fmean(number * number for number in numbers)) if numbers else 0.0


def _noise(texts: Sequence[_Counted], side: int) -> Noise:
    repeated = [number for text in texts for number in text.by_itself[side]]
    steps = sorted(step for text in texts for step in text.steps[side])
    shows = bool(steps) and steps[len(steps) // 2] > 0  # in more than half of the positions
    return Noise(_root_mean_square(repeated), len(repeated), _root_mean_square(steps) if shows else 0.0)


def _limit(noise: Sequence[Noise]) -> float:
    return max(ROUNDING, _OF_NOISE * math.hypot(*(side.size for side in noise)))


def _weighed(texts: Sequence[_Counted]) -> tuple[Outcome, Interval, tuple[Noise, Noise]]:
    """Return the outcome, the distance and the noise from the numbers of some texts."""
    noise = _noise(texts, 0), _noise(texts, 1)
    apart = _interval([[number * number for number in text.apart] for text in texts]).root()
    if len(texts) < _LEAST_TEXTS or (_limit(noise) < apart.high and apart.low <= _limit(noise)):
        return Outcome.UNDECIDED, apart, noise
    return (Outcome.NOISE if apart.high <= _limit(noise) else Outcome.OTHER), apart, noise


def _told_within(texts: Sequence[_Counted], outcome: Outcome) -> int:
    """Return the number of tokens, in the order of requests, that is enough for the outcome of all."""
    tokens = list(accumulate(len(text.apart) for text in texts))
    enough = len(texts)
    # By shrinking: the fewest tokens for which every larger part gives the same outcome.
    while enough > _LEAST_TEXTS:
        fewer = max(_LEAST_TEXTS, enough * 3 // 4)
        if _weighed(texts[:fewer])[0] is not outcome:
            break
        enough = fewer
    return tokens[enough - 1] if tokens else 0


def _histogram(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return the numbers of values that are 0, above 0, and between each edge and the next."""
    above = [sum(abs(number) > edge for number in numbers) for edge in (0.0, *_EDGES)]
    return (len(numbers) - above[0], *(low - high for low, high in pairwise((*above, 0))))


def tally_twins(
    sides: tuple[TwinSide, TwinSide],
    answers: tuple[Sequence[Answer], Sequence[Answer]],
    texts: Sequence[Text],
) -> TwinTally:
    """Compare two sides by their scores of texts, and by their answers to the same requests."""
    every = side_by_side(*answers, lambda answer: ("", answer.exchange.name))
    pairs = [pair for pair in every if pair.baseline.answered or pair.other.answered]
    found = [[seen for seen in differences(pair.load(), LABELS) if seen.decides] for pair in pairs]
    # Repeated samples have other labels, and are not counted twice.
    seeded = [pair for pair in pairs if _SAMPLE.fullmatch(pair.baseline.exchange.label)]
    besides = {
        (seen.kind, seen.subject): seen
        for of_pair in found
        for seen in of_pair
        if seen.kind not in _CONSEQUENCES
    }
    return TwinTally(
        sides,
        tuple(numbers for text in texts if (numbers := _counted(text)).apart),
        same_answers=sum(not of_pair for of_pair in found),
        compared_answers=len(pairs),
        seeds=(sum(map(_are_same, seeded)), len(seeded)),
        besides=tuple(besides.values()),
    )


def merged(tallies: Sequence[TwinTally]) -> TwinTally:
    """Merge tallies of replicas of the same two deployments. Raises ValueError for other ones."""
    if len({tuple((side.model, side.dialect) for side in tally.sides) for tally in tallies}) > 1:
        raise ValueError("they are of several models, or were asked at several endpoints")
    besides = {(seen.kind, seen.subject): seen for tally in reversed(tallies) for seen in tally.besides}
    return TwinTally(
        tuple(map(_all_of, *(tally.sides for tally in tallies))),
        tuple(chain.from_iterable(tally.texts for tally in tallies)),
        sum(tally.same_answers for tally in tallies),
        sum(tally.compared_answers for tally in tallies),
        tuple(map(sum, zip(*(tally.seeds for tally in tallies), strict=True))),
        tuple(besides.values()),
    )


def _all_of(*replicas: TwinSide) -> TwinSide:
    """Return replicas of one deployment as one side."""
    first, *others = dict.fromkeys(side.url for side in replicas)
    kept = [side.keeps_seeds for side in replicas if side.keeps_seeds is not None]
    url = f"{first} and {len(others)} more" if others else first
    return replace(replicas[0], url=url, keeps_seeds=all(kept) if kept else None)


def twin_report(tally: TwinTally) -> TwinReport:
    """Return the report of a tally."""
    counted = tally.texts
    apart_numbers = [number for text in counted for number in text.apart]
    outcome, apart, noise = _weighed(counted)
    within = _told_within(counted, outcome)
    if counted and 0 < tally.compared_answers == tally.same_answers and not any(apart_numbers):
        outcome = Outcome.SAME
    gaps = [gap for text in counted for gap in text.gaps]
    by_itself = ([number for text in counted for number in text.by_itself[side]] for side in (0, 1))
    return TwinReport(
        tally.sides,
        outcome,
        tokens=len(apart_numbers),
        told_within=within,
        apart=apart,
        noise=noise,
        limit=_limit(noise),
        divergence=_interval([text.divergence for text in counted]),
        agreed=sum(not gap for gap in gaps),
        near_ties=sum(0 < gap <= 2 * _limit(noise) for gap in gaps),
        same_answers=tally.same_answers,
        compared_answers=tally.compared_answers,
        seeds=tally.seeds,
        besides=tally.besides,
        histograms=tuple(map(_histogram, (*by_itself, apart_numbers))),
    )


def _are_same(pair: AnswerPair) -> bool:
    """True if two answers have the same choices, by the fields that both sides report."""
    ours, theirs = pair.baseline.choices, pair.other.choices
    stated = [stated_by_both(*choices) for choices in zip(ours, theirs, strict=False)]
    return len(ours) == len(theirs) and all(first == second for first, second in stated)


def twins_as_json(report: TwinReport) -> dict[str, Any]:
    """Return the comparison as one JSON value. Its last key shows that nothing was cut off."""
    return {
        **asdict(report),
        "noise": [asdict(side) | {"size": side.size} for side in report.noise],
        "footer": True,
    }
