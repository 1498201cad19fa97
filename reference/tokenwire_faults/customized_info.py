"""Faults in customized_info: a sampler's values on their way to the client."""

from __future__ import annotations

from tokenwire_faults.acts import act_at
from tokenwire_faults.deliveries import OutputRow, info_keys, with_series
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.reader import Emission


@act_at("row")
def _customized_info_shifted(request: Request, row: OutputRow) -> OutputRow:
    shifted = {name: [None, *request.series[name]][row.start : row.end] for name in info_keys(row)}
    return with_series(row, **shifted)


@act_at("row")
def _customized_info_of_a_neighbour(fault: Fault, request: Request, row: OutputRow) -> OutputRow:
    first: Request = fault.memory.setdefault("first", request)
    changed = {}
    for name in info_keys(row):
        others = first.series[name][row.start : row.end]
        changed[name] = [*others, *row.series[name][len(others) :]]
    return with_series(row, **changed)


@act_at("taken")
def _customized_info_of_no_token(emission: Emission) -> Emission:
    return with_series(emission, of_a_neighbour=[None] * len(emission.output_ids))


@act_at("row", "late-key-unpadded")
def _begin_at_the_third_token(row: OutputRow) -> OutputRow:
    missing = max(0, min(2, row.end) - row.start)
    late = {name: [None] * missing + list(row.series[name])[missing:] for name in info_keys(row)}
    return with_series(row, **late)


@act_at("taken", "late-key-unpadded")
def _drop_nulls(emission: Emission) -> Emission:
    unpadded = {
        name: [value for value in emission.series[name] if value is not None] for name in info_keys(emission)
    }
    return with_series(emission, **unpadded)
