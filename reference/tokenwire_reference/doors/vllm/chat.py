"""vLLM's `/v1/chat/completions`, with token ids in whole answers and in streams."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import hold_against_schema, read_object, refuse_unsupported, understood
from tokenwire_reference.doors.chat_channels import ChannelsAsked, ChoiceChannels, read_channels
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.prompts import template_ids
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.doors.vllm.answering import FINGERPRINT, VllmAnswer
from tokenwire_reference.doors.vllm.call import UNSUPPORTED, LogprobsAsked, VllmCall, read_call
from tokenwire_reference.extras.channels.parser import Channel, Delta, Message


async def chat_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions in vLLM's shapes."""
    served = served_by(http_request)
    given = await read_object(http_request)
    call, channels = await understood(http_request, lambda: read_chat(given, http_request.headers, served))
    return await ChatAnswer(call, channels, served).answer(http_request)


def read_chat(given: dict[str, Any], headers: Headers, served: Served) -> tuple[VllmCall, ChannelsAsked]:
    """Parse the body of a chat request. Raises RefusalError."""
    body = hold_against_schema(given, "vllm-chat-request")
    refuse_unsupported(given, (name for name in UNSUPPORTED if name != "tools"))
    if served.tokenizer is None:
        raise RefusalError(
            "messages need a tokenizer and the server runs without one; use /inference/v1/generate",
            param="messages",
        )
    opening = body.get("add_generation_prompt", True)
    channels = read_channels(body, served)
    prompt = template_ids(
        body["messages"],
        served,
        add_generation_prompt=opening,
        template=channels.template,
        joiner="\n",
    )
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise RefusalError("top_logprobs is set and logprobs is not; set it to true", param="top_logprobs")
    if body.get("logprob_token_ids") and not body.get("logprobs"):
        raise RefusalError(
            "logprob_token_ids is set and logprobs is not; set it to true", param="logprob_token_ids"
        )
    budget = body.get("max_completion_tokens")
    call = read_call(
        body,
        body,
        [prompt],
        served,
        headers,
        prefix="chatcmpl-",
        budget=body.get("max_tokens") if budget is None else budget,
        logprobs=LogprobsAsked(
            top=(body.get("top_logprobs") or 0) if body.get("logprobs") else None,
            prompt=body.get("prompt_logprobs"),
            as_token_ids=bool(body.get("return_tokens_as_token_ids")),
            chosen=tuple(body.get("logprob_token_ids") or ()),
        ),
        channelled=channels.constraint,
    )
    return call, channels


def _opening() -> dict[str, str]:
    """Return the id and the type of a new tool call."""
    return {"id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}", "type": "function"}


def chat_message(joined: Message) -> dict[str, Any]:
    """Return the message of a whole choice."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if not joined.content and (joined.reasoning or joined.calls) else joined.content,
        **dict.fromkeys(("refusal", "annotations", "audio", "function_call")),
    }
    if joined.calls:
        message["tool_calls"] = [
            {**_opening(), "function": {"name": made.name, "arguments": made.arguments}}
            for made in joined.calls
        ]
    return message | {"reasoning": joined.reasoning or None}


class ChatAnswer(VllmAnswer):
    """Formats one chat answer in vLLM's shapes."""

    chunk_kind = "chat.completion.chunk"

    def __init__(self, call: VllmCall, channels: ChannelsAsked, served: Served) -> None:
        super().__init__(call, served)
        self._channels = [ChoiceChannels(request, channels, call.tokenizer) for request in call.requests]
        self._parses = channels.format is not None

    def reasoning_tokens(self) -> int | None:
        return self._reasoning_of(self._channels)

    def _reasoning_of(self, channels_of: Sequence[ChoiceChannels]) -> int | None:
        if self.served.args.reasoning_parser is None:
            return None
        return sum(channels.reasoning_tokens for channels in channels_of)

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        for choice in choices:
            self._channels[choice.index].consume(choice)
        return {
            **self.head("chat.completion"),
            "choices": [self._choice(choice) for choice in choices],
            "service_tier": None,
            **FINGERPRINT,
            "usage": self.usage(choices),
            "prompt_logprobs": self.logprobs.of_prompt(choices[0]),
            "prompt_token_ids": self.prompt_token_ids(choices[0]),
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self.metrics(choices),
        }

    def _choice(self, choice: Emission) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": chat_message(self._channels[choice.index].message),
            "logprobs": self._content(choice),
            **self._finish(choice),
            "token_ids": self.token_ids(choice),
            "routed_experts": None,
            **self.weight_versions(choice),
        }

    def pass_over(self, emission: Emission) -> None:
        """Process an emission whose chunks were sent before."""
        self._channels[emission.index].consume(emission)

    def chunks_of(self, emission: Emission) -> list[dict[str, Any]]:
        """Return the chunks of an emission.

        The first chunk of a choice has the role and the prompt's ids. The chunk with the last content has the
        finish reason.
        """
        chunks = []
        if emission.first:
            prompt = self.prompt_token_ids(emission)
            role = self._delta(emission, {"role": "assistant", "content": ""}, None)
            chunks.append(self._chunk(role, emission, 0) | {"prompt_token_ids": prompt, "prompt_text": None})
        delta = self._joined_delta(self._channels[emission.index].consume(emission))
        content = self._delta(emission, delta, self._content(emission))
        if emission.finish:
            content |= self._finish(emission) | self.weight_versions(emission)
        content["token_ids"] = self.token_ids(emission)
        chunks.append(self._chunk(content, emission, emission.completion_tokens))
        return chunks

    def _joined_delta(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """Return one delta that joins the deltas of all channels. Pieces of one call become one piece.

        If no channel has text, the delta has empty content.
        """
        joined: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for delta in deltas:
            if delta.channel is Channel.CALL:
                opening = {} if delta.name is None else _opening()
                function = {} if delta.name is None else {"name": delta.name}
                new = {**opening, "index": delta.call, "function": {**function, "arguments": ""}}
                calls.setdefault(delta.call, new)["function"]["arguments"] += delta.text
            else:
                joined[delta.channel.value] = joined.get(delta.channel.value, "") + delta.text
        if calls:
            joined["tool_calls"] = list(calls.values())
        return joined if self._parses else {"content": "", **joined}

    def _finish(self, emission: Emission) -> dict[str, Any]:
        fields = self.call.finish_fields(emission)
        if emission.finish is not None:
            fields["finish_reason"] = self._channels[emission.index].finish_reason(emission.finish)
        return fields

    def _delta(
        self, emission: Emission, delta: dict[str, Any], logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": emission.index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _chunk(self, choice: dict[str, Any], emission: Emission, completion: int) -> dict[str, Any]:
        chunk = self.chunk([choice])
        if self.call.continuous_usage:
            reasoning = self._reasoning_of([self._channels[emission.index]])
            consumed = Consumed(len(emission.record.prompt_token_ids), completion, 0, reasoning)
            chunk["usage"] = {**consumed.totals, "completion_tokens_details": consumed.details}
        return chunk

    def _content(self, emission: Emission) -> dict[str, Any] | None:
        return None if self.call.logprobs.top is None else self.logprobs.as_content(emission)
