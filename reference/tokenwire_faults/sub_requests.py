"""Faults in sub-requests: the samples and prompts of one HTTP request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from tokenwire_faults.answer_shape import choices_of, finish_of, meta_infos
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, WHOLE, fault
from tokenwire_faults.fault import AnswerFault, Fault, Json
from tokenwire_reference.doors.request_manager import Emission, Reader


@fault(
    "last-choice-missing",
    "X19",
    upstream=("sgl-project/sglang PR #11311", "vllm-project/vllm PR #16863"),
)
class LastChoiceMissing(Fault):
    """One choice of several never comes."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        choices = choices_of(answer)
        if len(choices) > 1:
            choices.pop()
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [] if any(choice.get("index", 0) > 0 for choice in choices_of(event)) else [event]


@fault(
    "index-always-zero",
    "X19",
    upstream=("ai-dynamo/dynamo PR #8745",),
    shows_in=STREAMED,
)
class IndexAlwaysZero(Fault):
    """The events of all choices have index 0."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            if choice.get("index"):
                choice["index"] = 0
        return [event]


@fault(
    "flag-lost-in-samples",
    "X19",
    upstream=("sgl-project/sglang issue #30556", "sgl-project/sglang PR #31067"),
)
class FlagLostInSamples(AnswerFault):
    """Requests made for the second sample on are built without one of the flags: here return_logprob."""

    def rewrite(self, answer: Json) -> None:
        for position, choice in enumerate(choices_of(answer)):
            info = choice.get("meta_info") or {}
            if choice.get("index", position):
                info.pop("output_token_logprobs", None)
                info.pop("output_token_logprobs_length", None)


@fault(
    "samples-lose-their-retractions",
    "X19",
    upstream=("sgl-project/sglang issue #30556", "sgl-project/sglang PR #31067"),
)
class SamplesLoseTheirRetractions(AnswerFault):
    """Requests made for samples and the prompts of a batch are built without the count of retractions."""

    def rewrite(self, answer: Json) -> None:
        several = self.request.get("sampling_params") or {}
        n = several.get("n", 1) if isinstance(several, dict) else 1
        batch = isinstance(answer, list)
        for info in meta_infos(answer) if batch or n > 1 else ():
            info.pop("num_retractions", None)


@fault("batch-padded", "X19", shows_in=(WHOLE,))
class BatchPadded(Fault):
    """The items of a batch are padded to the longest one, as the rows of a tensor are."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        names = ("output_ids", "token_ids", "response_token_ids")
        rows = [choice[name] for choice in choices_of(answer) for name in names if choice.get(name)]
        longest = max(map(len, rows), default=0)
        for row in rows:
            row.extend([0] * (longest - len(row)))
        return status, answer


@fault("stop-string-shown-in-later-choices", "X12", upstream=("smg-project/smg PR #2203",))
class StopStringShownInLaterChoices(Fault):
    """Only the first choice's text is cut at the stop string."""

    def text(self, reader: Reader, text: str) -> str:
        matched = reader.finish.matched if reader.finish else None
        shown = reader.index > 0 and isinstance(matched, str) and not reader.request.sampling.no_stop_trim
        return text + str(matched) if shown else text


@fault("one-budget-for-the-batch", "X19", upstream=("sgl-project/sglang issue #30556",))
class OneBudgetForTheBatch(Fault):
    """Of a list of sampling parameters, the budget of the first prompt is taken for all of them."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("sampling_params")
        if isinstance(params, list) and params and all(isinstance(one, dict) for one in params):
            first = params[0].get("max_new_tokens")
            return {**body, "sampling_params": [{**one, "max_new_tokens": first} for one in params]}
        return body


@fault(
    "answers-change-places",
    "X09",
    upstream=("sgl-project/sglang PR #4026", "vllm-project/vllm PR #14512"),
)
class AnswersChangePlaces(Fault):
    """The ids of a choice are those of another."""

    first: Reader | None = None

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        self.first = self.first or reader
        start = emission.completion_tokens - len(emission.output_ids)
        first = self.first
        others = first.request.output_ids[start : min(first.end, emission.completion_tokens)]
        return replace(emission, output_ids=[*others, *emission.output_ids[len(others) :]])


@fault(
    "choices-overwrite-each-other",
    "X01",
    upstream=("vllm-project/vllm PR #16863",),
    shows_in=(INCREMENTAL,),
)
class ChoicesOverwriteEachOther(Fault):
    """All choices share one place for their outputs: those of the second are overwritten until its last."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        overwritten = any(choice.get("index") == 1 for choice in choices_of(event)) and not finish_of(event)
        return [] if overwritten else [event]


@fault(
    "ids-of-a-neighbour",
    "X09",
    upstream=("sgl-project/sglang PR #4026",),
)
class IdsOfANeighbour(Fault):
    """The last id of an emission is that of the neighbour that emitted before it."""

    latest: ClassVar[tuple[Reader, int] | None] = None

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        neighbour = IdsOfANeighbour.latest
        if emission.output_ids:
            IdsOfANeighbour.latest = (reader, emission.output_ids[-1])
        if neighbour is None or neighbour[0] is reader or neighbour[0].finish or not emission.output_ids:
            return emission
        return replace(emission, output_ids=[*emission.output_ids[:-1], neighbour[1]])
