"""Faults in the finish: that a choice ended, why, and when that is said."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from tokenwire_faults.answer_shape import choices_of, finish_of, holder_of_finish
from tokenwire_faults.catalogue import STREAMED, fault
from tokenwire_faults.fault import Fault, Json


@fault(
    "finish-twice",
    "X14",
    upstream=("sgl-project/sglang PR #8417", "sgl-project/sglang PR #25634"),
    shows_in=STREAMED,
)
class FinishTwice(Fault):
    """The event with the finish is sent twice."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [event] * (2 if finish_of(event) else 1)


@fault(
    "finish-lost",
    "X14",
    upstream=(
        "vllm-project/vllm issue #27572",
        "waybarrios/vllm-mlx issue #628",
        "sgl-project/sglang issue #4550",
    ),
    shows_in=STREAMED,
)
class FinishLost(Fault):
    """The last event of a choice has finish_reason: null."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            holder_of_finish(choice)["finish_reason"] = None
        return [event]


@fault(
    "finish-before-the-tail",
    "X14",
    upstream=("linagora/openrag PR #462",),
    shows_in=STREAMED,
)
class FinishBeforeTheTail(Fault):
    """The finish is announced with content, and the held-back tail follows it."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        tail = deepcopy(event)
        if not finish_of(event):
            return [event]
        for choice in choices_of(tail):
            holder_of_finish(choice)["finish_reason"] = None
            choice.get("delta", {})["content"] = "tail"
        return [event, tail]


class _SaysOtherwise(Fault):
    """Says another reason for some finishes."""

    def said(self, reason: str) -> str:
        """What is said in the place of a reason."""
        return reason

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            holder = holder_of_finish(choice)
            reason = holder.get("finish_reason")
            if isinstance(reason, dict):
                holder["finish_reason"] = {**reason, "type": self.said(reason["type"])}
            elif reason:
                holder["finish_reason"] = self.said(reason)
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "finish-always-stop",
    "X14",
    upstream=("BerriAI/litellm issue #25825", "huggingface/transformers PR #42157"),
)
class FinishAlwaysStop(_SaysOtherwise):
    """An answer that ran out of budget says that it stopped: a truncated one passes for a complete one."""

    def said(self, reason: str) -> str:
        return "stop" if reason == "length" else reason


@fault(
    "finish-always-length",
    "X14",
    upstream=("sgl-project/sglang issue #31599",),
)
class FinishAlwaysLength(_SaysOtherwise):
    """An answer that stopped says that its budget was spent."""

    def said(self, reason: str) -> str:
        return "length" if reason == "stop" else reason


@fault("finish-length-of-another", "X14", upstream=("sgl-project/sglang PR #7147",))
class FinishLengthOfAnother(Fault):
    """The finish tells a length that is not that of the choice."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            reason = holder_of_finish(choice).get("finish_reason")
            if isinstance(reason, dict) and reason.get("length"):
                reason["length"] += 1
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault("stop-not-named", "X14", upstream=("vllm-project/vllm PR #47313",))
class StopNotNamed(Fault):
    """A choice says that it was stopped, and not by which of the request's stops."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            reason = holder_of_finish(choice).get("finish_reason")
            if isinstance(reason, dict) and "matched" in reason:
                reason["matched"] = None
            choice.update({name: None for name in ("matched_stop", "stop_reason") if name in choice})
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "finish-type-unknown",
    "X14",
    upstream=("huggingface/text-generation-inference PR #2344",),
)
class FinishTypeUnknown(_SaysOtherwise):
    """The reason is 'eos_token', which clients do not know."""

    def said(self, reason: str) -> str:
        return "eos_token"


@fault(
    "finish-differs-in-streams",
    "X14",
    upstream=("Blaizzy/mlx-vlm PR #1215",),
    shows_in=STREAMED,
)
class FinishDiffersInStreams(_SaysOtherwise):
    """A stream says length where the whole answer says stop, and the reverse."""

    def said(self, reason: str) -> str:
        return {"stop": "length", "length": "stop"}[reason] if self.request.get("stream") else reason


@fault(
    "finish-empty-before-the-end",
    "X14",
    upstream=("ollama/ollama issue #4357",),
    shows_in=STREAMED,
)
class FinishEmptyBeforeTheEnd(Fault):
    """finish_reason is '' instead of null until the end."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            holder_of_finish(choice)["finish_reason"] = holder_of_finish(choice)["finish_reason"] or ""
        return [event]


@fault(
    "finish-for-the-last-choice-only",
    "X14",
    upstream=("sgl-project/sglang PR #8417",),
    shows_in=STREAMED,
)
class FinishForTheLastChoiceOnly(Fault):
    """With several samples only one of them has a finish reason."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            if choice.get("index", 0) == 0 and ("delta" in choice or "index" in choice):
                holder_of_finish(choice)["finish_reason"] = None
        return [event]
