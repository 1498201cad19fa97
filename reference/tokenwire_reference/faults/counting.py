"""Faults in counters, usage and request ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tokenwire_reference.faults.answer_shape import meta_infos
from tokenwire_reference.faults.catalogue import STREAMED, fault
from tokenwire_reference.faults.fault import Fault, Json
from tokenwire_reference.request import OutputRow, Request
from tokenwire_reference.request_manager import Emission, Record


@fault(
    "counter-of-the-event",
    "X17",
    upstream=("vllm-project/vllm PR #9357",),
    shows_in=STREAMED,
)
class CounterOfTheEvent(Fault):
    """completion_tokens counts the tokens of an event, not those so far."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        if not self.request.get("stream"):
            return emission
        return replace(emission, completion_tokens=emission.completion_tokens - record.taken_ids)


@fault(
    "counter-stands-still",
    "X17",
    upstream=("sgl-project/sglang issue #215",),
    shows_in=STREAMED,
)
class CounterStandsStill(Fault):
    """completion_tokens stays 1 for the whole stream."""

    def taken(self, record: Record, emission: Emission) -> Emission:
        return replace(emission, completion_tokens=1) if self.request.get("stream") else emission


@fault(
    "prompt-tokens-grow",
    "X22",
    upstream=("vllm-project/vllm issue #25780",),
    shows_in=STREAMED,
)
class PromptTokensGrow(Fault):
    """A request that is prefilled again counts its own output as prompt."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            info["prompt_tokens"] += info["completion_tokens"] - 1
        return [event]


@fault(
    "cached-tokens-counted-twice",
    "X17",
    upstream=("sgl-project/sglang PR #11900",),
)
class CachedTokensCountedTwice(Fault):
    """cached_tokens is added up again with each prefill: more than the prompt has."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return replace(row, cached_tokens=row.cached_tokens + row.prompt_tokens + 1)


@fault(
    "cached-details-doubled",
    "X17",
    upstream=("sgl-project/sglang PR #25634",),
)
class CachedDetailsDoubled(Fault):
    """A cached token counts for the device and for the host."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        if not row.cached_tokens:
            return row
        return replace(row, cached_tokens_details={"device": row.cached_tokens, "host": row.cached_tokens})


@fault(
    "usage-total-without-prompt",
    "X17",
    upstream=("sgl-project/sglang issue #10012",),
)
class UsageTotalWithoutPrompt(Fault):
    """total_tokens leaves the prompt out."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if isinstance(answer, dict) and answer.get("usage"):
            answer["usage"]["total_tokens"] = answer["usage"]["completion_tokens"]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "usage-of-one-choice",
    "X17",
    upstream=("vllm-project/vllm issue #8625",),
)
class UsageOfOneChoice(Fault):
    """The usage of several samples counts one of them."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if isinstance(answer, dict) and (usage := answer.get("usage")):
            usage["completion_tokens"] //= max(1, len(answer["choices"]), self.request.get("n") or 1)
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        return status, answer


@fault(
    "request-id-for-each-event",
    "X16",
    upstream=("sgl-project/sglang issue #215",),
    shows_in=STREAMED,
)
class RequestIdForEachEvent(Fault):
    """Every event has a request id of its own."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            info["id"] = uuid.uuid4().hex
        return [{**event, "id": uuid.uuid4().hex} if "choices" in event else event]


@fault(
    "request-id-replaced",
    "X20",
    upstream=("sgl-project/sglang PR #4026",),
)
class RequestIdReplaced(Fault):
    """The request id that the client chose is not used."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "rid": uuid.uuid4().hex} if body.get("rid") else body
