"""`/v1/completions`: text or token ids in, text and token ids out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import hold_against_schema, read_object, refuse_unsupported, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.openai_answer import OpenAIAnswer
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.prompts import read_prompts
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import native_sampling_fields, refuse_what_does_not_fit
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.sglang.generate import read_sampling
from tokenwire_reference.doors.sglang.meta_info import answer_metadata, usage
from tokenwire_reference.doors.token_names import token_name
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.running.ranks import DP_RANK

DEFAULT_MAX_TOKENS = 16

_UNSUPPORTED = (
    *("suffix", "return_hidden_states", "return_routed_experts", "custom_logit_processor"),
    "session_params",
)


@dataclass(frozen=True, kw_only=True)
class CompletionCall(OpenAICall):
    """One completions request, ready for the engine."""

    echoes: Sequence[str]
    """The echoed text for each prompt: the prompt, or empty without echo."""


def read_completion_call(given: dict[str, Any], served: Served) -> CompletionCall:
    """Parse a body. Raises RefusalError."""
    if "prompt" in given and given["prompt"] in ("", [], [""], [[]], None):
        raise RefusalError("Prompt cannot be empty", param="prompt")
    body = hold_against_schema(given, "completion-request")
    refuse_unsupported(given, _UNSUPPORTED)
    if (body.get("best_of") or 1) > 1:
        raise RefusalError("best_of above 1 is not supported by the reference engine; use n", param="best_of")
    top = body.get("logprobs")
    if (top or 0) > served.model.vocab_size:
        raise RefusalError(
            f"logprobs {top} is above the vocabulary of {served.model.vocab_size} tokens", param="logprobs"
        )
    prompts, is_batch = read_prompts(body["prompt"], "prompt", served)
    budget = body.get("max_tokens")
    fields = native_sampling_fields(body, DEFAULT_MAX_TOKENS if budget is None else budget)
    sampling = read_sampling(fields, served)
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), sampling, served.model.context_length)
    echo = bool(body.get("echo"))
    return CompletionCall.read(
        body,
        served,
        id=uuid.uuid4().hex if body.get("rid") is None else body["rid"],
        prompts=prompts,
        sampling=sampling,
        wanted={
            "return_logprob": top is not None,
            "logprob_start_len": 0 if echo and top else -1,
            "top_logprobs_num": top or 0,
            "extra_key": body.get("extra_key") or None,
            "cache_salt": body.get("cache_salt") or None,
            "extras": {DP_RANK: body.get("routed_dp_rank")},
        },
        is_batch=is_batch,
        echoes=_echoes(body["prompt"], prompts, served) if echo else [""] * len(prompts),
    )


def _echoes(given: str | Sequence[Any], prompts: Sequence[Sequence[int]], served: Served) -> list[str]:
    """Return the prompts as text: as sent, or decoded without special tokens."""
    if served.tokenizer is None:
        raise RefusalError(
            "echo needs a tokenizer and the server runs without one; leave it out", param="echo"
        )
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], str):
        return list(given)
    return [served.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]


async def completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/completions."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: read_completion_call(body, served))
    return await _CompletionAnswer(call, served).answer(http_request)


class _CompletionAnswer(OpenAIAnswer[CompletionCall]):
    """Formats the answer to a completions call.

    A stream has a chunk for each emission, followed by the usage.
    """

    chunk_kind = "text_completion"

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        return {
            **self.head(self.chunk_kind),
            "choices": [_choice(choice, self.call) for choice in choices],
            "usage": self._usage(choices),
            "metadata": answer_metadata(choices),
        }

    def chunks(self, emission: Emission) -> Iterator[dict[str, Any]]:
        call = self.call
        so_far = usage(Consumed.by([emission], 1), cache_report=False) if call.continuous_usage else None
        yield self.chunk([_choice(emission, call)], usage=so_far)

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.call.include_usage:
            known = {name: value for name, value in self._usage(self.finals).items() if value is not None}
            yield self.chunk([], usage=known)

    def _usage(self, choices: Sequence[Emission]) -> dict[str, Any]:
        consumed = Consumed.by(choices, self.call.n)
        return usage(consumed, cache_report=self.served.args.enable_cache_report)


def _choice(emission: Emission, call: CompletionCall) -> dict[str, Any]:
    """Return a choice, or the next part of a choice in a stream.

    The first part has the prompt and its ids.
    """
    echo = call.echoes[emission.index // call.n] if emission.first else ""
    choice = {
        "index": emission.index,
        "text": echo + emission.text,
        "logprobs": _logprobs(emission, call) if emission.record.return_logprob else None,
        "finish_reason": emission.finish.type if emission.finish else None,
        "matched_stop": emission.finish.matched if emission.finish else None,
    }
    if call.body.get("return_token_ids"):
        choice["token_ids"] = emission.output_ids
        if emission.first:
            choice["prompt_token_ids"] = emission.record.prompt_token_ids
    return choice


def _logprobs(emission: Emission, call: CompletionCall) -> dict[str, Any]:
    """Return logprobs in the shape of OpenAI's completions.

    With an echo, the logprobs of the prompt come first.
    """
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
    """Return logprobs by token text. If several tokens have the same text, the best logprob is returned."""
    named: dict[str, float] = {}
    for entry in row:
        named.setdefault(token_name(call.tokenizer, entry[1]), entry[0])
    return named
