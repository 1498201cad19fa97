"""`/v1/chat/completions` requests: what they ask for, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from tokenwire_reference.core.request import SERIES_ASKED_FOR
from tokenwire_reference.doors.body import hold_against_schema
from tokenwire_reference.doors.chat_channels import ChannelsAsked, read_channels
from tokenwire_reference.doors.errors import UNCONVERTIBLE, RefusalError
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.prompts import template_ids
from tokenwire_reference.doors.sampling_fields import (
    native_sampling_fields,
    refuse_unknown_ids,
    refuse_what_does_not_fit,
)
from tokenwire_reference.doors.served import Served
from tokenwire_reference.doors.sglang.sampling import read_sampling

_UNSUPPORTED = (
    *(
        "functions",
        "function_call",
        "return_hidden_states",
        "return_routed_experts",
        "session_id",
    ),
    *("return_flat_raw_output_top_logprobs", "custom_logit_processor"),
    *("continue_final_message", "session_params"),
)

_NOT_STREAMED = {
    "return_prompt_token_ids": (
        "return_prompt_token_ids is not supported with streaming. "
        "Please set stream=false when using return_prompt_token_ids=true."
    ),
    "return_token_ids": (
        "return_token_ids is not supported with streaming on /v1/chat/completions. "
        "Please set stream=false when using return_token_ids=true."
    ),
    "return_meta_info": (
        "return_meta_info is not supported with streaming. "
        "Please set stream=false when using return_meta_info=true."
    ),
}
"""In the order and the words of SGLang (sgl-project/sglang PR #23751, PR #30917): clients look for them."""


@dataclass(frozen=True, kw_only=True)
class ChatCall(OpenAICall):
    """One chat request, ready for the engine."""

    logprobs: bool
    return_prompt_token_ids: bool
    return_meta_info: bool
    input_ids_in_sglext: bool
    output_ids_in_sglext: bool
    cached_tokens_details: bool
    channels: ChannelsAsked


def read_chat_call(given: dict[str, Any], headers: Headers, served: Served) -> ChatCall:
    """Read a body. Raises RefusalError."""
    if given.get("messages") == []:
        raise RefusalError("Messages cannot be empty.")
    if given.get("input_ids") == []:
        raise RefusalError("input_ids cannot be empty.")
    body = hold_against_schema(given, "chat-request")
    for name in _UNSUPPORTED:
        if given.get(name):
            raise RefusalError(f"{name} is not supported by the reference engine; leave it out")
    stream = bool(body.get("stream"))
    for name, message in _NOT_STREAMED.items():
        if stream and body.get(name):
            raise RefusalError(message, type=UNCONVERTIBLE)
    logprobs, top_logprobs = bool(body.get("logprobs")), body.get("top_logprobs") or 0
    if top_logprobs and not logprobs:
        raise RefusalError(f"top_logprobs is {top_logprobs} but logprobs is not true; set logprobs to true")
    if top_logprobs > served.model.vocab_size:
        raise RefusalError(
            f"top_logprobs {top_logprobs} is above the vocabulary of {served.model.vocab_size} tokens"
        )
    channels = read_channels(body, served)
    asked = next((flag for flag in SERIES_ASKED_FOR if body.get(flag)), None)
    if asked and not body.get("return_meta_info"):
        raise RefusalError(f"what {asked} asks for stands in meta_info; set return_meta_info to true, too")
    prompt = _prompt(body, channels, served)
    sampling = read_sampling(native_sampling_fields(body, _budget(body)), served, channels.constraint)
    refuse_what_does_not_fit(len(prompt), sampling, served.model.context_length)
    return ChatCall.read(
        body,
        served,
        id=uuid.uuid4().hex if body.get("rid") is None else body["rid"],
        prompts=[prompt],
        sampling=sampling,
        wanted={
            "return_logprob": logprobs,
            "top_logprobs_num": top_logprobs,
            "extra_key": body.get("extra_key") or None,
            "cache_salt": body.get("cache_salt") or None,
            **{flag: bool(body.get(flag)) for flag in SERIES_ASKED_FOR},
            "dp_rank": body.get("routed_dp_rank"),
        },
        logprobs=logprobs,
        return_prompt_token_ids=bool(body.get("return_prompt_token_ids") or body.get("return_token_ids")),
        return_meta_info=bool(body.get("return_meta_info")),
        input_ids_in_sglext=served.args.return_input_ids or _asks(body, headers, "input"),
        output_ids_in_sglext=served.args.return_output_ids or _asks(body, headers, "output"),
        cached_tokens_details=bool(body.get("return_cached_tokens_details")),
        channels=channels,
    )


def _asks(body: Mapping[str, Any], headers: Headers, side: str) -> bool:
    field, header = f"return_{side}_ids_in_sglext", f"x-sglext-return-{side}-ids"
    return bool(body.get(field)) or headers.get(header) == "1"


def _budget(body: Mapping[str, Any]) -> int | None:
    """Without a budget, a chat answer may fill the context."""
    budget: int | None = body.get("max_completion_tokens")
    return body.get("max_tokens") if budget is None else budget


def _prompt(body: Mapping[str, Any], channels: ChannelsAsked, served: Served) -> list[int]:
    """The prompt's ids: input_ids just as they are, or the messages put through the chat template."""
    if (ids := body.get("input_ids")) is not None:
        refuse_unknown_ids("input_ids", ids, served.model.vocab_size)
        return list(ids)
    if served.tokenizer is None:
        raise RefusalError(
            "messages need a tokenizer and the server runs without one; send input_ids beside them",
            param="messages",
        )
    return template_ids(
        body["messages"],
        served.tokenizer,
        context_length=served.model.context_length,
        template=channels.template,
    )
