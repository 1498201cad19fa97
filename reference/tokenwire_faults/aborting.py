"""Faults in aborting: what an abort ends, what it gives back, and who notices that a client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.answer_shape import finish_of, meta_infos
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, fault
from tokenwire_faults.fault import Fault, Json
from tokenwire_reference.doors.request_manager import Emission, Reader


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
    """The abort is answered with 200 and reaches no request."""

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

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, text=reader.text) if _aborted(emission) else emission


@fault(
    "abort-keeps-one-id",
    "X21",
    upstream=("sgl-project/sglang PR #34488",),
)
class AbortKeepsOneId(Fault):
    """The answer of an aborted request has its last id only."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, output_ids=emission.output_ids[-1:]) if _aborted(emission) else emission


@fault(
    "abort-loses-the-output",
    "X21",
    upstream=("sgl-project/sglang PR #11673",),
)
class AbortLosesTheOutput(Fault):
    """An aborted request is answered with nothing, though tokens had been made."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
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

    def taken(self, reader: Reader, emission: Emission) -> Emission:
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

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        abort(rid)


_LATER_S = 0.25
"""Real servers wait for some seconds; a model that makes a thousand tokens in one has no such patience."""
_AGAIN_S = (_LATER_S, 0.5, 1.0, 2.0, 4.0)
"""On a busy machine the id comes again later, and its request lasts longer."""


@fault("id-in-use-ends-the-first-later", "X20", upstream=("sgl-project/sglang PR #6184",))
class IdInUseEndsTheFirstLater(Fault):
    """The clearing up after a request that was refused for an id in use ends what has the id by then."""

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        asyncio.get_running_loop().call_later(_LATER_S, abort, rid)


@fault("id-used-again-is-aborted", "X20", upstream=("sgl-project/sglang PR #6184",), shows_in=STREAMED)
class IdUsedAgainIsAborted(Fault):
    """The clearing up after a stream that has ended aborts the request that has its id by then."""

    def ended(self, rid: str, abort: Callable[[str], None]) -> None:
        for seconds in _AGAIN_S:
            asyncio.get_running_loop().call_later(seconds, abort, rid)


@fault("abort-is-an-error", "X21", upstream=("sgl-project/sglang PR #11673",))
class AbortIsAnError(Fault):
    """An aborted request ends in the error 499, and what was made of it is lost."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        return (499, _LEFT) if _says_aborted(answer) else (status, answer)

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [_LEFT if _says_aborted(event) else event]


_LEFT = {"error": {"message": "client disconnected", "code": 499}}


def _says_aborted(answer: Json) -> bool:
    finish = finish_of(answer)
    return (finish.get("type") if isinstance(finish, dict) else finish) == "abort"


@fault("abort-by-the-clients-id-misses-the-samples", "X20", upstream=("ai-dynamo/dynamo PR #14781",))
class AbortByTheClientsIdMissesTheSamples(Fault):
    """Samples and prompts of a batch have ids of their own, and an abort by the request's id misses them."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        return [] if len(names) > 1 else names


@fault("abort-by-the-clients-id-does-nothing", "X20", upstream=("ai-dynamo/dynamo PR #14781",))
class AbortByTheClientsIdDoesNothing(Fault):
    """A server that calls requests by longer ids than their clients did knows them by these alone."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        said = self.request.get("request_ids")
        return names if said is None or rid in said else []


@fault("abort-of-a-sample-ends-its-siblings", "X20", upstream=("sgl-project/sglang PR #28341",))
class AbortOfASampleEndsItsSiblings(Fault):
    """An abort of one of several samples ends them all."""

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        stem, mark, _ = rid.rpartition("_")
        return [name for name in live if mark and name.startswith(stem + mark)] or names


@fault(
    "abort-in-the-queue-has-no-choice",
    "X21",
    upstream=("vllm-project/vllm PR #47933",),
    shows_in=STREAMED,
)
class AbortInTheQueueHasNoChoice(Fault):
    """A stream that is aborted while it waits ends without an event for its choice."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        waited = not any(info.get("completion_tokens") for info in meta_infos(event))
        return [] if _says_aborted(event) and waited else [event]


@fault("abort-in-the-queue-counts-nothing", "X21", upstream=("sgl-project/sglang PR #19514",))
class AbortInTheQueueCountsNothing(Fault):
    """A request that is aborted while it waits is answered without the counts of its prompt."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if _says_aborted(answer):
            for info in meta_infos(answer):
                if not info.get("completion_tokens"):
                    del info["prompt_tokens"]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]
