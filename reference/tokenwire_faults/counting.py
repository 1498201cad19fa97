"""Faults in counters, usage and request ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.answer_shape import meta_infos
from tokenwire_faults.catalogue import STREAMED, fault
from tokenwire_faults.fault import Fault, Json
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.request_manager import Emission, Reader


@fault(
    "counter-of-the-event",
    "X17",
    upstream=("vllm-project/vllm PR #9357",),
    shows_in=STREAMED,
)
class CounterOfTheEvent(Fault):
    """completion_tokens counts the tokens of an event, not those so far."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("stream"):
            return emission
        return replace(emission, completion_tokens=emission.completion_tokens - reader.taken_ids)


@fault(
    "counter-stands-still",
    "X17",
    upstream=("sgl-project/sglang issue #215",),
    shows_in=STREAMED,
)
class CounterStandsStill(Fault):
    """completion_tokens stays 1 for the whole stream."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
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
    "cached-details-of-nothing",
    "X17",
    upstream=("sgl-project/sglang PR #25634",),
)
class CachedDetailsOfNothing(Fault):
    """Where nothing was cached, the details are counts of 0 in place of null."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return row if row.cached_tokens else replace(row, cached_tokens_details={"device": 0, "host": 0})


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


@fault("one-request-id-for-all", "X20", upstream=("sgl-project/sglang PR #4026",))
class OneRequestIdForAll(Fault):
    """Every answer has the same id, where the client chose none."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if self.request.get("rid") or self.request.get("request_id"):
            return status, answer
        if isinstance(answer, dict):
            answer.update({name: "chatcmpl-1" for name in ("id", "request_id") if name in answer})
        for position, info in enumerate(meta_infos(answer)):
            info["id"] = f"request-{position}"
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault("cached-tokens-untold-in-whole-answers", "X17", upstream=("jundot/omlx issue #919",))
class CachedTokensUntoldInWholeAnswers(Fault):
    """cached_tokens is 0 in every whole answer, whatever was cached."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if self.request.get("stream"):
            return emission
        record = replace(
            emission.record, cached_tokens_device=0, cached_tokens_host=0, cached_tokens_storage=0
        )
        return replace(emission, record=record)


def _wants_usage(fault: Fault) -> bool:
    """Whether a request asks for a stream with usage."""
    return bool(fault.request.get("stream") and fault.request.get("stream_options"))


@fault(
    "usage-unasked",
    "X17",
    upstream=("vllm-project/vllm PR #36379",),
    shows_in=STREAMED,
)
class UsageUnasked(Fault):
    """Every chat stream ends with usage, asked or not."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if not (body.get("stream") and ("messages" in body or "prompt" in body)):
            return body
        return {**body, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}


@fault(
    "usage-in-every-event",
    "X17",
    upstream=("vllm-project/vllm issue #7262",),
    shows_in=STREAMED,
)
class UsageInEveryEvent(Fault):
    """A stream that was asked for usage at its end has it in every event."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if not _wants_usage(self):
            return body
        return {**body, "stream_options": {**body["stream_options"], "continuous_usage_stats": True}}


@fault(
    "usage-lost-in-streams",
    "X17",
    upstream=("BerriAI/litellm issue #16129",),
    shows_in=STREAMED,
)
class UsageLostInStreams(Fault):
    """stream_options is not passed on: no stream has usage."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name != "stream_options"}


@fault(
    "continuous-usage-of-the-event",
    "X17",
    upstream=("vllm-project/vllm PR #9357",),
    shows_in=STREAMED,
)
class ContinuousUsageOfTheEvent(Fault):
    """Usage on the way counts the tokens of its own event: it is always 1."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if event.get("usage") and event.get("choices"):
            event["usage"]["completion_tokens"] = 1
            event["usage"]["total_tokens"] = event["usage"]["prompt_tokens"] + 1
        return [event]


@fault(
    "reasoning-exceeds-the-output",
    "X17",
    upstream=("sgl-project/sglang PR #15562",),
)
class ReasoningExceedsTheOutput(Fault):
    """reasoning_tokens counts the prompt's as well: more than the output has."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        usages = [answer["usage"]] if isinstance(answer, dict) and answer.get("usage") else []
        for counts in (*usages, *meta_infos(answer)):
            if "reasoning_tokens" in counts:
                counts["reasoning_tokens"] = counts["completion_tokens"] + counts["prompt_tokens"]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "stream-usage-counts-prefill-twice",
    "X17",
    upstream=("vllm-project/vllm issue #25780",),
    shows_in=STREAMED,
)
class StreamUsageCountsPrefillTwice(Fault):
    """The usage of a stream counts the first token with the prompt, and again with the output."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if usage := event.get("usage"):
            usage["prompt_tokens"] += 1
            usage["total_tokens"] += 1
        return [event]
