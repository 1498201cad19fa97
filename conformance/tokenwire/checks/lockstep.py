"""Per-token series in lockstep with the output ids: one entry for each id, in every emission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenwire.checks.check import Observation
from tokenwire.checks.walk import Step, as_list, demand_each


def observe_no_list(step: Step, name: str, value: object) -> Observation:
    """Observe a series that is no list where there are ids."""
    kind = "is missing" if value is None else f"is a {type(value).__name__}, not a list,"
    return step.expect(
        name, step.expected_entries, value, f"{name} {kind} for {step.entries_in_words}", holds=False
    )


def lockstep(steps: Sequence[Step], names: Iterable[str]) -> Iterator[Observation]:
    """Observe some series in some steps.

    A series that a choice carries anywhere is expected wherever there are ids; where there are none it may
    be left out.
    """
    for name in names:
        sizes: list[tuple[Step, str, bool, Any, Any]] = []
        for step in steps:
            value, due = step.emission.series.get(name), step.expected_entries
            if not step.counted or (value is None and due <= 0):
                continue
            entries = as_list(value)
            if entries is None:
                yield observe_no_list(step, name, value)
            else:
                sizes.append((step, name, len(entries) == due, due, len(entries)))
        yield from demand_each(sizes, "{field} holds {actual} entries for {step.entries_in_words}")
