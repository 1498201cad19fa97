"""Faults in customized_info: what a sampler said of a token, on its way to the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.catalogue import EVERYWHERE, STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.output_streamer import WHOLE_INTERVAL
from tokenwire_reference.core.request import OWN_SERIES, Request
from tokenwire_reference.doors.request_manager import Emission, Reader

Values = Sequence[Any]


def _with_info(emission: Emission, change: Callable[[Values], Values]) -> Emission:
    """An emission with each of its customized series changed."""
    changed = {name: change(emission.series[name]) for name in emission.series.keys() - OWN_SERIES}
    return replace(emission, series={**emission.series, **changed})


def _row_with_info(row: OutputRow, change: Callable[[str, Values], Values]) -> OutputRow:
    """A row with each of its customized series changed."""
    changed = {name: change(name, row.series[name]) for name in row.customized_info_keys}
    return replace(row, series={**row.series, **changed})


@fault(
    "customized-info-last-piece-only",
    "X06",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=(WHOLE,),
)
class CustomizedInfoLastPieceOnly(Fault):
    """A whole answer has all ids and logprobs, and customized_info of its last accumulated piece only."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        start = max(0, emission.completion_tokens - 1) // WHOLE_INTERVAL * WHOLE_INTERVAL
        return emission if self.request.get("stream") else _with_info(emission, lambda values: values[start:])


@fault(
    "customized-info-last-value-only",
    "X06",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=(WHOLE,),
)
class CustomizedInfoLastValueOnly(Fault):
    """A whole answer has the last token's customized_info and no other."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return emission if self.request.get("stream") else _with_info(emission, lambda values: values[-1:])


@fault(
    "customized-info-shifted",
    "X09",
    upstream=("sgl-project/sglang PR #27205",),
)
class CustomizedInfoShifted(Fault):
    """Each token has the value of the token before it."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with_info(row, lambda name, _: [None, *request.series[name]][row.start : row.end])


@fault(
    "customized-info-of-a-neighbour",
    "X09",
    upstream=("sgl-project/sglang PR #27205", "sgl-project/sglang PR #28496"),
)
class CustomizedInfoOfANeighbour(Fault):
    """In a mixed batch the rows of all requests are given out as if they began at the first request's."""

    first: Request | None = None

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        first = self.first = self.first or request

        def of_first(name: str, own: Values) -> Values:
            others = first.series[name][row.start : row.end]
            return [*others, *own[len(others) :]]

        return _row_with_info(row, of_first)


@fault(
    "customized-info-read-at-delivery",
    "X22",
    upstream=("radixark/miles issue #3277", "sgl-project/sglang PR #29842"),
    shows_in=EVERYWHERE,
)
class CustomizedInfoReadAtDelivery(Fault):
    """Values are looked up when a row is sent: all its tokens have what is true of the newest."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with_info(row, lambda _, values: [values[-1]] * len(values) if values else values)


@fault(
    "customized-info-of-no-token",
    "X09",
    upstream=("sgl-project/sglang PR #27205", "sgl-project/sglang PR #29842"),
)
class CustomizedInfoOfNoToken(Fault):
    """A key of a neighbour stands in every answer, with null for each token."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        series = {**emission.series, "of_a_neighbour": [None] * len(emission.output_ids)}
        return replace(emission, series=series)


@fault(
    "late-key-unpadded",
    "X06",
    upstream=("sgl-project/sglang PR #27205",),
)
class LateKeyUnpadded(Fault):
    """A key that the sampler first writes at the third token has no nulls for the tokens before it."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        missing = max(0, min(2, row.end) - row.start)
        return _row_with_info(row, lambda _, values: [None] * missing + list(values)[missing:])

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return _with_info(emission, lambda values: [value for value in values if value is not None])


@fault(
    "late-key-lost",
    "X01",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=STREAMED,
)
class LateKeyLost(Fault):
    """Joining takes the keys of the first output: one that comes later is dropped from the event on."""

    def event(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        for name in ("mirror_token_id", "mirror_position"):
            if event.get("meta_info", {}).get("completion_tokens", 0) > 4:
                event["meta_info"].pop(name, None)
        return [event]
