"""`/v1/chat/completions`, with token-in-token-out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import read_object, understood
from tokenwire_reference.doors.chat_channels import ChoiceChannels
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.openai_answer import OpenAIAnswer
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.sglang.chat_request import ChatCall, read_chat_call
from tokenwire_reference.doors.sglang.meta_info import answer_metadata, meta_info, usage
from tokenwire_reference.doors.token_names import content_entries
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.extras.channels.parser import Channel, Delta


async def chat_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: read_chat_call(body, http_request.headers, served))
    return await _ChatAnswer(call, served).answer(http_request, RefusalError.flat_event)


class _ChatAnswer(OpenAIAnswer[ChatCall]):
    """A role chunk before the first content of each choice, content, and the finishes after all content.

    Each chunk has text of one channel. A step whose ids show no text yet has a chunk with empty content where
    logprobs were asked for: no entry is lost.
    """

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
        if call.return_prompt_token_ids:
            answer["prompt_token_ids"] = choice.record.prompt_token_ids
        if call.return_token_ids:
            answer["response_token_ids"] = choice.output_ids
        if call.return_meta_info:
            reasoning = channels.reasoning_tokens
            answer["meta_info"] = meta_info(choice, call.tokenizer, reasoning_tokens=reasoning)
        return answer

    def _chunk(self, choices: list[dict[str, Any]], **more: Json) -> dict[str, Any]:
        return {**self.head("chat.completion.chunk"), "choices": choices, **more}

    def shows(self, emission: Emission) -> bool:
        del emission
        return True  # the parser may hold text

    def chunks(self, emission: Emission) -> Iterator[dict[str, Any]]:
        call, channels = self.call, self._channels[emission.index]
        self._ids.setdefault(emission.index, []).extend(emission.output_ids)
        if emission.first:
            yield self._chunk([_delta(emission.index, role="assistant", content="")])
        logprobs = _logprobs(emission, call)
        deltas = list(map(_delta_fields, channels.consume(emission)))
        if not deltas and logprobs and logprobs["content"]:
            deltas = [{"content": ""}]
        for place, delta in enumerate(deltas, 1):
            more = {"usage": self._usage([emission], [channels])} if call.continuous_usage else {}
            of_step = logprobs if place == len(deltas) else None
            yield self._chunk([_delta(emission.index, of_step, **delta)], **more)

    def closing(self) -> Iterator[dict[str, Any]]:
        for final in self.finals:
            yield self._chunk([{**_delta(final.index), **_finish(final, self._channels[final.index])}])
        if sglext := _sglext(self.finals, self.call, [self._ids[final.index] for final in self.finals]):
            yield self._chunk([], usage=None, sglext=sglext)
        if self.call.include_usage:
            yield self._chunk([], usage=self._usage(self.finals, self._channels))

    def _usage(self, choices: Sequence[Emission], channels_of: Sequence[ChoiceChannels]) -> dict[str, Any]:
        reasoning = sum(channels.reasoning_tokens for channels in channels_of)
        consumed = Consumed.by(choices, len(choices), reasoning)
        return usage(consumed, cache_report=self.served.args.enable_cache_report)


def _delta_fields(delta: Delta) -> dict[str, Any]:
    """What is new in a message."""
    match delta.channel:
        case Channel.CONTENT:
            return {"content": delta.text}
        case Channel.REASONING:
            return {"reasoning_content": delta.text}
        case Channel.CALL:
            return {"tool_calls": [_call(delta.call, delta.name, delta.text)]}


def _call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    """A call, or what is new of it: its id and its name stand where it begins."""
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
    return {"content": content_entries(emission, call.tokenizer)} if call.logprobs else None


def _sglext(
    choices: Sequence[Emission], call: ChatCall, output_ids: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """SGLang's additions for the answer as a whole; empty where none was asked for."""
    sglext: dict[str, Any] = {}
    if call.cached_tokens_details:
        details = next(filter(None, (choice.record.cached_tokens_details for choice in choices)), None)
        sglext |= {"cached_tokens_details": details} if details else {}
    if call.input_ids_in_sglext:
        sglext["input_ids"] = choices[0].record.prompt_token_ids
    if call.output_ids_in_sglext:
        sglext["output_ids"] = output_ids or [choice.output_ids for choice in choices]
    return sglext
