"""Faults in aborting: what an abort ends, what it gives back, and who notices that a client has left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tokenwire_reference.delivery.request_manager import Emission, Record
from tokenwire_reference.faults.catalogue import INCREMENTAL, fault
from tokenwire_reference.faults.fault import Fault


def _aborted(emission: Emission) -> bool:
    return emission.finish is not None and emission.finish.type == "abort"


@fault(
    "abort-by-prefix",
    "X20",
    upstream=("sgl-project/sglang PR #25561", "sgl-project/sglang PR #28341"),
)
class AbortByPrefix(Fault):
    """Aborting 'a' also aborts 'a1' and every other id that begins so; '' aborts everything."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        return [name for name in live if name.startswith(rid)]


@fault(
    "abort-does-nothing",
    "X20",
    upstream=("sgl-project/sglang issue #21173",),
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
)
class AbortRepeatsTheText(Fault):
    """The event of an abort carries the whole text again."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        return replace(emission, text=record.text) if _aborted(emission) else emission


@fault(
    "abort-keeps-one-id",
    "X21",
    upstream=("sgl-project/sglang PR #34488",),
)
class AbortKeepsOneId(Fault):
    """The answer of an aborted request has its last id only."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        return replace(emission, output_ids=emission.output_ids[-1:]) if _aborted(emission) else emission


@fault(
    "abort-loses-the-output",
    "X21",
    upstream=("sgl-project/sglang PR #11673",),
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
)
class ClientLeavesUnnoticed(Fault):
    """A request whose client has left runs to its end and keeps its place."""

    def leaving(self) -> bool:
        return False


@fault("abort-says-stop", "X14", upstream=("vllm-project/vllm PR #47933",))
class AbortSaysStop(Fault):
    """An aborted request finishes as if the model had come to its end."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        if emission.finish is None or not _aborted(emission):
            return emission
        return replace(emission, finish=replace(emission.finish, type="stop"))


@fault("abort-of-nobody-fails", "X20", upstream=("sgl-project/sglang PR #28341",))
class AbortOfNobodyFails(Fault):
    """An abort of an id that no live request has raises, and is answered with 500."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        if not any(name in live for name in names):
            raise KeyError(rid)
        return names


@fault("id-in-use-ends-the-first", "X20", upstream=("sgl-project/sglang PR #19035",))
class IdInUseEndsTheFirst(Fault):
    """A request under an id that is in use is refused, and the one that has the id is aborted as well."""

    def colliding(self, rid: str) -> bool:
        return True
