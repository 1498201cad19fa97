"""The output of a parrot and its logprobs, as plain functions of token ids.

Each token repeats the one a *lag* before it. The lag follows from the position alone: it is the largest that
reaches back into the text. So a prompt that is as long as a lag is repeated from its beginning, and its
author knows the answer.

The logits of a position follow from the repeated id. Ids form groups of 32. The repeated id has the logit
`SAID`. The ids that follow it in its group, cyclically, are the runners-up, each `STEP` below the one before.
All others are far below. Each id also has a small bias, so that logprobs differ from token to token. All
logits are sums of few powers of two: bfloat16, float16 and float32 represent the same numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

GROUP = 32
"""The number of ids in a group, and of values of the last digit."""
SAID = 6.0
"""The logit of the repeated id, without its bias."""
MARGIN = 4.0
"""The distance from it to the first runner-up."""
STEP = 0.5
"""The distance from each runner-up to the next."""
ELSEWHERE = 24.0
"""The amount subtracted for each different digit of the group's number."""
DISTANCE = 1024
"""The default of the largest lag."""
EXACT_ABOVE = -14.0
"""The logprob above which values are exact in every type; lower ones have the precision of the weights'
type.
"""
LEAST_DISTANCE = 16
"""The smallest lag besides 1. The lags are the distance, its quarter, the quarter of that, and so on."""


def bias(token: int) -> float:
    """Return the bias of an id's logit at any position: less than `STEP`, in 32nds."""
    # A multiplicative hash (2**32 divided by the golden ratio): neighbouring ids get different biases.
    return ((token * 2654435769 >> 7) & 15) / 32


def runner_up(place: int) -> float:
    """Return the logit without bias of the id `place` steps after the repeated one, which has place 0."""
    return SAID if not place else SAID - MARGIN - STEP * (place - 1)


def positions_of(distance: int) -> int:
    """Return the length of the longest text that a checkpoint supports."""
    return max(4096, 8 * distance)


@dataclass(frozen=True)
class Parrot:
    """The law of one checkpoint."""

    vocab_size: int
    distance: int = DISTANCE
    """The largest lag."""

    @cached_property
    def lags(self) -> tuple[int, ...]:
        """The distances from which a token may be repeated, smallest first; each divides the next."""
        lags = [self.distance]
        while lags[-1] % 4 == 0 and lags[-1] // 4 >= LEAST_DISTANCE:
            lags.append(lags[-1] // 4)
        return (1, *reversed(lags))

    @cached_property
    def digits(self) -> tuple[int, int, int, int]:
        """The number of values of each digit of an id, the last digit first."""
        groups = -(-self.vocab_size // GROUP)
        base = next(base for base in range(1, groups + 1) if base**3 >= groups)
        return GROUP, base, base, base

    def lag(self, position: int) -> int:
        """Return the distance from `position` to the token that it repeats. The first position is 0, and
        repeats nothing.
        """
        return self.lags[bisect_right(self.lags, position) - 1]

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of positions with one lag: beginning, end, and lag."""
        for lag, upto in zip(self.lags, (*self.lags[1:], end), strict=True):
            if max(begin, lag) < min(end, upto):
                yield max(begin, lag), min(end, upto), lag

    def answer(
        self, prompt: Sequence[int], count: int, barred: Collection[int] = (), least: int = 0
    ) -> tuple[int, ...] | None:
        """Return the `count` ids that follow a prompt, without ending at any of them; None if unknown.

        Ids in `barred` cannot be among the first `least`: the likeliest other id replaces one.
        """
        ids = list(prompt)
        for position in range(len(prompt), len(prompt) + count):
            likeliest = ids[position - self.lag(position)]
            if position < len(prompt) + least and likeliest in barred:
                ranked = (token for token, _ in self.top(likeliest, GROUP) if token not in barred)
                likeliest = next(ranked, -1)
                if likeliest < 0:
                    return None
            ids.append(likeliest)
        return tuple(ids[len(prompt) :])

    def digits_of(self, token: int) -> tuple[int, ...]:
        """Return the digits of an id, the last one first."""
        places = []
        for size in self.digits:
            token, digit = divmod(token, size)
            places.append(digit)
        return tuple(places)

    def logit(self, likeliest: int, token: int) -> float:
        """Return the logit of an id if `likeliest` is the output."""
        (here, *group), (there, *other) = self.digits_of(likeliest), self.digits_of(token)
        away = sum(mine != its for mine, its in zip(group, other, strict=True))
        return runner_up((there - here) % GROUP) - ELSEWHERE * away + bias(token)

    def logprob(self, likeliest: int, token: int) -> float:
        """Return the logprob of an id if `likeliest` is the output.

        The share of all other groups is neglected, because it is less than a hundred millionth.
        """
        return self.logit(likeliest, token) - _normaliser(self, likeliest)

    def top(self, likeliest: int, count: int) -> list[tuple[int, float]]:
        """Return the likeliest ids with their logprobs if `likeliest` is the output, likeliest first.

        They are of its group, so 32 at most. Lower ids may have another order in other types.
        """
        ranked = sorted(self.group(likeliest), key=lambda token: -self.logit(likeliest, token))
        return [(token, self.logprob(likeliest, token)) for token in ranked[:count]]

    def group(self, likeliest: int) -> range:
        """Return the ids of the group of an id."""
        first = likeliest - likeliest % GROUP
        return range(first, min(first + GROUP, self.vocab_size))


@dataclass(frozen=True)
class Repeater:
    """The known facts about a parrot of another make: each token repeats the one a distance before it.

    Its logprobs are unknown, and so is its output after a prompt shorter than the distance.
    """

    distance: int

    def lag(self, position: int) -> int:
        """Return the distance from `position` to the token that it repeats; 0 if unknown."""
        return self.distance if position >= self.distance else 0

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of positions with one lag: beginning, end, and lag."""
        if end > self.distance:
            yield max(begin, self.distance), end, self.distance

    def answer(
        self, prompt: Sequence[int], count: int, barred: Collection[int] = (), least: int = 0
    ) -> tuple[int, ...] | None:
        """Return the `count` ids that follow a prompt; None for a prompt that is too short.

        Also None if one of the first `least` ids is barred, because its replacement is unknown.
        """
        if len(prompt) < self.distance:
            return None
        period = prompt[-self.distance :]
        likeliest = tuple(period[position % self.distance] for position in range(count))
        return None if any(token in barred for token in likeliest[:least]) else likeliest


Law = Parrot | Repeater


@lru_cache(maxsize=1 << 16)
def _normaliser(parrot: Parrot, likeliest: int) -> float:
    return math.log(math.fsum(math.exp(parrot.logit(likeliest, token)) for token in parrot.group(likeliest)))
