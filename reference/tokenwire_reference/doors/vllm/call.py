"""The common part of calls of vLLM's endpoints."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.limits import LIMITS, refuse_more
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import (
    native_sampling_fields,
    read_sampling_params,
    refuse_unknown_ids,
)
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.constraints import PLAIN, Channelled
from tokenwire_reference.running.ranks import DP_RANK

PADDING = -1
"""Fills up a short row of ids in `prompt_logprob_token_ids`."""
UNSUPPORTED = (
    *("guided_json", "guided_regex", "tools", "functions", "use_beam_search"),
    *("logits_processors", "truncate_prompt_tokens", "prompt_embeds", "suffix"),
    *("kv_transfer_params", "features", "add_special_tokens"),
)


def native_fields(body: Mapping[str, Any], budget: int | None, server_interval: int) -> dict[str, Any]:
    """Return the sampling fields of a body. A request can only raise the server's stream interval."""
    given = native_sampling_fields(body, budget)
    given["min_tokens_before_stop"] = body.get("min_tokens")
    if given.get("top_k") == 0:
        given["top_k"] = -1
    given |= {"only_ids": body.get("allowed_token_ids"), "banned_words": body.get("bad_words") or None}
    given["no_stop_trim"] = bool(body.get("include_stop_str_in_output"))
    given["stream_interval"] = max(body.get("stream_interval") or 1, server_interval)
    return given


def refuse_what_does_not_fit(prompt_tokens: int, budget: int | None, context_length: int) -> None:
    """Raise RefusalError if a prompt, or a prompt together with its budget, exceeds the context length."""
    if (budget or 0) > context_length:
        raise RefusalError(
            f"max_tokens is {budget}, more than the context length of {context_length}; ask for fewer",
            param="max_tokens",
        )
    # vLLM requires space for at least one token.
    if prompt_tokens + (budget or 1) > context_length:
        raise RefusalError(
            f"the prompt has {prompt_tokens} tokens, which with {budget or 1} new ones (max_tokens) is more "
            f"than the context length of {context_length}; shorten it or ask for fewer",
            param="input_tokens",
        )


@dataclass(frozen=True)
class LogprobsAsked:
    """The logprobs that a call requests, and the names of their tokens."""

    top: int | None
    """The number of likeliest tokens besides each chosen one; None without logprobs."""
    prompt: int | None
    """The number of likeliest tokens for each prompt position; None without logprobs."""
    as_token_ids: bool
    chosen: tuple[int, ...] = ()
    """Ids whose logprobs replace those of the likeliest tokens besides each chosen one."""
    of_prompt: tuple[tuple[int, ...], ...] = ()
    """Ids whose logprobs are requested at the positions of the prompt: a row for each scored position.

    A row may be filled up with -1.
    """
    first_row: int = 0
    """The number of positions that are left out before the first row."""

    @property
    def named_ids(self) -> tuple[int, ...]:
        """The ids that the request names, each once."""
        of_prompt = (token for row in self.of_prompt for token in row if token != PADDING)
        return tuple(dict.fromkeys((*self.chosen, *of_prompt)))


@dataclass(frozen=True, kw_only=True)
class VllmCall(OpenAICall):
    """One call, ready for the engine. A stream without usage at the end has no usage in its events either."""

    logprobs: LogprobsAsked

    def finish_fields(self, emission: Emission) -> dict[str, Any]:
        """Return `finish_reason`, and `stop_reason`: the stop string or stop id; null for the end of
        sequence.
        """
        finish = emission.finish
        if finish is None:
            return {"finish_reason": None, "stop_reason": None}
        matched = finish.matched
        stop_ids = self.requests[emission.index].sampling.stop_token_ids
        by_itself = isinstance(matched, int) and matched not in stop_ids
        return {"finish_reason": finish.type, "stop_reason": None if by_itself else matched}


def read_call(
    body: Mapping[str, Any],
    sampling: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    served: Served,
    headers: Headers,
    *,
    prefix: str,
    budget: int | None,
    logprobs: LogprobsAsked,
    channelled: Channelled = PLAIN,
) -> VllmCall:
    """Build a call with these sampling parameters.

    Its id begins with `prefix`. A budget of None means the rest of the context. Raises RefusalError.
    """
    refuse_other_models(body, served)
    stream = bool(body.get("stream"))
    if body.get("stream_options") and not stream:
        raise RefusalError(
            "stream_options is set but stream is not true; set stream to true", param="stream_options"
        )
    if sampling.get("prompt_logprobs") is not None and stream:
        raise RefusalError(
            "prompt_logprobs are not given in a stream; set stream=false", param="prompt_logprobs"
        )
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), budget, served.model.context_length)
    fields = native_fields(sampling, budget, served.args.stream_interval)
    params = read_sampling_params(fields, served, channelled)
    refuse_unknown_ids("logprob_token_ids", logprobs.chosen, served.model.vocab_size)
    wanted = [count for count in (logprobs.top, logprobs.prompt) if count is not None]
    of_prompt = logprobs.prompt is not None or bool(logprobs.of_prompt)
    call = VllmCall.read(
        body,
        served,
        id=_call_id(prefix, body, headers),
        prompts=prompts,
        sampling=params,
        wanted={
            "return_logprob": bool(wanted) or of_prompt,
            "logprob_start_len": 0 if of_prompt else -1,
            "top_logprobs_num": served.model.vocab_size if -1 in wanted else max(wanted, default=0),
            "return_ranks": bool(wanted),
            "token_ids_logprob": logprobs.named_ids,
            "cache_salt": body.get("cache_salt"),
            "extras": {DP_RANK: _rank(headers)},
        },
        logprobs=logprobs,
    )
    return replace(call, continuous_usage=call.include_usage and call.continuous_usage)


def _rank(headers: Headers) -> int | None:
    """Return the data-parallel rank in a header. As in vLLM, a value that is not a number is ignored."""
    named = headers.get("x-data-parallel-rank", "")
    return int(named) if re.fullmatch(r"-?\d{1,9}", named, re.ASCII) else None


def _call_id(prefix: str, body: Mapping[str, Any], headers: Headers) -> str:
    """Return the id of a call: from the header, or else from the body, or else a new id."""
    named = headers.get("x-request-id", "")
    refuse_more("x-request-id", len(named), int(LIMITS["request_id"]["maxLength"]), "characters")
    return prefix + (named or body.get("request_id") or uuid.uuid4().hex[:16])


def refuse_other_models(body: Mapping[str, Any], served: Served) -> None:
    """Raise RefusalError for a model that is not served here."""
    name = body.get("model")
    if name and name != served.args.model_name and name not in served.adapters:
        raise RefusalError(
            f"the model {name!r} does not exist here; this server has {served.args.model_name!r}",
            type="NotFoundError",
            status=404,
            param="model",
        )
