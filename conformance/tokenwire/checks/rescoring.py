"""When two computations of one logprob agree: kernels, batches and rounding move it a little, faults far.

A single position may lie far off without a fault, where a low-precision model is torn between two states. So
the share of positions that do is judged, not the greatest difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.evidence import Observation, expect
from tokenwire.dialects.logprobs import number_of
from tokenwire.record import Place
from tokenwire.requirement import tolerance

TOLERANCE = tolerance("rescoring")
"""In nats. Half-precision models with a quantised cache stay below it nearly everywhere."""
OUTLIERS = tolerance("rescoring_outliers")
"""The share of positions that may lie further apart."""


@dataclass(frozen=True)
class Pair:
    """One position, by its index, and the logprob that each of two computations gives it."""

    position: int
    first: Any
    second: Any

    @property
    def agrees(self) -> bool:
        first, second = number_of(self.first), number_of(self.second)
        return first is not None and second is not None and abs(first - second) <= TOLERANCE


def observe_agreement(
    place: Place,
    pairs: Sequence[Pair],
    *,
    what: str,
    source: str,
    related: tuple[Place, ...] = (),
    sure: int = 0,
) -> Observation:
    """Look whether two computations agree but for outliers; show the first position where they do not.

    `what` names the logprob that is looked at with its position left out, `source` the other computation. So
    many positions at the beginning as `sure` says may be no outliers.
    """
    apart = [pair for pair in pairs if not pair.agrees]
    holds = len(apart) <= OUTLIERS * len(pairs) and not any(pair.position < sure for pair in apart)
    if holds:
        size = f"{len(pairs)} logprobs within {TOLERANCE}"
        return expect(place, size, size, holds=True, related=related)
    pair = apart[0]
    message = (
        f"{what} {pair.position} is {pair.first!r}, but {pair.second!r} {source}; "
        f"so are {len(apart)} of {len(pairs)}"
    )
    return expect(place, pair.second, pair.first, message, holds=False, related=related)
