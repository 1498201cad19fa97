"""`/v1/messages`: one choice as a list of blocks, and a stream of named events that builds it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.answering import raise_for_server_abort
from tokenwire_reference.doors.body import hold_against_schema, read_object, understood
from tokenwire_reference.doors.chat_channels import ChoiceChannels
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import NAMED
from tokenwire_reference.doors.items.call import ItemCall, new_id, read_item_call
from tokenwire_reference.doors.items.conversation import of_messages
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.openai_answer import answer_call
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.extras.channels.parser import Channel, Delta

PATH = "/v1/messages"
Event = dict[str, Any]

_BLOCK_OF = {Channel.REASONING: "thinking", Channel.CONTENT: "text", Channel.CALL: "tool_use"}
_DELTA_OF = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_REASON_OF = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def messages(http_request: HttpRequest) -> Response:
    """Answer POST /v1/messages."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: _read_item_call(body, served))
    return await answer_call(http_request, served, call, _Answer(call, served), NAMED)


async def count_tokens(http_request: HttpRequest) -> Response:
    """Answer POST /v1/messages/count_tokens."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: _read_item_call({"max_tokens": 1, **body}, served))
    return json_answer({"input_tokens": len(call.requests[0].prompt_token_ids)})


def _read_item_call(body: dict[str, Any], served: Served) -> ItemCall:
    body = hold_against_schema(body, "messages-request")
    choice = body.get("tool_choice") or {"type": "auto"}
    functions = [
        {
            "name": tool["name"],
            "description": tool.get("description"),
            "parameters": tool["input_schema"],
            "strict": tool.get("strict"),
        }
        for tool in body.get("tools") or ()
    ]
    wanted = {"any": "required", "tool": {"function": choice}}.get(choice["type"], choice["type"])
    thinking = (body.get("thinking") or {}).get("type")
    return read_item_call(
        {**body, "stop": body.get("stop_sequences")},
        served,
        prefix="msg_",
        conversation=of_messages(body["messages"], body.get("system")),
        functions=functions,
        tool_choice=wanted,
        budget=body["max_tokens"],
        thinks=False if thinking == "disabled" else None,
        chat={
            "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
            "response_format": (body.get("output_config") or {}).get("format"),
        },
    )


def _head(call: ItemCall) -> dict[str, Any]:
    return {"id": call.id, "type": "message", "role": "assistant", "model": call.model}


def _signature(thinking: str) -> str:
    """Return the signature of a thinking block. Equal texts have equal signatures."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _stop(choice: Emission, call: ItemCall, channels: ChoiceChannels) -> dict[str, Any]:
    """Return the `stop_reason` and the `stop_sequence` of a message."""
    assert choice.finish is not None, "only what ended has a finish"
    matched = choice.finish.matched
    sequence = matched if isinstance(matched, str) and matched in call.requests[0].sampling.stop else None
    reason = channels.finish_reason(choice.finish)
    named = "stop_sequence" if sequence is not None and reason == "stop" else _REASON_OF.get(reason, reason)
    return {"stop_reason": named, "stop_sequence": sequence}


def _usage(
    choice: Emission, served: Served, output: int | None = None, thinking: int | None = None
) -> dict[str, Any]:
    """Return the usage of a message. `thinking`: the number of reasoning tokens, if reasoning is parsed."""
    consumed = Consumed.by([choice], 1)
    cached = consumed.cached if served.args.enable_cache_report else 0
    details = {} if thinking is None else {"output_tokens_details": {"thinking_tokens": thinking}}
    return {
        "input_tokens": consumed.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": consumed.completion if output is None else output,
        **details,
    }


class _Answer:
    """One message, whole or as events. The first delta of a block closes the block before it."""

    def __init__(self, call: ItemCall, served: Served) -> None:
        self._call, self._served = call, served
        self._channels = call.channels_of_choice()
        self._kind = ""
        self._thought = ""
        """The text of the open thinking block."""
        self._blocks = 0
        self._last: Emission | None = None

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        self._channels.consume(choices[0])
        message = self._channels.message
        blocks: list[dict[str, Any]] = []
        if message.reasoning:
            blocks.append(
                {
                    "type": "thinking",
                    "thinking": message.reasoning,
                    "signature": _signature(message.reasoning),
                }
            )
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        for item in message.calls:
            block = {"type": "tool_use", "id": new_id("toolu"), "name": item.name}
            blocks.append({**block, "input": item.value})
        return {
            **_head(self._call),
            "content": blocks,
            **_stop(choices[0], self._call, self._channels),
            "usage": _usage(choices[0], self._served, thinking=self._thinking()),
        }

    def _thinking(self) -> int | None:
        """Return the number of reasoning tokens; None if the server does not parse reasoning."""
        return None if self._served.args.reasoning_parser is None else self._channels.reasoning_tokens

    def of(self, emission: Emission) -> Iterator[Event]:
        if emission.first:
            usage = _usage(emission, self._served, 0)
            begun = {
                **_head(self._call),
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            }
            yield {"type": "message_start", "message": begun}
        self._last = emission
        for delta in self._channels.consume(emission):
            kind = _BLOCK_OF[delta.channel]
            if kind != self._kind or delta.name is not None:
                yield from self._close()
                yield self._opened(kind, delta)
            if delta.text:
                yield self._delta(delta.text)
        raise_for_server_abort([emission])

    def closing(self) -> Iterator[Event]:
        yield from self._close()
        assert self._last is not None, "a stream has a first emission"
        stop = _stop(self._last, self._call, self._channels)
        usage = _usage(self._last, self._served, thinking=self._thinking())
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}

    def failed(self, refusal: RefusalError) -> Event:
        return refusal.typed_event()

    def _opened(self, kind: str, delta: Delta) -> Event:
        self._kind, self._blocks = kind, self._blocks + 1
        begun: dict[str, Any] = {"type": kind}
        if kind == "tool_use":
            begun |= {"id": new_id("toolu"), "name": delta.name, "input": {}}
        else:
            begun[kind] = ""
        if kind == "thinking":
            begun["signature"], self._thought = "", ""
        return {"type": "content_block_start", "index": self._blocks - 1, "content_block": begun}

    def _delta(self, text: str) -> Event:
        kind, name = _DELTA_OF[self._kind]
        self._thought += text if self._kind == "thinking" else ""
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": {"type": kind, name: text}}

    def _close(self) -> Iterator[Event]:
        if self._kind == "thinking":
            signed = {"type": "signature_delta", "signature": _signature(self._thought)}
            yield {"type": "content_block_delta", "index": self._blocks - 1, "delta": signed}
        if self._kind:
            yield {"type": "content_block_stop", "index": self._blocks - 1}
        self._kind = ""
