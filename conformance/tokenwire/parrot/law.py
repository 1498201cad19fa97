"""The output and the logprobs of a parrot, as plain functions of token ids.

Each token repeats an earlier token, at a distance called *lag*. The lag depends only on the position: it is
the largest lag that does not reach before the beginning of the text. So a prompt with a length equal to a lag
is repeated from its beginning, and the author of the prompt knows the answer. The logits of a position depend
only on the repeated id. Ids form groups of 32. The repeated id has the logit `SAID`. The ids that follow the
repeated id cyclically in its group are the runners-up. The logit of each runner-up is `STEP` below that of
the previous runner-up. All other ids are far below. Each id also has a small bias, so that logprobs differ
from token to token. All logits are sums of few powers of two, so bfloat16, float16 and float32 represent them
exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

GROUP = 32
"""The number of ids in a group. It is also the number of values of an id's last digit."""
SAID = 6.0
"""The logit of the repeated id, before its bias is added."""
MARGIN = 4.0
"""The difference between the logits of the repeated id and of the first runner-up, without biases."""
STEP = 0.5
"""The difference between the logits of neighbouring runners-up, without biases."""
ELSEWHERE = 24.0
"""The amount by which a logit is lower for each digit in which an id's group differs from the group of the
repeated id.
"""
DISTANCE = 1024
"""The default of the largest lag, in tokens."""
EXACT_ABOVE = -14.0
"""The logprob above which values are exact in every floating-point type.

Lower logprobs have only the precision of the weights.
"""
LEAST_DISTANCE = 16
"""The smallest lag besides 1. Each lag is a quarter of the next larger one; the largest is the distance."""


def bias(token: int) -> float:
    """Return the bias of an id's logit.

    The bias is the same at all positions. It is a multiple of 1/32 that is less than `STEP`.
    """
    # A multiplicative hash (2**32 divided by the golden ratio): neighbouring ids get different biases.
    return ((token * 2654435769 >> 7) & 15) / 32


def runner_up(place: int) -> float:
    """Return the logit of the id that is `place` steps after the repeated id in its group.

    The bias is not included.
    """
    return SAID if not place else SAID - MARGIN - STEP * (place - 1)


def positions_of(distance: int) -> int:
    """Return the length of the longest text that a checkpoint with this distance supports."""
    return max(4096, 8 * distance)


@dataclass(frozen=True)
class Parrot:
    """The rules by which one checkpoint computes its output and its logits."""

    vocab_size: int
    distance: int = DISTANCE
    """The largest lag, in tokens."""

    @cached_property
    def lags(self) -> tuple[int, ...]:
        """The possible lags, smallest first. Each lag divides the next larger lag."""
        lags = [self.distance]
        while lags[-1] % 4 == 0 and lags[-1] // 4 >= LEAST_DISTANCE:
            lags.append(lags[-1] // 4)
        return (1, *reversed(lags))

    @cached_property
    def digits(self) -> tuple[int, int, int, int]:
        """The number of values of each digit of an id, last digit first."""
        groups = -(-self.vocab_size // GROUP)
        base = next(base for base in range(1, groups + 1) if base**3 >= groups)
        return GROUP, base, base, base

    def lag(self, position: int) -> int:
        """Return the distance between this position and the token that is repeated at this position.

        Positions begin at 0. The first token repeats nothing.
        """
        return self.lags[bisect_right(self.lags, position) - 1]

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of positions between `begin` and `end` in which the lag is constant.

        A range is given by its beginning, its end and its lag.
        """
        for lag, upto in zip(self.lags, (*self.lags[1:], end), strict=True):
            if max(begin, lag) < min(end, upto):
                yield max(begin, lag), min(end, upto), lag

    def answer(
        self, prompt: Sequence[int], count: int, barred: Collection[int] = (), least: int = 0
    ) -> tuple[int, ...] | None:
        """Return the `count` ids that follow a prompt, as if no id ended the output.

        None if these ids cannot be computed. Among the first `least` ids, an id in `barred` is replaced by
        the next likeliest id.
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
        """Return the digits of an id, last digit first."""
        places = []
        for size in self.digits:
            token, digit = divmod(token, size)
            places.append(digit)
        return tuple(places)

    def logit(self, likeliest: int, token: int) -> float:
        """Return the logit of `token` at a position whose repeated id is `likeliest`."""
        (here, *group), (there, *other) = self.digits_of(likeliest), self.digits_of(token)
        away = sum(mine != its for mine, its in zip(group, other, strict=True))
        return runner_up((there - here) % GROUP) - ELSEWHERE * away + bias(token)

    def logprob(self, likeliest: int, token: int) -> float:
        """Return the logprob of `token` at a position whose repeated id is `likeliest`.

        The ids of all other groups are neglected, because their total probability is less than 1e-8.
        """
        return self.logit(likeliest, token) - _normaliser(self, likeliest)

    def top(self, likeliest: int, count: int) -> list[tuple[int, float]]:
        """Return the likeliest ids with their logprobs at a position whose repeated id is `likeliest`.

        The likeliest id comes first. At most 32 ids are returned, all of the same group. In floating-point
        types of low precision, the order of unlikely ids may differ.
        """
        ranked = sorted(self.group(likeliest), key=lambda token: -self.logit(likeliest, token))
        return [(token, self.logprob(likeliest, token)) for token in ranked[:count]]

    def group(self, likeliest: int) -> range:
        """Return the ids of the group to which an id belongs."""
        first = likeliest - likeliest % GROUP
        return range(first, min(first + GROUP, self.vocab_size))


@dataclass(frozen=True)
class Repeater:
    """A parrot that was not written by this project.

    Each token repeats the token at a fixed distance before it. The logprobs are unknown, and so is the output
    after a prompt that is shorter than the distance.
    """

    distance: int

    def lag(self, position: int) -> int:
        """Return the distance between this position and the token that is repeated at this position. 0 if the
        repeated token is unknown.
        """
        return self.distance if position >= self.distance else 0

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the one range of positions from `begin` to `end` with known output.

        The range is given by its beginning, its end and its lag.
        """
        if end > self.distance:
            yield max(begin, self.distance), end, self.distance

    def answer(
        self, prompt: Sequence[int], count: int, barred: Collection[int] = (), least: int = 0
    ) -> tuple[int, ...] | None:
        """Return the `count` ids that follow a prompt.

        Return None for a prompt that is shorter than the distance. Return None also if one of the first
        `least` ids is in `barred`, because the replacement of this id is unknown.
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
