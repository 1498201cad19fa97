"""Per-token series in lockstep with the output ids: one entry for each id, in every emission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokenwire.checks.evidence import Observation, Row, expect, expect_each
from tokenwire.record import Emission, as_list


def observe_no_list(emission: Emission, name: str, value: object) -> Observation:
    """Observe a series that is no list where there are ids."""
    kind = "is missing" if value is None else f"is a {type(value).__name__}, not a list,"
    message = f"{name} {kind} for {emission.entries_in_words}"
    return expect(emission.at(name), emission.expected_entries, value, message, holds=False)


def lockstep(emissions: Sequence[Emission], names: Iterable[str]) -> Iterator[Observation]:
    """Observe some series in some emissions.

    A series that a choice carries anywhere is expected wherever there are ids; where there are none it may
    be left out.
    """
    for name in names:
        sizes: list[Row] = []
        for emission in emissions:
            value, due = emission.series.get(name), emission.expected_entries
            if not emission.counted or (value is None and due <= 0):
                continue
            entries = as_list(value)
            if entries is None:
                yield observe_no_list(emission, name, value)
            else:
                sizes.append((emission, name, len(entries) == due, due, len(entries)))
        yield from expect_each(sizes, "{field} holds {actual} entries for {emission.entries_in_words}")
