"""Recognizes the lists of custom samplers among lists in `meta_info` that no dialect knows.

A list is customized_info only if it mostly has an entry for each output id, or if it is declared. The next
release of a server may add a histogram, or a trace whose length varies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tokenwire.record import Answer, Choice, Emission, Stream, as_list, fact

_OF_THE_MIRROR = frozenset({"mirror_token_id", "mirror_position"})
_TWO_LENGTHS = 2
"""The number of different lengths that a list must match; a single length may match by chance."""


class _Steps(NamedTuple):
    """Counts of emissions in which a list did or did not have an entry for each output id."""

    counts: frozenset[int] = frozenset()
    """The numbers of ids at which the list had an entry for each."""
    in_step: int = 0
    """Emissions in which the list had an entry for each id."""
    out_of_step: int = 0
    """Emissions in which it had not."""

    def __add__(self, other: object) -> _Steps:
        assert isinstance(other, _Steps)
        counted = self.in_step + other.in_step, self.out_of_step + other.out_of_step
        return _Steps(self.counts | other.counts, *counted)

    @property
    def unknown(self) -> bool:
        """True if the list matched the ids by chance at most, as a list of any length does."""
        often = self.in_step > self.out_of_step and len(self.counts) >= _TWO_LENGTHS
        return self.out_of_step > 0 and not often


@fact(Stream)
def _has_lists(stream: Stream) -> bool:
    return any(choice.customized for choice in stream.choices)


@fact(Stream)
def _in_lockstep(stream: Stream) -> dict[str, _Steps]:
    """Count, for each list that may come from a sampler, how often it had an entry for each id."""
    found: dict[str, _Steps] = defaultdict(_Steps)
    for choice in stream.choices:
        for name in choice.customized:
            found[name] += _steps(choice, name)
    return dict(found)


def _steps(choice: Choice, name: str) -> _Steps:
    counts: set[int] = set()
    in_step = out_of_step = 0
    for emission in choice.emissions:
        entries = as_list(emission.series.get(name))
        if not emission.counted or entries is None or (not entries and not emission.expected_entries):
            continue
        if len(entries) == emission.expected_entries:
            counts.add(emission.after)
            in_step += 1
        else:
            out_of_step += 1
    return _Steps(frozenset(counts), in_step, out_of_step)


def unknown_lists(streams: Iterable[Answer]) -> frozenset[str]:
    """Return the lists of a run that do not come from a sampler, because they seldom match the ids."""
    found: dict[str, _Steps] = defaultdict(_Steps)
    for stream in streams:
        if _has_lists(stream):
            for name, steps in _in_lockstep(stream).items():
                found[name] += steps
    return frozenset(name for name, steps in found.items() if steps.unknown and name not in _OF_THE_MIRROR)


def without_lists(stream: Stream, names: frozenset[str]) -> Stream:
    """Return an answer without the named lists."""
    if all(names.isdisjoint(choice.customized) for choice in stream.choices):
        return stream

    def without(emission: Emission) -> Emission:
        series = {name: value for name, value in emission.series.items() if name not in names}
        return replace(emission, series=series, customized=emission.customized - names)

    choices = (replace(choice, emissions=tuple(map(without, choice.emissions))) for choice in stream.choices)
    return replace(stream, choices=tuple(choices))
