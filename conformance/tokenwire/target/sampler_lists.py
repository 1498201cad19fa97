"""Lists of a sampler beside the known ones, and other lists that no dialect knows.

A list in `meta_info` is customized_info only if it was seen to have an entry for each output id, or if it is
declared, because the next release of a server may add a histogram.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tokenwire.record import Answer, Choice, Emission, Stream, as_list, fact

_OF_THE_MIRROR = frozenset({"mirror_token_id", "mirror_position"})
_TWO_LENGTHS = 2
"""A list of one length has that of the ids by chance, once."""


@fact(Stream)
def _has_lists(stream: Stream) -> bool:
    return any(choice.customized for choice in stream.choices)


@fact(Stream)
def _ids_in_lockstep(stream: Stream) -> dict[str, tuple[int, ...]]:
    """Map each list that a sampler may have brought to the numbers of ids for which it had an entry each; 0
    where it had not.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for choice in stream.choices:
        for name in choice.customized:
            found[name] |= _counts(choice, name)
    return {name: tuple(counts) for name, counts in found.items()}


def _counts(choice: Choice, name: str) -> set[int]:
    counts: set[int] = set()
    for emission in choice.emissions:
        entries = as_list(emission.series.get(name))
        if not emission.counted or entries is None or (not entries and not emission.expected_entries):
            continue
        if len(entries) != emission.expected_entries:
            return {*counts, 0}
        counts.add(emission.after)
    return counts


def unknown_lists(streams: Iterable[Answer]) -> frozenset[str]:
    """Return the lists of a run that were out of step with the ids, and never in step with two
    numbers of them.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for stream in streams:
        if _has_lists(stream):
            for name, counts in _ids_in_lockstep(stream).items():
                found[name].update(counts)
    return frozenset(
        name
        for name, counts in found.items()
        if 0 in counts and len(counts) <= _TWO_LENGTHS and name not in _OF_THE_MIRROR
    )


def without_lists(stream: Stream, names: frozenset[str]) -> Stream:
    """Return an answer without some of the lists that a sampler may have brought."""
    if all(names.isdisjoint(choice.customized) for choice in stream.choices):
        return stream

    def without(emission: Emission) -> Emission:
        series = {name: value for name, value in emission.series.items() if name not in names}
        return replace(emission, series=series, customized=emission.customized - names)

    choices = (replace(choice, emissions=tuple(map(without, choice.emissions))) for choice in stream.choices)
    return replace(stream, choices=tuple(choices))
