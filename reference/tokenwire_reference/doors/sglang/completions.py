"""`/v1/completions`: text or token ids in, text and token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import read_object, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.openai_answer import OpenAIAnswer
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import served_by
from tokenwire_reference.doors.sglang.completions_request import CompletionCall, read_completion_call
from tokenwire_reference.doors.sglang.meta_info import answer_metadata, usage
from tokenwire_reference.doors.token_names import token_name
from tokenwire_reference.doors.usage import Consumed

KIND = "text_completion"


async def completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/completions."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: read_completion_call(body, served))
    return await _CompletionAnswer(call, served).answer(http_request, RefusalError.flat_event)


class _CompletionAnswer(OpenAIAnswer[CompletionCall]):
    """A chunk for each emission, and the usage after all."""

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        return {
            **self.head(KIND),
            "choices": [_choice(choice, self.call) for choice in choices],
            "usage": self._usage(choices),
            "metadata": answer_metadata(choices),
        }

    def chunks(self, emission: Emission) -> Iterator[dict[str, Any]]:
        call = self.call
        so_far = usage(Consumed.by([emission], 1), cache_report=False) if call.continuous_usage else None
        yield {**self.head(KIND), "choices": [_choice(emission, call)], "usage": so_far}

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.call.include_usage:
            known = {name: value for name, value in self._usage(self.finals).items() if value is not None}
            yield {**self.head(KIND), "choices": [], "usage": known}

    def _usage(self, choices: Sequence[Emission]) -> dict[str, Any]:
        consumed = Consumed.by(choices, self.call.n)
        return usage(consumed, cache_report=self.served.args.enable_cache_report)


def _choice(emission: Emission, call: CompletionCall) -> dict[str, Any]:
    """A choice, or what is new of it; the prompt and its ids stand where the choice begins."""
    echo = call.echoes[emission.index // call.n] if emission.first else ""
    choice = {
        "index": emission.index,
        "text": echo + emission.text,
        "logprobs": _logprobs(emission, call) if call.logprobs else None,
        "finish_reason": emission.finish.type if emission.finish else None,
        "matched_stop": emission.finish.matched if emission.finish else None,
    }
    if call.return_token_ids:
        choice["token_ids"] = emission.output_ids
        if emission.first:
            choice["prompt_token_ids"] = emission.record.prompt_token_ids
    return choice


def _logprobs(emission: Emission, call: CompletionCall) -> dict[str, Any]:
    """Logprobs in the shape of OpenAI's completions; with an echo, those of the prompt first."""
    echoed = emission.record.prompt_series if emission.first else {}
    entries: list[Json] = [
        *echoed.get("input_token_logprobs", ()),
        *emission.series.get("output_token_logprobs", ()),
    ]
    rows = chain(echoed.get("input_top_logprobs", ()), emission.series.get("output_top_logprobs", ()))
    return {
        "text_offset": [-1] * len(entries),
        "token_logprobs": [entry[0] for entry in entries],
        "tokens": [token_name(call.tokenizer, entry[1]) for entry in entries],
        "top_logprobs": [None if row is None else _by_name(row, call) for row in rows],
    }


def _by_name(row: Sequence[Any], call: CompletionCall) -> dict[str, float]:
    """Logprobs by the text of their tokens; the first, which is the best, of those with the same text."""
    named: dict[str, float] = {}
    for entry in row:
        named.setdefault(token_name(call.tokenizer, entry[1]), entry[0])
    return named
