"""A call for items: a conversation, parsed like a chat."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.doors.chat_channels import ChannelsAsked, ChoiceChannels, read_channels
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.items.conversation import Message
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.prompts import template_ids
from tokenwire_reference.doors.sampling_fields import (
    native_sampling_fields,
    read_sampling_params,
    refuse_what_does_not_fit,
)
from tokenwire_reference.doors.served import Served


@dataclass(frozen=True, kw_only=True)
class ItemCall(OpenAICall):
    """One request for one choice."""

    channels: ChannelsAsked
    conversation: Sequence[Message]

    def channels_of_choice(self) -> ChoiceChannels:
        """Return a new parser that splits the text of the choice into channels."""
        return ChoiceChannels(self.requests[0], self.channels, self.tokenizer)


def read_item_call(
    body: Mapping[str, Any],
    served: Served,
    *,
    prefix: str,
    conversation: Sequence[Message],
    functions: Sequence[Mapping[str, Any]],
    tool_choice: Any,
    budget: int | None,
    thinks: bool | None,
    chat: Mapping[str, Any],
    top_logprobs: int | None = None,
) -> ItemCall:
    """Parse a body.

    `functions` and `tool_choice` are in the form of a chat request, and `chat` has further fields of a chat
    request. Without `top_logprobs`, no logprobs are returned. Raises RefusalError.
    """
    if served.tokenizer is None:
        raise RefusalError("messages need a tokenizer and the server runs without one; use /generate")
    tools = [{"type": "function", "function": function} for function in functions]
    asked = dict(chat) if tool_choice == "none" else {**chat, "tools": tools, "tool_choice": tool_choice}
    if thinks is not None:
        asked["chat_template_kwargs"] = {"enable_thinking": thinks}
    channels = read_channels(asked, served)
    if top_logprobs is not None:
        _refuse_logprobs(top_logprobs, channels, served)
    prompt = template_ids(conversation, served, template=channels.template)
    fields = native_sampling_fields({**body, **chat}, budget)
    sampling = read_sampling_params(fields, served, channels.constraint)
    refuse_what_does_not_fit(len(prompt), sampling, served.model.context_length)
    return ItemCall.read(
        body,
        served,
        id=f"{prefix}{uuid.uuid4().hex}",
        prompts=[prompt],
        sampling=sampling,
        wanted={"return_logprob": top_logprobs is not None, "top_logprobs_num": top_logprobs or 0},
        channels=channels,
        conversation=conversation,
    )


def _refuse_logprobs(top: int, channels: ChannelsAsked, served: Served) -> None:
    if channels.format is not None:
        raise RefusalError(
            "logprobs are listed with the text of their tokens, and a parser may remove tokens from the "
            "text; leave out tools, and ask a server without --reasoning-parser",
            param="include",
        )
    if top > served.model.vocab_size:
        raise RefusalError(
            f"top_logprobs {top} is above the vocabulary of {served.model.vocab_size} tokens",
            param="top_logprobs",
        )


def new_id(prefix: str) -> str:
    """Return a new id of an item or a call."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
