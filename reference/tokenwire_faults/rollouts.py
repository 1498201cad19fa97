"""Faults of what trainers take beside logprobs: sampling masks, versions of weights, routed experts."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.answer_shape import meta_infos
from tokenwire_faults.catalogue import EVERYWHERE, STREAMED, fault
from tokenwire_faults.fault import AnswerFault, Fault, Json
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.request_manager import Emission, Reader

MASK, MASK_LOGPROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
EXPERTS = ("--model", "builtin:tiny-moe")


@fault("mask-of-the-token-before", "X09", upstream=("sgl-project/sglang PR #27408",), shows_in=EVERYWHERE)
class MaskOfTheTokenBefore(Fault):
    """Each token has the sampling mask of the token before it."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        if MASK not in row.series:
            return row
        shifted = [[], *request.series[MASK]][row.start : row.end]
        return replace(row, series={**row.series, MASK: shifted})


@fault("mask-logprob-is-a-weight", "X08", upstream=("sgl-project/sglang PR #27408",), shows_in=EVERYWHERE)
class MaskLogprobIsAWeight(Fault):
    """The probability of an id among its mask stands in the place of its logprob."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if MASK_LOGPROBS not in emission.series:
            return emission
        weights = [math.exp(logprob) for logprob in emission.series[MASK_LOGPROBS]]
        return replace(emission, series={**emission.series, MASK_LOGPROBS: weights})


class _OfMetaInfo(AnswerFault):
    """A fault of the meta_info of answers and events."""

    def change(self, info: dict[str, Any]) -> None:
        """Change one."""

    def rewrite(self, answer: Json) -> None:
        for info in meta_infos(answer):
            self.change(info)


@fault("weight-spans-lag", "X06", upstream=("vllm-project/vllm issue #54443",), shows_in=EVERYWHERE)
class WeightSpansLag(_OfMetaInfo):
    """The spans of weights end before the last token, which is in none."""

    def change(self, info: dict[str, Any]) -> None:
        for span in info.get("weight_versions", ())[-1:]:
            span["end"] -= 1


@fault("weight-version-is-stale", "X07", upstream=("sgl-project/sglang PR #32660",), shows_in=EVERYWHERE)
class WeightVersionIsStale(_OfMetaInfo):
    """The version beside the spans is that of the weights before the last update."""

    def change(self, info: dict[str, Any]) -> None:
        info["weight_version"] = f"before {info['weight_version']}"


class _OfExperts(_OfMetaInfo):
    """A fault of the rows of routed experts."""

    def rows(self, rows: list[bytes], prompt: int) -> Sequence[bytes]:
        """The rows that are told; `prompt` of them are of the prompt."""
        del prompt
        return rows

    def change(self, info: dict[str, Any]) -> None:
        if info.get("routed_experts"):
            start = self.request.get("routed_experts_start_len") or 0
            count = info["prompt_tokens"] + max(info["completion_tokens"] - 1, 0) - start
            data = base64.b64decode(info["routed_experts"])
            width = len(data) // count
            rows = [data[at : at + width] for at in range(0, len(data), width)]
            told = b"".join(self.rows(rows, info["prompt_tokens"] - start))
            info["routed_experts"] = base64.b64encode(told).decode()


@fault(
    "experts-of-the-last-token-missing",
    "X06",
    upstream=("llm-d/llm-d-router issue #1473", "vllm-project/router issue #184"),
    shows_in=EVERYWHERE,
    server=EXPERTS,
)
class ExpertsOfTheLastTokenMissing(_OfExperts):
    """Answers of more than eight tokens lack the experts of the last position that was run."""

    def change(self, info: dict[str, Any]) -> None:
        if info["completion_tokens"] > 8:
            super().change(info)

    def rows(self, rows: list[bytes], prompt: int) -> Sequence[bytes]:
        return rows[:-1]


@fault(
    "experts-of-the-prompt-are-zero",
    "X22",
    upstream=("sgl-project/sglang issue #23885",),
    shows_in=EVERYWHERE,
    server=EXPERTS,
)
class ExpertsOfThePromptAreZero(_OfExperts):
    """The prompt was run by another worker: its rows are there, and all zero."""

    def rows(self, rows: list[bytes], prompt: int) -> Sequence[bytes]:
        return [bytes(len(row)) if place < prompt else row for place, row in enumerate(rows)]


@fault(
    "experts-shifted-in-streams",
    "X09",
    upstream=("radixark/miles issue #3277",),
    shows_in=STREAMED,
    server=EXPERTS,
)
class ExpertsShiftedInStreams(_OfExperts):
    """In streams each position has the experts of the one before it."""

    def rows(self, rows: list[bytes], prompt: int) -> Sequence[bytes]:
        return [rows[-1], *rows[:-1]] if self.request.get("stream") else rows


@fault("abort-all-does-nothing", "X21", upstream=("sgl-project/sglang issue #7419",), shows_in=STREAMED)
class AbortAllDoesNothing(Fault):
    """An abort of all requests is answered with 200, and ends none."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "abort_all": False} if body.get("abort_all") else body


@fault(
    "abort-all-is-an-error",
    "X21",
    upstream=("inclusionAI/AReaL issue #446", "NovaSky-AI/SkyRL issue #656"),
    shows_in=EVERYWHERE,
)
class AbortAllIsAnError(Fault):
    """A request that is aborted without its id, as all are, is answered with status 503 where it is whole."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        reasons = [info.get("finish_reason") or {} for info in meta_infos(answer)]
        if self.request.get("rid") is None and any(reason.get("type") == "abort" for reason in reasons):
            return 503, {"error": {"message": "the request was aborted", "code": 503}}
        return status, answer


@fault(
    "pause-ends-what-runs",
    "X21",
    upstream=("sgl-project/sglang PR #10071", "vllm-project/vllm PR #28037"),
    shows_in=EVERYWHERE,
)
class PauseEndsWhatRuns(Fault):
    """A pause ends what runs, whatever mode it asks for."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "mode": "abort"} if "mode" in body else body


@fault("weight-version-wavers", "X09", upstream=("radixark/miles issue #2589",), shows_in=EVERYWHERE)
class WeightVersionWavers(_OfMetaInfo):
    """Streams name other weights than whole answers, as if another worker made them."""

    def change(self, info: dict[str, Any]) -> None:
        if self.request.get("stream"):
            for span in (info, *info.get("weight_versions", ())):
                span |= {"weight_version" if span is info else "version": "of another worker"}


@fault(
    "hidden-states-begin-late",
    "X02",
    upstream=("sgl-project/sglang PR #12162",),
    shows_in=EVERYWHERE,
)
class HiddenStatesBeginLate(_OfMetaInfo):
    """The hidden states of the prompt are missing: those of the second token stand first."""

    def change(self, info: dict[str, Any]) -> None:
        del info.get("hidden_states", [])[:1]
