"""Decide if two deployments serve one model, and if what is around the weights is the same.

Both sides score the same texts, token by token. The noise of a side is measured on it alone: a text is scored
again, and scored beside the logprobs of its writer. A side that repeats itself to the last digit hides its
noise. The steps between its numbers then replace it, because they show how many digits it computes with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from typing import Any

from tokenwire.checks.reading.fields import stated_by_both
from tokenwire.judging.beside import side_by_side
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Answer
from tokenwire.target.determinism import AnswerPair
from tokenwire_twin.answers import Difference, differences
from tokenwire_twin.difference_report import LABELS
from tokenwire_twin.twin_numbers import (
    Counted,
    Doubt,
    Interval,
    Noise,
    Outcome,
    Text,
    counted,
    interval,
    told_within,
    weigh,
)
from tokenwire_twin.twin_parts import Part, merged_parts

_EDGES = tuple(10 ** (half / 2) for half in range(-12, 3))
"""Bins of a histogram: two to a decade, from a millionth of a nat to ten."""
_CONSEQUENCES = frozenset({"output ids", "text", "channels", "series", "finish", "counter", "value"})
"""Kinds of differences that follow from different numbers."""

GREEDY, STREAMED, SEEDED = "greedy", "streamed", "seeded"
"""The prefixes of the labels of answers that are compared; the last are samples with a seed."""
_SAMPLE = re.compile(rf"{SEEDED}-\d+")
_COMPARED = re.compile(rf"({GREEDY}|{STREAMED}|{SEEDED})-\d+")

_STATUS = {
    Outcome.OTHER: ExitStatus.VIOLATION,
    Outcome.AROUND: ExitStatus.VIOLATION,
    Outcome.UNDECIDED: ExitStatus.NOTHING_EVALUATED,
}


@dataclass(frozen=True)
class TwinSide:
    """A description of a side."""

    url: str
    model: str
    dialect: str
    keeps_seeds: bool | None = None
    """True if samples of one seed were the same twice; None where none were asked for."""


@dataclass(frozen=True)
class TwinTally:
    """Counts of one comparison; tallies of several merge."""

    sides: tuple[TwinSide, ...]
    texts: tuple[Counted, ...]
    same_answers: int
    compared_answers: int
    seeds: tuple[int, ...]
    besides: tuple[Difference, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class TwinReport:
    """Two sides beside each other."""

    sides: tuple[TwinSide, ...]
    outcome: Outcome
    weights: Outcome
    """The outcome of the logprobs alone: the weights and the arithmetic."""
    doubt: Doubt
    """The reason why the logprobs decide nothing."""
    parts: tuple[Part, ...]
    """The template, the ends and the tokenizer: compared, or the reason why not."""
    tokens: int
    told_within: int
    """The tokens that suffice to show the outcome."""
    apart: Interval
    """The root of the mean square by which the logprobs lie apart that the sides give one id."""
    noise: tuple[Noise, Noise]
    limit: float
    """The distance that noise alone may cause."""
    lasting: Interval | None
    """The part of the distance that is the same behind another prompt; None where that was not asked."""
    share: Interval | None
    """The share of the distance that lasts, from 0 (rounding) to 1 (other weights)."""
    divergence: Interval
    """The divergence of the distributions, in nats for each token."""
    agreed: int
    """Tokens for which the sides have the same likeliest id."""
    near_ties: int
    """Other tokens, where noise explains the difference."""
    same_answers: int
    """Answers with the same ids, or texts, and ends; their other fields are `besides`."""
    compared_answers: int
    seeds: tuple[int, ...]
    """Samples of one seed with the same ids on both sides, and how many were compared."""
    besides: tuple[Difference, ...]
    """Differences of answers that follow from no number."""
    histograms: tuple[tuple[int, ...], ...]
    """Tokens by how far their logprobs lie apart: A from itself, B from itself, A from B. The first bin holds
    those that are equal to the last digit, the others those above each of `edges`.
    """
    edges: tuple[float, ...] = (0.0, *_EDGES)

    @property
    def exit_status(self) -> int:
        """0 the same, 1 another model or deployment, 4 undecided."""
        return _STATUS.get(self.outcome, ExitStatus.CONFORMS)


def _histogram(numbers: Sequence[float]) -> tuple[int, ...]:
    """Count the numbers that are 0, that are above 0, and that lie between each edge and the next."""
    above = [sum(abs(number) > edge for number in numbers) for edge in (0.0, *_EDGES)]
    return (len(numbers) - above[0], *(low - high for low, high in pairwise((*above, 0))))


def tally_twins(
    sides: tuple[TwinSide, TwinSide],
    answers: tuple[Sequence[Answer], Sequence[Answer]],
    texts: Sequence[Text],
    parts: tuple[Part, ...] = (),
) -> TwinTally:
    """Compare two sides by what they make of texts, and by their answers to the same requests."""
    every = side_by_side(*answers, lambda answer: ("", answer.exchange.label))
    pairs = [pair for pair in every if pair.baseline.answered or pair.other.answered]
    # What was asked for again, or scored, has other labels, and is not counted twice.
    compared = [pair for pair in pairs if _COMPARED.fullmatch(pair.baseline.exchange.label)]
    seeded = [pair for pair in compared if _SAMPLE.fullmatch(pair.baseline.exchange.label)]
    found = (seen for pair in pairs for seen in differences(pair.load(), LABELS) if seen.decides)
    besides = {(seen.kind, seen.subject): seen for seen in found if seen.kind not in _CONSEQUENCES}
    return TwinTally(
        sides,
        tuple(numbers for text in texts if (numbers := counted(text)).apart),
        same_answers=sum(_are_same(pair) and _end_alike(pair) for pair in compared),
        compared_answers=len(compared),
        seeds=(sum(map(_are_same, seeded)), len(seeded)),
        besides=tuple(besides.values()),
        parts=parts,
    )


def merged(tallies: Sequence[TwinTally]) -> TwinTally:
    """Return the tallies of replicas of the same two deployments as one. Raises ValueError for other ones."""
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
        merged_parts([tally.parts for tally in tallies]),
    )


def _all_of(*replicas: TwinSide) -> TwinSide:
    """Replicas of one deployment as one side."""
    first, *others = dict.fromkeys(side.url for side in replicas)
    kept = [side.keeps_seeds for side in replicas if side.keeps_seeds is not None]
    url = f"{first} and {len(others)} more" if others else first
    return replace(replicas[0], url=url, keeps_seeds=all(kept) if kept else None)


def twin_report(tally: TwinTally) -> TwinReport:
    """Make the report of a tally."""
    texts = tally.texts
    apart_numbers = [number for text in texts for number in text.apart]
    weighed = weigh(texts)
    within = told_within(texts, weighed.outcome)
    weights = weighed.outcome
    if texts and 0 < tally.compared_answers == tally.same_answers and not any(apart_numbers):
        weights = Outcome.SAME
    around = any(part.differs for part in tally.parts) and weights is not Outcome.OTHER
    gaps = [gap for text in texts for gap in text.gaps]
    by_itself = ([number for text in texts for number in text.by_itself[side]] for side in (0, 1))
    return TwinReport(
        tally.sides,
        Outcome.AROUND if around else weights,
        weights,
        weighed.doubt,
        tally.parts,
        tokens=len(apart_numbers),
        told_within=within,
        apart=weighed.apart,
        noise=weighed.noise,
        limit=weighed.limit,
        lasting=weighed.lasting,
        share=weighed.share,
        divergence=interval([text.divergence for text in texts]),
        agreed=sum(not gap for gap in gaps),
        near_ties=sum(0 < gap <= 2 * weighed.limit for gap in gaps),
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


def _end_alike(pair: AnswerPair) -> bool:
    """True if the choices of two answers end for the same reason, and both sides answered."""
    finishes = [
        [choice.finish.type if choice.finish is not None else None for choice in side.choices]
        for side in (pair.baseline, pair.other)
    ]
    return finishes[0] == finishes[1] and pair.baseline.answered and pair.other.answered


def twins_as_json(report: TwinReport) -> dict[str, Any]:
    """Return the comparison as one JSON value; its last key shows a reader that nothing was cut off."""
    return {
        **asdict(report),
        "noise": [asdict(side) | {"size": side.size} for side in report.noise],
        "footer": True,
    }
