"""`/v1/completions` requests: what they ask for, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.doors.body import hold_against_schema
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.prompts import read_prompts
from tokenwire_reference.doors.sampling_fields import (
    native_sampling_fields,
    refuse_what_does_not_fit,
)
from tokenwire_reference.doors.served import Served
from tokenwire_reference.doors.sglang.sampling import read_sampling

DEFAULT_MAX_TOKENS = 16

_UNSUPPORTED = (
    *("suffix", "return_hidden_states", "return_routed_experts", "custom_logit_processor"),
    "session_params",
)


@dataclass(frozen=True, kw_only=True)
class CompletionCall(OpenAICall):
    """One completions request, ready for the engine."""

    echoes: Sequence[str]
    """What stands before the texts of each prompt: the prompt, or nothing."""
    logprobs: bool


def read_completion_call(given: dict[str, Any], served: Served) -> CompletionCall:
    """Read a body. Raises RefusalError."""
    if "prompt" in given and given["prompt"] in ("", [], [""], [[]], None):
        raise RefusalError("Prompt cannot be empty", param="prompt")
    body = hold_against_schema(given, "completion-request")
    for name in _UNSUPPORTED:
        if given.get(name):
            raise RefusalError(f"{name} is not supported by the reference engine; leave it out", param=name)
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
            "dp_rank": body.get("routed_dp_rank"),
        },
        is_batch=is_batch,
        echoes=_echoes(body["prompt"], prompts, served) if echo else [""] * len(prompts),
        logprobs=top is not None,
    )


def _echoes(given: str | Sequence[Any], prompts: Sequence[Sequence[int]], served: Served) -> list[str]:
    """The prompts as text: as they came, or decoded without special tokens."""
    if served.tokenizer is None:
        raise RefusalError(
            "echo needs a tokenizer and the server runs without one; leave it out", param="echo"
        )
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], str):
        return list(given)
    return [served.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]
