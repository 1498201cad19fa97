"""Per-token series in lockstep with the output ids: one entry for each id, in every emission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from tokenwire.checks.check import Look, Observation, demand
from tokenwire.checks.walk import Step, Walked, as_list
from tokenwire.record import Column, Delivery
from tokenwire.wire.json_pointer import ABSENT


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


def lockstep(own: Walked, names: Iterable[str], only: int | None = None) -> Iterator[Look]:
    """Look at some series of a choice, in all of its emissions or in one.

    A series that a choice carries anywhere is expected wherever there are ids; where there are none it may
    be left out.
    """
    for name in names:
        column, due = own.columns.series.get(name), own.due
        look = partial(_look_at_length, own=own, name=name)
        if only is None and column is not None and own.counted is None and _as_long_as(column, due):
            yield own.look(own.at, None, look)
            continue
        values = own.where([ABSENT] * len(due) if column is None else column)
        told = dict(zip(values.at, values.values, strict=True))
        every = own.at if only is None else [only]
        at = [
            one
            for one in every
            if (own.counted is None or own.counted[one]) and (one in told or due[one] > 0)
        ]
        as_due = [type(told.get(one)) is list and len(told[one]) == due[one] for one in at]
        yield own.look(at, as_due, look)


def _as_long_as(column: Column, due: Sequence[int]) -> bool:
    return set(map(type, column)) == {list} and list(map(len, column)) == due


def _look_at_length(at: int, own: Walked, name: str) -> Observation:
    step = own.step(at)
    return observe_length(step, name, step.emission.series.get(name))
