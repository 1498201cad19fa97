"""Noise: the distance between numbers of repeated answers, for each endpoint and kind of number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tokenwire.record import Answer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import ROUNDING

Key = TypeVar("Key")

_OF_NOISE = 4
"""The factor by which a difference may exceed those of the target's own repetitions."""
_DRIFT = tolerance("drift")

Kind = tuple[str, str]
"""A dialect, and the name of a series of logprobs."""


class Difference(NamedTuple):
    """The greatest distance of numbers of one kind in answers to one request."""

    request: str
    """The key of the request (`Asked.key`)."""
    kind: Kind
    most: float


@dataclass(frozen=True)
class Noise:
    """Distances of numbers that differ only by the order of computation."""

    furthest: Mapping[Kind, float] = field(default_factory=dict)
    unsteady: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Distances greater than drift, by request key and series name."""

    def rounding(self, answer: Answer, name: str) -> float:
        """Return the allowed distance between two numbers of a series.

        A kind that was never repeated falls back to the same series at other endpoints, then to all repeated
        series, because one server computes them all.
        """
        if (answer.dialect, name) in self.furthest:
            known = [self.furthest[answer.dialect, name]]
        else:
            known = [most for (_, other), most in self.furthest.items() if other == name]
        of_request = self.unsteady.get((answer.asked.key, name), 0.0)
        return max(ROUNDING, _OF_NOISE * max(of_request, max(known or self.furthest.values(), default=0.0)))

    def __or__(self, other: Noise) -> Noise:
        """Return the greater noise of two, for each kind."""
        return Noise(_greater(self.furthest, other.furthest), _greater(self.unsteady, other.unsteady))


def _greater(first: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    return {key: max(first.get(key, 0.0), other.get(key, 0.0)) for key in first.keys() | other.keys()}


def noise_of(differences: Iterable[Difference]) -> Noise:
    """Return the noise of a target, from all requests that it answered more than once.

    If the numbers of a single request are further apart than drift, that is not noise of its endpoint.
    """
    found: defaultdict[Kind, list[float]] = defaultdict(list)
    unsteady = {}
    for request, kind, most in differences:
        found[kind].append(most)
        if most > _DRIFT:
            unsteady[request, kind[1]] = most
    return Noise({kind: _furthest(sorted(values, reverse=True)) for kind, values in found.items()}, unsteady)


def _furthest(differences: list[float]) -> float:
    return differences[differences[0] > _DRIFT and len(differences) > 1]
