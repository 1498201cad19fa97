"""`/v1/chat/completions`, with token-in-token-out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import SERIES_ASKED_FOR
from tokenwire_reference.doors.body import hold_against_schema, read_object, refuse_unsupported, understood
from tokenwire_reference.doors.chat_channels import ChannelsAsked, ChoiceChannels, read_channels
from tokenwire_reference.doors.errors import UNCONVERTIBLE, RefusalError
from tokenwire_reference.doors.openai_answer import OpenAIAnswer
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.prompts import template_ids
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import (
    native_sampling_fields,
    refuse_unknown_ids,
    refuse_what_does_not_fit,
)
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.sglang.generate import read_sampling
from tokenwire_reference.doors.sglang.meta_info import answer_metadata, meta_info, usage
from tokenwire_reference.doors.token_names import content_entries
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.extras.channels.parser import Channel, Delta
from tokenwire_reference.running.ranks import DP_RANK

_UNSUPPORTED = (
    *("functions", "function_call", "return_hidden_states", "return_routed_experts", "session_id"),
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
"""Error messages in SGLang's order and wording (sgl-project/sglang PR #23751, PR #30917), because clients
search for this wording.
"""


@dataclass(frozen=True, kw_only=True)
class ChatCall(OpenAICall):
    """One chat request, ready for the engine."""

    input_ids_in_sglext: bool
    output_ids_in_sglext: bool
    channels: ChannelsAsked


def read_chat_call(given: dict[str, Any], headers: Headers, served: Served) -> ChatCall:
    """Parse a body. Raises RefusalError."""
    if given.get("messages") == []:
        raise RefusalError("Messages cannot be empty.")
    if given.get("input_ids") == []:
        raise RefusalError("input_ids cannot be empty.")
    body = hold_against_schema(given, "chat-request")
    refuse_unsupported(given, _UNSUPPORTED)
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
        raise RefusalError(f"{asked} needs meta_info; set return_meta_info to true, too")
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
            "extras": {DP_RANK: body.get("routed_dp_rank")},
        },
        input_ids_in_sglext=served.args.return_input_ids or _asks(body, headers, "input"),
        output_ids_in_sglext=served.args.return_output_ids or _asks(body, headers, "output"),
        channels=channels,
    )


def _asks(body: Mapping[str, Any], headers: Headers, side: str) -> bool:
    field, header = f"return_{side}_ids_in_sglext", f"x-sglext-return-{side}-ids"
    return bool(body.get(field)) or headers.get(header) == "1"


def _budget(body: Mapping[str, Any]) -> int | None:
    """Return the budget of a chat; without one, the answer may fill the context."""
    budget: int | None = body.get("max_completion_tokens")
    return body.get("max_tokens") if budget is None else budget


def _prompt(body: Mapping[str, Any], channels: ChannelsAsked, served: Served) -> list[int]:
    """Return the prompt's ids: input_ids unchanged, or the messages in the chat template."""
    if (ids := body.get("input_ids")) is not None:
        refuse_unknown_ids("input_ids", ids, served.model.vocab_size)
        return list(ids)
    if served.tokenizer is None:
        raise RefusalError(
            "messages need a tokenizer and the server runs without one; send input_ids beside them",
            param="messages",
        )
    return template_ids(body["messages"], served, template=channels.template, joiner=" ")


async def chat_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: read_chat_call(body, http_request.headers, served))
    return await _ChatAnswer(call, served).answer(http_request)


class _ChatAnswer(OpenAIAnswer[ChatCall]):
    """Formats the answer to a chat call.

    In a stream, each choice begins with a role chunk. Content follows, and the finish reasons of all choices
    come last. Each chunk has text of one channel. If logprobs are requested, a step without text has a chunk
    with empty content, so that no entry is lost.
    """

    chunk_kind = "chat.completion.chunk"
    may_hold_text = True

    def __init__(self, call: ChatCall, served: Served) -> None:
        super().__init__(call, served)
        self._channels = [ChoiceChannels(request, call.channels, call.tokenizer) for request in call.requests]
        self._ids: dict[int, list[int]] = {}

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        for choice in choices:
            self._channels[choice.index].consume(choice)
        answer = {
            **self.head("chat.completion"),
            "choices": [self._choice(choice) for choice in choices],
            "usage": self._usage(choices, self._channels),
            "metadata": answer_metadata(choices),
        }
        if sglext := _sglext(choices, self.call):
            answer["sglext"] = sglext
        return answer

    def _choice(self, choice: Emission) -> dict[str, Any]:
        call, channels = self.call, self._channels[choice.index]
        joined = channels.message
        message: dict[str, Any] = {
            "role": "assistant",
            "content": joined.content,
            "reasoning_content": joined.reasoning or None,
        }
        if joined.calls:
            message["tool_calls"] = [
                _call(index, made.name, made.arguments) for index, made in enumerate(joined.calls)
            ]
        answer: dict[str, Any] = {
            "index": choice.index,
            "message": message,
            "logprobs": _logprobs(choice, call),
            **_finish(choice, channels),
        }
        if call.body.get("return_prompt_token_ids") or call.body.get("return_token_ids"):
            answer["prompt_token_ids"] = choice.record.prompt_token_ids
        if call.body.get("return_token_ids"):
            answer["response_token_ids"] = choice.output_ids
        if call.body.get("return_meta_info"):
            reasoning = channels.reasoning_tokens
            answer["meta_info"] = meta_info(choice, call.tokenizer, reasoning_tokens=reasoning)
        return answer

    def chunks(self, emission: Emission) -> Iterator[dict[str, Any]]:
        call, channels = self.call, self._channels[emission.index]
        self._ids.setdefault(emission.index, []).extend(emission.output_ids)
        if emission.first:
            yield self.chunk([_delta(emission.index, role="assistant", content="")])
        logprobs = _logprobs(emission, call)
        deltas = list(map(_delta_fields, channels.consume(emission)))
        if not deltas and logprobs and logprobs["content"]:
            deltas = [{"content": ""}]
        for place, delta in enumerate(deltas, 1):
            more = {"usage": self._usage([emission], [channels])} if call.continuous_usage else {}
            of_step = logprobs if place == len(deltas) else None
            yield self.chunk([_delta(emission.index, of_step, **delta)], **more)

    def closing(self) -> Iterator[dict[str, Any]]:
        for final in self.finals:
            yield self.chunk([{**_delta(final.index), **_finish(final, self._channels[final.index])}])
        if sglext := _sglext(self.finals, self.call, [self._ids[final.index] for final in self.finals]):
            yield self.chunk([], usage=None, sglext=sglext)
        if self.call.include_usage:
            yield self.chunk([], usage=self._usage(self.finals, self._channels))

    def _usage(self, choices: Sequence[Emission], channels_of: Sequence[ChoiceChannels]) -> dict[str, Any]:
        reasoning = sum(channels.reasoning_tokens for channels in channels_of)
        consumed = Consumed.by(choices, len(choices), reasoning)
        return usage(consumed, cache_report=self.served.args.enable_cache_report)


def _delta_fields(delta: Delta) -> dict[str, Any]:
    """Return the fields that a delta adds to a message."""
    match delta.channel:
        case Channel.CONTENT:
            return {"content": delta.text}
        case Channel.REASONING:
            return {"reasoning_content": delta.text}
        case Channel.CALL:
            return {"tool_calls": [_call(delta.call, delta.name, delta.text)]}


def _call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    """Return a tool call, or the next part of a call in a stream. The first part has the id and the name."""
    return {
        "id": None if name is None else f"call_{uuid.uuid4().hex[:24]}",
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _delta(index: int, logprobs: dict[str, Any] | None = None, **delta: Any) -> dict[str, Any]:
    return {
        "index": index,
        "delta": {"reasoning_content": None, **delta},
        "logprobs": logprobs,
        "finish_reason": None,
        "matched_stop": None,
    }


def _finish(choice: Emission, channels: ChoiceChannels) -> dict[str, Any]:
    assert choice.finish is not None, "only an ended choice has a finish"
    return {"finish_reason": channels.finish_reason(choice.finish), "matched_stop": choice.finish.matched}


def _logprobs(emission: Emission, call: ChatCall) -> dict[str, Any] | None:
    return {"content": content_entries(emission, call.tokenizer)} if emission.record.return_logprob else None


def _sglext(
    choices: Sequence[Emission], call: ChatCall, output_ids: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """Return SGLang's additions for the whole answer; empty if none are requested."""
    sglext: dict[str, Any] = {}
    if call.body.get("return_cached_tokens_details"):
        details = next(filter(None, (choice.record.cached_tokens_details for choice in choices)), None)
        sglext |= {"cached_tokens_details": details} if details else {}
    if call.input_ids_in_sglext:
        sglext["input_ids"] = choices[0].record.prompt_token_ids
    if call.output_ids_in_sglext:
        sglext["output_ids"] = output_ids or [choice.output_ids for choice in choices]
    return sglext
