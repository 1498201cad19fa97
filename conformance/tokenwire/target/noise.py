"""Noise: how much the numbers of repeated answers differ, for each endpoint and series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tokenwire.record import Answer, Choice, fact
from tokenwire.requirement import tolerance
from tokenwire.target.alike import ROUNDING, apart, known_by

Key = TypeVar("Key")

_OF_NOISE = 4
"""The factor by which a difference may exceed the largest difference between repeated answers."""
_DRIFT = tolerance("drift")

Kind = tuple[str, str]
"""The name of a dialect and the name of a series of logprobs."""


class Difference(NamedTuple):
    """The largest difference between numbers of one kind in answers to one request."""

    request: str
    """The key of the request (`Asked.key`)."""
    kind: Kind
    most: float


@dataclass(frozen=True)
class Noise:
    """Differences between numbers that the order of computation causes."""

    furthest: Mapping[Kind, float] = field(default_factory=dict)
    unsteady: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Differences above the general limit (drift), by request key and series name."""

    def rounding(self, answer: Answer, name: str) -> float:
        """Return the allowed difference between two numbers of a series.

        If no answer with the series was repeated at this endpoint, the same series at other endpoints
        decides. Without such a series, all repeated series decide, because one server computes all of them.
        """
        if (answer.dialect, name) in self.furthest:
            known = [self.furthest[answer.dialect, name]]
        else:
            known = [most for (_, other), most in self.furthest.items() if other == name]
        of_request = self.unsteady.get((answer.asked.key, name), 0.0)
        return max(ROUNDING, _OF_NOISE * max(of_request, max(known or self.furthest.values(), default=0.0)))

    def __or__(self, other: Noise) -> Noise:
        """Return the larger noise of the two for each kind."""
        return Noise(_greater(self.furthest, other.furthest), _greater(self.unsteady, other.unsteady))


def _greater(first: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    return {key: max(first.get(key, 0.0), other.get(key, 0.0)) for key in first.keys() | other.keys()}


def noise_of(differences: Iterable[Difference]) -> Noise:
    """Return the noise of a server, from all requests that it answered more than once.

    If the numbers of only one request differ by more than drift, this does not count as noise of the
    endpoint.
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


def numbers_apart(first: Answer, others: Iterable[Answer]) -> Iterable[Difference]:
    """Return for each series the largest difference between numbers at one position, in answers with the same
    content.
    """
    furthest: dict[str, float] = {}
    for other in others:
        theirs = {choice.index: choice for choice in other.choices}
        for choice in first.choices:
            twin = theirs.get(choice.index)
            if twin is None or (choice.output_ids, choice.text) != (twin.output_ids, twin.text):
                continue
            # Most choices have equal numbers. A cached fact shows this, so that the content need not be read
            # again from the capture.
            differing = _numbers(choice) != _numbers(twin)
            found = _series_apart(choice.load(), twin.load()) if differing else {}
            for name in _series_of_numbers(choice) & _series_of_numbers(twin):
                furthest[name] = max(furthest.get(name, 0.0), found.get(name, 0.0))
    return [Difference(first.asked.key, (first.dialect, name), most) for name, most in furthest.items()]


def _series_apart(first: Choice, other: Choice) -> dict[str, float]:
    ours, theirs = _of_prompt(first), _of_prompt(other)
    of_prompt = {name: _entries_apart(entries, theirs.get(name)) for name, entries in ours.items()}
    names = first.series_names & other.series_names - first.customized
    return of_prompt | {name: _entries_apart(first.series(name), other.series(name)) for name in names}


@fact(Choice)
def _series_of_numbers(choice: Choice) -> frozenset[str]:
    """Return the names of the series of output and prompt whose numbers are compared."""
    return choice.server_series | _of_prompt(choice).keys()


@fact(Choice)
def _numbers(choice: Choice) -> int:
    """Return a key that is equal for choices with the same numbers."""
    of_output = {name: choice.series(name) for name in sorted(choice.server_series)}
    of_prompt = _of_prompt(choice)
    return known_by((of_output, of_prompt)) if of_output or of_prompt else 0


def _of_prompt(choice: Choice) -> dict[str, Any]:
    """Return the prompt-side series of a choice, each with the value of the first emission that has it."""
    series: dict[str, Any] = {}
    for emission in reversed(choice.emissions):
        series |= emission.prompt_series
    return series


def _entries_apart(ours: Any, theirs: Any) -> float:
    """Return the largest difference between logprobs of two series. 0 if they cover different positions."""
    both = isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
    return max(map(apart, ours, theirs), default=0.0) if both and ours != theirs else 0.0
