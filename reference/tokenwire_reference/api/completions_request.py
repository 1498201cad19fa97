"""`/v1/completions` requests: what they ask for, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.api.body import hold_against_schema
from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.limits import MOST_SAMPLES, refuse_more
from tokenwire_reference.api.openai_sampling import native_sampling_fields
from tokenwire_reference.api.prompts import read_prompts
from tokenwire_reference.api.sampling_fields import (
    read_sampling_params,
    refuse_what_does_not_fit,
    with_own_seed,
)
from tokenwire_reference.api.served import Served
from tokenwire_reference.request import Request, SamplingParams
from tokenwire_reference.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16

_UNSUPPORTED = (
    *("suffix", "return_hidden_states", "return_routed_experts", "custom_logit_processor", "lora_path"),
    *("session_params", "response_format", "json_schema", "regex", "ebnf", "structural_tag"),
)


@dataclass(frozen=True)
class CompletionCall:
    """One completions request, ready for the engine. Requests stand prompt by prompt, `n` samples each."""

    id: str
    model: str
    tokenizer: Tokenizer | None
    requests: Sequence[Request]
    n: int
    echoes: Sequence[str]
    """What stands before the text of each request: its prompt, or nothing."""
    stream: bool
    logprobs: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


def read_completion_call(body: dict[str, Any], served: Served) -> CompletionCall:
    """Read a body. Raises RefusalError."""
    if "prompt" in body and body["prompt"] in ("", [], [""], [[]], None):
        raise RefusalError("Prompt cannot be empty", param="prompt")
    hold_against_schema(body, "completion-request")
    for name in _UNSUPPORTED:
        if body.get(name):
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
    sampling = read_sampling_params(fields, served)
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), sampling, served.model.context_length)
    echo = bool(body.get("echo"))
    rid = uuid.uuid4().hex if body.get("rid") is None else body["rid"]
    refuse_more("n", sampling.n * len(prompts), MOST_SAMPLES, "samples of all prompts together")
    options = body.get("stream_options") or {}
    single = not is_batch and sampling.n == 1
    return CompletionCall(
        id=rid,
        model=body.get("model") or served.args.model_name,
        tokenizer=served.tokenizer,
        requests=[
            Request(
                rid=rid if single else f"{rid}_{i * sampling.n + j}",
                prompt_token_ids=tuple(prompt),
                sampling=with_own_seed(sampling, j),
                stream=bool(body.get("stream")),
                return_logprob=top is not None,
                logprob_start_len=0 if echo and top else -1,
                top_logprobs_num=top or 0,
                extra_key=body.get("extra_key") or None,
            )
            for i, prompt in enumerate(prompts)
            for j in range(sampling.n)
        ],
        n=sampling.n,
        echoes=_echoes(body["prompt"], prompts, sampling, served)
        if echo
        else [""] * len(prompts) * sampling.n,
        stream=bool(body.get("stream")),
        logprobs=top is not None,
        include_usage=bool(options.get("include_usage")) or served.args.stream_response_default_include_usage,
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
    )


def _echoes(
    given: str | Sequence[Any], prompts: Sequence[Sequence[int]], sampling: SamplingParams, served: Served
) -> list[str]:
    """The prompts as text: as they came, or decoded without special tokens."""
    if served.tokenizer is None:
        raise RefusalError(
            "echo needs a tokenizer and the server runs without one; leave it out", param="echo"
        )
    if isinstance(given, str):
        texts = [given]
    elif isinstance(given[0], str):
        texts = list(given)
    else:
        texts = [served.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]
    return [text for text in texts for _ in range(sampling.n)]
