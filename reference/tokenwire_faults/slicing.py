"""Faults in slicing: an emission has a wrong range of ids, text or series."""

from __future__ import annotations

from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.fault import Fault
from tokenwire_reference.doors.reader import Emission, Reader


@act_at("taken")
def _one_cursor_for_all_choices(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    start, end = fault.memory.get("cursor", 0), emission.completion_tokens
    fault.memory["cursor"] = end
    return replace(emission, output_ids=reader.request.output_ids[start:end])
