"""Per-token series in lockstep with the output ids: one entry for each id, in every emission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenwire.checks.check import Observation
from tokenwire.checks.walk import Step, as_list
from tokenwire.record import Delivery


def _counted_ids(step: Step, count: int) -> str:
    ids = "output id" if count == 1 else "output ids"
    where = {Delivery.WHOLE: "of the answer", Delivery.INCREMENTAL: "of this event"}
    return f"{count} {ids} {where.get(step.delivery, 'delivered so far')}"


def observe_length(step: Step, name: str, value: object) -> Observation:
    """Observe whether a series of an emission holds as many entries as it must."""
    count, entries = step.expected_entries, as_list(value)
    if entries is None:
        kind = "is missing" if value is None else f"is a {type(value).__name__}, not a list,"
        message = f"{name} {kind} for {_counted_ids(step, count)}"
        return step.expect(name, count, value, message, holds=False)
    message = f"{name} holds {len(entries)} entries for {_counted_ids(step, count)}"
    return step.expect(name, count, len(entries), message, holds=len(entries) == count)


def lockstep(step: Step, names: Iterable[str]) -> Iterator[Observation]:
    """Observe some series of an emission.

    A series that a choice carries anywhere is expected wherever there are ids; where there are none it may
    be left out.
    """
    for name in names if step.counted else ():
        value = step.emission.series.get(name)
        if value is not None or step.expected_entries > 0:
            yield observe_length(step, name, value)
