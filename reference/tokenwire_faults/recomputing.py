"""Faults of reused state: the output of a cached prefix or of a preempted request is wrong, because state is
not recomputed.
"""

from __future__ import annotations

from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_reference.doors.reader import Emission, Reader


@act_at("taken")
def _cached_prefix_misread(emission: Emission) -> Emission:
    if not emission.record.cached_tokens:
        return emission
    start = emission.completion_tokens - len(emission.output_ids)
    # Like a model with shifted positions, this changes every id.
    ids = [token ^ (1 + position % 2) for position, token in enumerate(emission.output_ids, start)]
    return replace(emission, output_ids=ids)


@act_at("taken")
def _preempted_request_starts_again(reader: Reader, emission: Emission) -> Emission:
    if not emission.record.num_retractions:
        return emission
    again = reader.request.output_ids[: len(emission.output_ids) // 2]
    return replace(emission, output_ids=[*emission.output_ids[: -len(again) or None], *again])
