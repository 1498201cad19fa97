"""Faults in coalescing: a reader wakes up late, several rows are waiting, and not all of them arrive."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.output_streamer import WHOLE_INTERVAL
from tokenwire_reference.core.request import OWN_SERIES, Request
from tokenwire_reference.doors.request_manager import Emission, Reader


class _KnowsRows(Fault):
    """Remembers where each row of a request began."""

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = defaultdict(list)

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        self._starts[request.rid].append(row.start)
        return row

    def last_row(self, reader: Reader, emission: Emission) -> int:
        """How many tokens the last row holds that an emission takes."""
        end = emission.completion_tokens
        return end - max(start for start in self._starts[reader.request.rid] if start <= max(end - 1, 0))


@fault(
    "coalescing-keeps-only-the-last",
    "X01",
    upstream=("sgl-project/sglang PR #19977", "vllm-project/vllm issue #30099"),
    shows_in=(INCREMENTAL,),
)
class CoalescingKeepsOnlyTheLast(_KnowsRows):
    """Of several waiting outputs only the last one's ids and logprobs are sent."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("stream") or not emission.output_ids:
            return emission
        kept = self.last_row(reader, emission)
        series = {name: values[-kept:] for name, values in emission.series.items()}
        return replace(emission, output_ids=emission.output_ids[-kept:], series=series)


@fault(
    "coalescing-loses-customized-info",
    "X01",
    upstream=("sgl-project/sglang PR #27205", "vllm-project/vllm PR #37094"),
    shows_in=(INCREMENTAL,),
)
class CoalescingLosesCustomizedInfo(_KnowsRows):
    """Ids and logprobs of waiting outputs are joined, their customized_info is overwritten by the last."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("stream") or not emission.output_ids:
            return emission
        kept = self.last_row(reader, emission)
        last = {name: emission.series[name][-kept:] for name in emission.series.keys() - OWN_SERIES}
        return replace(emission, series={**emission.series, **last})


@fault(
    "coalescing-keeps-the-first-counter",
    "X01",
    upstream=("vllm-project/vllm PR #12298",),
    shows_in=STREAMED,
)
class CoalescingKeepsTheFirstCounter(_KnowsRows):
    """Joined outputs carry completion_tokens of the first of them."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        starts, end = self._starts[reader.request.rid], emission.completion_tokens
        later = [start for start in starts if reader.taken_ids < start < end]
        first = min(later, default=emission.completion_tokens)
        return replace(emission, completion_tokens=first) if self.request.get("stream") else emission


@fault(
    "coalescing-loses-text",
    "X01",
    upstream=("vllm-project/vllm issue #30099", "vllm-project/vllm issue #23335"),
    shows_in=(INCREMENTAL,),
)
class CoalescingLosesText(_KnowsRows):
    """Of several waiting pieces of text the first is lost."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        joined = emission.completion_tokens - reader.taken_ids > self.last_row(reader, emission)
        return (
            replace(emission, text=emission.text[1:]) if joined and self.request.get("stream") else emission
        )


@fault(
    "whole-keeps-only-the-last-piece",
    "X01",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=(WHOLE,),
)
class WholeKeepsOnlyTheLastPiece(Fault):
    """A long whole answer holds only the last of the pieces that it was collected from."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        start = max(0, emission.completion_tokens - 1) // WHOLE_INTERVAL * WHOLE_INTERVAL
        if self.request.get("stream"):
            return emission
        series = {name: values[start:] for name, values in emission.series.items()}
        return replace(emission, output_ids=emission.output_ids[start:], series=series)
