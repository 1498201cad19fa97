"""Faults in aborting: what an abort ends, what it gives back, and who notices that a client has left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tokenwire_reference.faults.catalogue import INCREMENTAL, fault
from tokenwire_reference.faults.fault import Fault
from tokenwire_reference.request_manager import Emission, Record

NOT_ASKED = "no requirement speaks of aborts yet, and no scenario sends one"


def _aborted(emission: Emission) -> bool:
    return emission.finish is not None and emission.finish.type == "abort"


@fault(
    "abort-by-prefix",
    "X20",
    upstream=("sgl-project/sglang PR #25561", "sgl-project/sglang PR #28341"),
    unseen=NOT_ASKED,
)
class AbortByPrefix(Fault):
    """Aborting 'a' also aborts 'a1' and every other id that begins so; '' aborts everything."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        return [name for name in live if name.startswith(rid)]


@fault(
    "abort-does-nothing",
    "X20",
    upstream=("sgl-project/sglang issue #21173",),
    unseen=NOT_ASKED,
)
class AbortDoesNothing(Fault):
    """The abort is answered with 200 and reaches nobody."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        return []


@fault(
    "abort-repeats-the-text",
    "X21",
    upstream=("sgl-project/sglang issue #40901",),
    shows_in=(INCREMENTAL,),
    unseen=NOT_ASKED,
)
class AbortRepeatsTheText(Fault):
    """The event of an abort carries the whole text again."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        return replace(emission, text=record.text) if _aborted(emission) else emission


@fault(
    "abort-keeps-one-id",
    "X21",
    upstream=("sgl-project/sglang PR #34488",),
    unseen=NOT_ASKED,
)
class AbortKeepsOneId(Fault):
    """The answer of an aborted request has its last id only."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        return replace(emission, output_ids=emission.output_ids[-1:]) if _aborted(emission) else emission


@fault(
    "abort-loses-the-output",
    "X21",
    upstream=("sgl-project/sglang PR #11673",),
    unseen=NOT_ASKED,
)
class AbortLosesTheOutput(Fault):
    """An aborted request is answered with nothing, though tokens had been made."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        if not _aborted(emission):
            return emission
        nothing = {name: values[:0] for name, values in emission.series.items()}
        return replace(emission, output_ids=[], text="", series=nothing, completion_tokens=0)


@fault(
    "client-leaves-unnoticed",
    "X21",
    upstream=("sgl-project/sglang issue #37833", "ROCm/ATOM PR #1562", "sgl-project/sglang PR #40605"),
    unseen="no requirement says what becomes of a request whose client has left",
)
class ClientLeavesUnnoticed(Fault):
    """A request whose client has left runs to its end and keeps its place."""

    def leaving(self) -> bool:
        return False
