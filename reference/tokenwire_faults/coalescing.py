"""Faults in coalescing: when several rows wait for a slow reader, some of these rows are lost."""

from __future__ import annotations

from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.deliveries import OutputRow, info_keys, with_series
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.reader import Emission, Reader


@act_at(
    "row",
    "coalescing-keeps-only-the-last",
    "coalescing-loses-customized-info",
    "coalescing-keeps-the-first-counter",
    "coalescing-loses-text",
)
def _remember_its_start(fault: Fault, request: Request, row: OutputRow) -> OutputRow:
    fault.memory.setdefault(request.rid, []).append(row.start)
    return row


def _last_row(fault: Fault, reader: Reader, emission: Emission) -> int:
    """Return the number of tokens in the last row of an emission."""
    end, starts = emission.completion_tokens, fault.memory[reader.request.rid]
    last: int = max(start for start in starts if start <= max(end - 1, 0))
    return end - last


@act_at("taken")
def _coalescing_keeps_only_the_last(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    if not emission.output_ids:
        return emission
    kept = _last_row(fault, reader, emission)
    series = {name: values[-kept:] for name, values in emission.series.items()}
    return replace(emission, output_ids=emission.output_ids[-kept:], series=series)


@act_at("taken")
def _coalescing_loses_customized_info(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    if not emission.output_ids:
        return emission
    kept = _last_row(fault, reader, emission)
    last = {name: emission.series[name][-kept:] for name in info_keys(emission)}
    return with_series(emission, **last)


@act_at("taken")
def _coalescing_keeps_the_first_counter(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    end = emission.completion_tokens
    later = [start for start in fault.memory[reader.request.rid] if reader.taken_ids < start < end]
    return replace(emission, completion_tokens=min(later, default=end))


@act_at("taken")
def _coalescing_loses_text(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    joined = emission.completion_tokens - reader.taken_ids > _last_row(fault, reader, emission)
    return replace(emission, text=emission.text[1:]) if joined else emission
