"""Decides if two deployments serve the same model with the same template, tokenizer and end ids.

Both sides compute logprobs for the same texts, token by token. The noise of a side is measured on this side
alone. A text is scored twice, and its scores are compared with the logprobs that the side reported when it
generated the text. If a side is exactly repeatable, its noise does not show in this way. Then the steps
between its logprobs are used instead, because the steps show the precision of its computation.
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
from tokenwire_twin.answers import differences
from tokenwire_twin.difference import Difference
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
"""The borders of the bins of a histogram: two per decade, from 1e-6 to 10 nats."""
_CONSEQUENCES = frozenset({"output ids", "text", "channels", "series", "finish", "counter", "value"})
"""Kinds of differences that are consequences of different logprobs."""

GREEDY, STREAMED, SEEDED = "greedy", "streamed", "seeded"
"""The prefixes for the labels of answers that are compared: greedy, greedy with streaming, and sampled with a
seed.
"""
_SAMPLE = re.compile(rf"{SEEDED}-\d+")
_COMPARED = re.compile(rf"({GREEDY}|{STREAMED}|{SEEDED})-\d+")

_STATUS = {
    Outcome.OTHER: ExitStatus.VIOLATION,
    Outcome.AROUND: ExitStatus.VIOLATION,
    Outcome.UNDECIDED: ExitStatus.NOTHING_EVALUATED,
}


@dataclass(frozen=True)
class TwinSide:
    """One deployment of a comparison."""

    url: str
    model: str
    dialect: str
    keeps_seeds: bool | None = None
    """True if samples with the same seed were equal. None if no samples were requested."""


@dataclass(frozen=True)
class TwinTally:
    """The counts of one comparison. Several tallies can be merged."""

    sides: tuple[TwinSide, ...]
    texts: tuple[Counted, ...]
    same_answers: int
    compared_answers: int
    seeds: tuple[int, ...]
    besides: tuple[Difference, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class TwinReport:
    """The result of a comparison of two deployments."""

    sides: tuple[TwinSide, ...]
    outcome: Outcome
    weights: Outcome
    """The result for the weights and the arithmetic, from the logprobs alone."""
    doubt: Doubt
    """The reason why the logprobs do not decide; empty if they do."""
    parts: tuple[Part, ...]
    """The results for template, end ids and tokenizer, or the reason why they were not compared."""
    tokens: int
    told_within: int
    """The number of tokens that would have been sufficient for this result."""
    apart: Interval
    """The root mean square difference between the logprobs of both sides, in nats."""
    noise: tuple[Noise, Noise]
    limit: float
    """The largest difference that noise alone may cause."""
    lasting: Interval | None
    """The part of the difference that is equal after another prompt. None if this part was not measured."""
    share: Interval | None
    """The share of the difference that is equal after another prompt: 0 means rounding, 1 means other
    weights.
    """
    divergence: Interval
    """The KL divergence between the distributions, in nats per token."""
    agreed: int
    """The number of tokens for which both sides have the same most likely id."""
    near_ties: int
    """The number of other tokens for which noise explains the different id."""
    same_answers: int
    """The number of answers with the same ids (or texts) and ends.

    Differences in other fields of these answers are in `besides`.
    """
    compared_answers: int
    seeds: tuple[int, ...]
    """The number of samples with a seed that are equal on both sides, and the number that were compared."""
    besides: tuple[Difference, ...]
    """Differences between answers that are not a consequence of different logprobs."""
    histograms: tuple[tuple[int, ...], ...]
    """Three histograms of the size of the difference: for A repeated, for B repeated, and for A against B.

    Tokens are counted. The first bin has the tokens without any difference. Each other bin begins at one of
    `edges`.
    """
    edges: tuple[float, ...] = (0.0, *_EDGES)

    @property
    def exit_status(self) -> int:
        """0: the same. 1: another model or deployment. 4: undecided."""
        return _STATUS.get(self.outcome, ExitStatus.CONFORMS)


def _histogram(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return a histogram.

    The first bin counts the numbers that are 0, the second the numbers up to the first edge, and each other
    bin the numbers between two edges.
    """
    above = [sum(abs(number) > edge for number in numbers) for edge in (0.0, *_EDGES)]
    return (len(numbers) - above[0], *(low - high for low, high in pairwise((*above, 0))))


def tally_twins(
    sides: tuple[TwinSide, TwinSide],
    answers: tuple[Sequence[Answer], Sequence[Answer]],
    texts: Sequence[Text],
    parts: tuple[Part, ...] = (),
) -> TwinTally:
    """Compare two sides by the logprobs of texts, and by their answers to the same requests."""
    every = side_by_side(*answers, lambda answer: ("", answer.exchange.label))
    pairs = [pair for pair in every if pair.baseline.answered or pair.other.answered]
    # Repeated and scored answers have other labels, so they are not counted here.
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
    """Merge the tallies of replicas of the same two deployments.

    Raises ValueError if the deployments differ.
    """
    if len({tuple((side.model, side.dialect) for side in tally.sides) for tally in tallies}) > 1:
        raise ValueError("their models or endpoints differ")
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
    """Return one side that represents all replicas of a deployment."""
    first, *others = dict.fromkeys(side.url for side in replicas)
    kept = [side.keeps_seeds for side in replicas if side.keeps_seeds is not None]
    url = f"{first} and {len(others)} more" if others else first
    return replace(replicas[0], url=url, keeps_seeds=all(kept) if kept else None)


def twin_report(tally: TwinTally) -> TwinReport:
    """Compute the result from a tally."""
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
    """True if two answers have equal choices, in the fields that both sides report."""
    ours, theirs = pair.baseline.choices, pair.other.choices
    stated = [stated_by_both(*choices) for choices in zip(ours, theirs, strict=False)]
    return len(ours) == len(theirs) and all(first == second for first, second in stated)


def _end_alike(pair: AnswerPair) -> bool:
    """True if two answers end for the same reasons, and both sides answered."""
    finishes = [
        [choice.finish.type if choice.finish is not None else None for choice in side.choices]
        for side in (pair.baseline, pair.other)
    ]
    return finishes[0] == finishes[1] and pair.baseline.answered and pair.other.answered


def twins_as_json(report: TwinReport) -> dict[str, Any]:
    """Return the result as one JSON value. Its last key shows that the file is complete."""
    return {
        **asdict(report),
        "noise": [asdict(side) | {"size": side.size} for side in report.noise],
        "footer": True,
    }
