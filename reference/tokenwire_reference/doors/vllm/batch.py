"""vLLM's `/v1/chat/completions/batch`: several conversations in one request, and one choice for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import hold_against_schema, read_object, understood
from tokenwire_reference.doors.chat_channels import ChannelsAsked
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.limits import MOST_SAMPLES, refuse_many_samples, refuse_more
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.vllm.call import VllmCall
from tokenwire_reference.doors.vllm.chat import ChatAnswer, read_chat

_NOT_IN_BATCHES = ("stream", "tools", "use_beam_search")


async def chat_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions/batch."""
    served = served_by(http_request)
    given = await read_object(http_request)
    call, channels = await understood(http_request, lambda: _read(given, http_request.headers, served))
    return await _BatchAnswer(call, channels, served).answer(http_request)


def _read(given: dict[str, Any], headers: Headers, served: Served) -> tuple[VllmCall, ChannelsAsked]:
    """Parse a body as one call with a request for each conversation. Raises RefusalError."""
    for name in _NOT_IN_BATCHES:
        if given.get(name):
            raise RefusalError(f"{name} is not for batches; leave it out", param=name)
    if (given.get("n") or 1) != 1:
        raise RefusalError(f"n is {given['n']}; a batch has one choice for each conversation", param="n")
    conversations = hold_against_schema(given, "vllm-batch-request")["messages"]
    if not conversations:
        raise RefusalError("messages is empty; send a list of conversations", param="messages")
    refuse_more("messages", len(conversations), MOST_SAMPLES, "conversations")
    read = [read_chat({**given, "messages": messages}, headers, served) for messages in conversations]
    call, channels = read[0]
    requests = [
        replace(request, rid=f"{call.id}_{index}")
        for index, (single, _) in enumerate(read)
        for request in single.requests
    ]
    refuse_many_samples([request.prompt_token_ids for request in requests], 1)
    return replace(call, requests=requests), channels


class _BatchAnswer(ChatAnswer):
    """Formats the answer to a batch. Prompt ids would be those of one conversation, so it has none."""

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        return {**super().whole(choices), "prompt_token_ids": None, "prompt_logprobs": None}
