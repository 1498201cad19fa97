"""Per-token series in lockstep with the output ids: one entry for each id, in every emission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenwire.checks.check import Observation, demand, look_at_each
from tokenwire.checks.walk import Step, as_list
from tokenwire.record import Delivery


def _said(step: Step, count: int) -> str:
    ids = "output id" if count == 1 else "output ids"
    where = {Delivery.WHOLE: "of the answer", Delivery.INCREMENTAL: "of this event"}
    return f"{count} {ids} {where.get(step.delivery, 'delivered so far')}"


def observe_length(step: Step, name: str, value: object) -> Observation:
    """Look whether a series of an emission holds as many entries as it must."""
    place, count = step.emission.at(name), step.expected_entries
    entries = as_list(value)
    if entries is None:
        kind = "is missing" if value is None else f"is a {type(value).__name__}, not a list,"
        return demand(
            place, False, expected=count, actual=value, message=f"{name} {kind} for {_said(step, count)}"
        )
    message = f"{name} holds {len(entries)} entries for {_said(step, count)}"
    return demand(place, len(entries) == count, expected=count, actual=len(entries), message=message)


def lockstep(steps: Iterable[tuple[Step, Iterable[str]]]) -> Iterator[Observation]:
    """Look at some series of some steps, each with the names of its own.

    A series that a choice carries anywhere is expected wherever there are ids; where there are none it may
    be left out.
    """
    told = [
        (step, name, value, due)
        for step, names in steps
        if step.counted
        for due in (step.expected_entries,)
        for name in names
        if (value := step.emission.series.get(name)) is not None or due > 0
    ]
    as_due = (type(value) is list and len(value) == due for *_, value, due in told)
    yield from look_at_each(told, as_due, lambda one: observe_length(*one[:3]))
