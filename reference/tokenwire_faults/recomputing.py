"""Faults of what is not computed anew: cached prefixes, and requests that were preempted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenwire_faults.catalogue import fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.doors.request_manager import Emission, Reader


def _off_by_one(ids: Sequence[int], start: int) -> list[int]:
    """Ids as of a model that sees its tokens at shifted positions: none is right."""
    return [token ^ (1 + (start + position) % 2) for position, token in enumerate(ids)]


@fault("cached-prefix-misread", "X28", upstream=("sgl-project/sglang PR #29633",))
class CachedPrefixMisread(Fault):
    """A request whose prompt comes from the cache is computed at wrong positions."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not emission.record.cached_tokens:
            return emission
        start = emission.completion_tokens - len(emission.output_ids)
        return replace(emission, output_ids=_off_by_one(emission.output_ids, start))


@fault(
    "preempted-request-starts-again",
    "X22",
    upstream=("sgl-project/sglang PR #11673",),
    server=("--test-retract-interval=3",),
)
class PreemptedRequestStartsAgain(Fault):
    """After a preemption a request gives its first ids again, in the place of those that come next."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not emission.record.num_retractions:
            return emission
        again = reader.request.output_ids[: len(emission.output_ids) // 2]
        return replace(emission, output_ids=[*emission.output_ids[: -len(again) or None], *again])
