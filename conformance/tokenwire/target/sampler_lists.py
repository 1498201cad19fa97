"""Recognize lists of custom samplers among the unknown lists in `meta_info`.

A list is customized_info only if the user declares that, or if it usually has one entry for each output id.
The next version of a server may add other lists: a histogram, or a trace whose length varies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tokenwire.record import Answer, Choice, Emission, Stream, as_list, fact

_OF_THE_MIRROR = frozenset({"mirror_token_id", "mirror_position"})
_TWO_LENGTHS = 2
"""The minimum number of different lengths at which a list must match. It may match a single
length by chance.
"""


class _Steps(NamedTuple):
    """The number of emissions in which a list had one entry for each output id, and in which it had not."""

    counts: frozenset[int] = frozenset()
    """The different numbers of ids for which the list had as many entries."""
    in_step: int = 0
    """The number of emissions in which the list had one entry for each id."""
    out_of_step: int = 0
    """The number of emissions in which the list had a different number of entries."""

    def __add__(self, other: object) -> _Steps:
        assert isinstance(other, _Steps)
        counted = self.in_step + other.in_step, self.out_of_step + other.out_of_step
        return _Steps(self.counts | other.counts, *counted)

    @property
    def unknown(self) -> bool:
        """True if the list matches the ids only by chance, so that it does not come from a sampler."""
        often = self.in_step > self.out_of_step and len(self.counts) >= _TWO_LENGTHS
        return self.out_of_step > 0 and not often


@fact(Stream)
def _has_lists(stream: Stream) -> bool:
    return any(choice.customized for choice in stream.choices)


@fact(Stream)
def _in_lockstep(stream: Stream) -> dict[str, _Steps]:
    """Count for each unknown list how often it had one entry for each id."""
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
    """Return the lists of a run that do not come from a sampler, because their lengths seldom
    match the ids.
    """
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
