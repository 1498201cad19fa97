"""Requests whose answers must be equal, and the pairs of answers that are compared.

`judging/chance` decides for which requests the server may give two different answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tokenwire.record import Answer, Stream, fact
from tokenwire.target.alike import known_by
from tokenwire.target.noise import Noise
from tokenwire.wire.exchange import Ending

PROBE = "probe"
"""The scenario whose repeated request shows if the server repeats its answers."""

_Thing = TypeVar("_Thing")
Weights = Callable[[Answer], int | None]
"""A function that returns the number of the weights that generated an answer. None if it is unknown."""


@dataclass(frozen=True)
class AnswerPair:
    """Two answers that must have the same content, because their requests are the same.

    `baseline` is the whole answer if there is one. If a gateway is compared with its worker, `baseline` is
    the worker's answer and `other` the gateway's. Then refused and failed requests are compared as well. A
    chance difference is a violation only if the server repeated both answers (`spec/delivery.md`,
    determinism).
    """

    baseline: Answer
    other: Answer
    repeats: bool = True
    """True if both servers repeat their answers, so that ids, text and numbers may be compared."""
    steady: bool = False
    """True if a chance difference counts: both answers were repeated, or no request had two different
    answers.
    """
    noise: Noise = field(default_factory=Noise)
    """The noise in the numbers of both servers."""

    def load(self) -> Comparison:
        """Return the pair with the content of both answers."""
        return Comparison(self.baseline.load(), self.other.load(), self.repeats, self.steady, self.noise)


@dataclass(frozen=True)
class Comparison(AnswerPair):
    """Two answers with their content, for checks to compare."""

    baseline: Stream
    other: Stream


def completed(stream: Answer) -> bool:
    """True if the answer is complete, without an error or an abort."""
    return (
        stream.answered
        and stream.error is None
        and stream.exchange.ending is Ending.COMPLETE
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in stream.choices)
    )


def request_of(stream: Answer) -> Hashable:
    """Return a key that is equal for identical requests. None if the answer may differ each time."""
    asked = stream.asked
    if not asked.key:
        return None
    # The enabled outputs are part of the key, because the requirement asking-for-more-changes-nothing judges
    # their effect.
    reported = (asked.logprobs, asked.logprob_start, asked.top_logprobs, asked.chosen_ids, asked.uniform)
    returned = (asked.return_prompt_token_ids, asked.return_token_ids, asked.return_meta_info)
    usage = (asked.usage, asked.continuous_usage)
    return (stream.dialect, asked.key, asked.stream, asked.stream_interval, *reported, *returned, *usage)


def result_of(stream: Answer) -> tuple[Any, ...]:
    return tuple(
        (choice.index, choice.output_ids, choice.text, choice.finish.type if choice.finish else None)
        for choice in stream.choices
    )


@fact(Stream)
def known_result(stream: Stream) -> int:
    """Return a key that is equal for answers with the same ids, text and finish reasons."""
    return known_by(result_of(stream))


def grouped(things: Iterable[_Thing], known_by: Callable[[_Thing], Hashable]) -> Iterable[list[_Thing]]:
    """Group objects by a key. Groups and their members keep the order."""
    groups: dict[Hashable, list[_Thing]] = defaultdict(list)
    for thing in things:
        groups[known_by(thing)].append(thing)
    return groups.values()


@fact(Stream)
def details_named(stream: Stream) -> frozenset[str]:
    """Return the names of the details that have a value in any choice of an answer."""
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    details = (detail for emission in emissions for detail in emission.details.items())
    return frozenset(name for name, value in details if value is not None)


class _Held(NamedTuple):
    """The parts of an answer that decide with which other answers it is compared."""

    position: int
    stream: Answer
    whole: bool
    interval: int | None
    series: frozenset[str]
    details: frozenset[str]
    result: int
    chosen: tuple[int, ...]
    """The ids whose logprobs the request chose."""

    def nearness(self, other: _Held) -> tuple[int, bool, int, int]:
        series, details = self.series & other.series, self.details & other.details
        return len(series), self.result == other.result, len(details), -self.position

    def chose_alike(self, other: _Held) -> bool:
        """True if not both requests chose ids, or if both chose the same."""
        return not (self.chosen and other.chosen) or self.chosen == other.chosen


def _held(position: int, stream: Answer) -> _Held:
    series = frozenset(name for choice in stream.choices for name in choice.series_names)
    whole, interval = not stream.asked.stream, stream.asked.stream_interval
    details, chosen = details_named(stream), stream.asked.chosen_ids
    return _Held(position, stream, whole, interval, series, details, known_result(stream), chosen)


def comparisons(
    streams: Iterable[Answer], trusts: Callable[[Answer], bool], weights: Weights = lambda _: 0
) -> list[AnswerPair]:
    """Pair each stream with a whole answer to the same request, and with a stream at another interval.

    `trusts` returns True for answers that may be compared with others to the same request. The best baseline
    has the most per-token series in common, then an equal result, then the most details in common. Among
    equally good baselines, the first is taken.
    """
    pairs: list[AnswerPair] = []
    known = (
        stream for stream in streams if trusts(stream) and completed(stream) and weights(stream) is not None
    )
    for group in grouped(known, lambda stream: (weights(stream), stream.asked.key)):
        reported = [_held(position, stream) for position, stream in enumerate(group)]
        whole, streamed = _Firsts(), _Firsts()
        for answer in reported:
            if answer.whole:
                whole.add(answer)
        for other in reported:
            if not other.whole:
                baselines = (whole.nearest(other), streamed.nearest(other))
                pairs += [
                    AnswerPair(baseline.stream, other.stream)
                    for baseline in baselines
                    if baseline is not None
                ]
                streamed.add(other)
    return pairs


class _Firsts:
    """The first answer to a request for each combination of series and details."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, dict[int | None, _Held]] = {}

    def add(self, answer: _Held) -> None:
        first = self._alike.setdefault(
            (answer.whole, answer.interval, answer.series, answer.details, answer.chosen), {None: answer}
        )
        first.setdefault(answer.result, answer)

    def nearest(self, other: _Held) -> _Held | None:
        """Return the answer that has most in common with another answer. A stream must have
        another interval. If both requests chose ids, they must be the same.
        """
        known = (first.get(other.result, first[None]) for first in self._alike.values())
        alike = filter(other.chose_alike, known)
        apart = (answer for answer in alike if answer.whole or answer.interval != other.interval)
        return max(apart, key=other.nearness, default=None)
