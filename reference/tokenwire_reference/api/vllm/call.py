"""What the calls of vLLM's doors have in common: who asks, for what, of which prompts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.limits import LIMITS, MOST_SAMPLES, refuse_more
from tokenwire_reference.api.sampling_fields import read_sampling_params, with_own_seed
from tokenwire_reference.api.served import Served
from tokenwire_reference.api.vllm.sampling import native_fields, refuse_what_does_not_fit
from tokenwire_reference.request import Request
from tokenwire_reference.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LogprobsAsked:
    """Which logprobs a call wants, and how they name their tokens."""

    top: int | None
    """So many of the likeliest tokens beside each chosen one; None for no logprobs at all."""
    prompt: int | None
    """The same for the tokens of the prompt."""
    as_token_ids: bool


@dataclass(frozen=True)
class VllmCall:
    """One call, ready for the engine. Requests stand prompt by prompt, `n` samples each."""

    id: str
    model: str
    tokenizer: Tokenizer | None
    requests: Sequence[Request]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    logprobs: LogprobsAsked


def read_call(
    body: Mapping[str, Any],
    sampling: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    served: Served,
    *,
    id: str,  # noqa: A002
    budget: int | None,
    logprobs: LogprobsAsked,
) -> VllmCall:
    """Put a call together. `sampling` is where its sampling parameters stand. Raises RefusalError.

    A budget of None is what the context holds.
    """
    refuse_other_models(body, served)
    stream = bool(body.get("stream"))
    options = body.get("stream_options") or {}
    if options and not stream:
        raise RefusalError("stream_options is set and stream is not; set stream too", param="stream_options")
    if sampling.get("prompt_logprobs") is not None and stream:
        raise RefusalError(
            "prompt_logprobs are not given in a stream; set stream=false", param="prompt_logprobs"
        )
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), budget, served.model.context_length)
    params = read_sampling_params(native_fields(sampling, budget, served.args.stream_interval), served)
    refuse_more("n", params.n * len(prompts), MOST_SAMPLES, "samples of all prompts together")
    include_usage = bool(options.get("include_usage")) or served.args.stream_response_default_include_usage
    wanted = [count for count in (logprobs.top, logprobs.prompt) if count is not None]
    top = served.model.vocab_size if -1 in wanted else max(wanted, default=0)
    single = len(prompts) * params.n == 1
    return VllmCall(
        id=id,
        model=body.get("model") or served.args.model_name,
        tokenizer=served.tokenizer,
        requests=[
            Request(
                rid=id if single else f"{id}_{i * params.n + j}",
                prompt_token_ids=tuple(prompt),
                sampling=with_own_seed(params, j),
                stream=stream,
                return_logprob=bool(wanted),
                logprob_start_len=-1 if logprobs.prompt is None else 0,
                top_logprobs_num=top,
                return_ranks=bool(wanted),
            )
            for i, prompt in enumerate(prompts)
            for j in range(params.n)
        ],
        n=params.n,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        logprobs=logprobs,
    )


def call_id(prefix: str, body: Mapping[str, Any], headers: Headers) -> str:
    """The id of a call: the header's, else the body's, else a new one."""
    named = headers.get("x-request-id", "")
    refuse_more("x-request-id", len(named), int(LIMITS["request_id"]["maxLength"]), "characters")
    return prefix + (named or body.get("request_id") or uuid.uuid4().hex[:16])


def refuse_other_models(body: Mapping[str, Any], served: Served) -> None:
    """Raise RefusalError for a model that is not served here."""
    name = body.get("model")
    if name and name != served.args.model_name:
        raise RefusalError(
            f"the model {name!r} does not exist here; this server has {served.args.model_name!r}",
            type="NotFoundError",
            status=404,
            param="model",
        )
