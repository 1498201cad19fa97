"""`/v1/responses`: one choice as a list of items, and a stream of numbered events that builds it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import FinishReason
from tokenwire_reference.doors.answering import answer_later, raise_for_server_abort
from tokenwire_reference.doors.body import hold_against_schema, read_object, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import NAMED
from tokenwire_reference.doors.items.call import ItemCall, new_id, read_item_call
from tokenwire_reference.doors.items.conversation import of_input
from tokenwire_reference.doors.items.free_input import FreeInput, as_function
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.openai_answer import answer_call
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.token_names import content_entries
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.extras.channels.parser import Channel, Delta

logger = logging.getLogger(__name__)
PATH = "/v1/responses"
Event = dict[str, Any]

_ITEM_OF = {Channel.REASONING: "reasoning", Channel.CONTENT: "message", Channel.CALL: "function_call"}
_ID_OF = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_CUSTOM = "custom"
_CALLS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
"""For each type of call: the field with the call's text, and the name of this field in events."""
_LOGPROBS = "message.output_text.logprobs"
_PART_OF = {"reasoning": "reasoning_text", "message": "output_text"}


async def responses(http_request: HttpRequest) -> Response:
    """Answer POST /v1/responses."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: _read_item_call(body, served))
    answer = _Answer(call, body, served)
    if body.get("background"):
        return _begun(answer, served)
    return await answer_call(http_request, served, call, answer, NAMED)


async def retrieve(http_request: HttpRequest) -> Response:
    """Answer GET /v1/responses/{id}."""
    return json_answer(_stored(http_request))


async def delete(http_request: HttpRequest) -> Response:
    """Answer DELETE /v1/responses/{id}."""
    name = _stored(http_request)["id"]
    served_by(http_request).responses.delete(name)
    return json_answer({"id": name, "object": "response", "deleted": True})


async def cancel(http_request: HttpRequest) -> Response:
    """Answer POST /v1/responses/{id}/cancel. A response that has ended stays as it is."""
    document, stored = _stored(http_request), served_by(http_request).responses
    if stored.cancel(document["id"]):
        document = {**document, "status": "cancelled"}
        stored.put(document)
    return json_answer(document)


def _stored(http_request: HttpRequest) -> Mapping[str, Any]:
    """Return the stored response that the request's path names. Raises RefusalError."""
    name = http_request.path_params["name"]
    document = served_by(http_request).responses.get(name)
    if document is None:
        raise RefusalError(f"response {name!r} is not stored", status=404, param="response_id")
    return document


def _begun(answer: _Answer, served: Served) -> Response:
    """Begin a response in the background, and answer with the queued response. Raises RefusalError."""
    document = answer.queued()
    served.responses.make(document["id"], answer.made())
    served.responses.put(document)
    return json_answer(document)


def _read_item_call(body: dict[str, Any], served: Served) -> ItemCall:
    body = hold_against_schema(body, "responses-request")
    previous = body.get("previous_response_id")
    before = served.responses.conversation(previous) if previous else []
    if before is None:
        raise RefusalError(
            f"previous_response_id {previous!r} is not stored; send its input and output again",
            status=404,
            param="previous_response_id",
        )
    if body.get("background"):
        _refuse_background(body, served)
    wants, top = _LOGPROBS in (body.get("include") or ()), body.get("top_logprobs")
    if top and not wants:
        raise RefusalError(
            f"top_logprobs is {top}, and include asks for no logprobs; put {_LOGPROBS} into it",
            param="top_logprobs",
        )
    functions = [
        as_function(tool)
        if tool["type"] == _CUSTOM
        else {name: tool.get(name) for name in ("name", "description", "parameters", "strict")}
        for tool in body.get("tools") or ()
    ]
    choice = body.get("tool_choice") or "auto"
    effort = (body.get("reasoning") or {}).get("effort")
    return read_item_call(
        body,
        served,
        prefix="resp_",
        conversation=[*of_input([], body.get("instructions")), *before, *of_input(body["input"])],
        functions=functions,
        tool_choice={"function": choice} if isinstance(choice, dict) else choice,
        budget=body.get("max_output_tokens"),
        thinks=None,
        chat={
            "reasoning_effort": effort,
            "parallel_tool_calls": body.get("parallel_tool_calls"),
            "response_format": (body.get("text") or {}).get("format"),
        },
        top_logprobs=(top or 0) if wants else None,
    )


def _refuse_background(body: Mapping[str, Any], served: Served) -> None:
    """Raise RefusalError if a response cannot be made in the background."""
    if body.get("store") is False:
        raise RefusalError(
            "background is true and store is false, so that nobody could retrieve the response; leave out "
            "store",
            param="background",
        )
    if body.get("stream") or served.disaggregation is not None:
        why = "one of two servers that share requests" if served.disaggregation else "a stream"
        raise RefusalError(f"background is not supported for {why}; leave it out", param="background")


@dataclass
class _Item:
    """One item of the output, with the text that was written so far."""

    kind: str
    index: int
    name: str | None = None
    id: str = ""
    call_id: str = field(default_factory=lambda: new_id("call"))
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    free: FreeInput = field(default_factory=FreeInput)

    def __post_init__(self) -> None:
        self.id = new_id(_ID_OF[self.kind])

    def add(self, text: str) -> str:
        """Add text of the channel; return the text that it adds to the item."""
        piece = self.free.push(text) if self.kind == "custom_tool_call" else text
        self.text += piece
        return piece

    def finish(self) -> str:
        """Return the text that the end of the channel adds to the item."""
        piece = self.free.finish() if self.kind == "custom_tool_call" else ""
        self.text += piece
        return piece

    @property
    def part(self) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": self.logprobs} if self.kind == "message" else {}
        return {"type": _PART_OF[self.kind], "text": self.text, **more}

    def written(self, status: str, *, opens: bool = False) -> dict[str, Any]:
        head = {"id": self.id, "type": self.kind, "status": status}
        match self.kind:
            case "function_call" | "custom_tool_call":
                return {**head, "call_id": self.call_id, "name": self.name, _CALLS[self.kind][0]: self.text}
            case "reasoning":
                return {**head, "summary": [], "content": [] if opens else [self.part]}
        return {**head, "role": "assistant", "content": [] if opens else [self.part]}


class _Answer:
    """Writes the items of one choice, all at once or event by event.

    An item is open until the next item begins.
    """

    def __init__(self, call: ItemCall, body: Mapping[str, Any], served: Served) -> None:
        self._call, self._body, self._served = call, body, served
        self._channels = call.channels_of_choice()
        self._created = int(time.time())
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._last: Emission | None = None
        self._number = 0
        self._custom = {tool["name"] for tool in body.get("tools") or () if tool["type"] == _CUSTOM}
        self._scored: list[dict[str, Any]] = []
        """The logprobs of tokens whose text has not been written yet."""

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        return self._store(self._whole(choices))

    def _whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        [choice] = choices
        for delta in self._channels.consume(choice):
            self._item_of(delta).add(delta.text)
        for item in self._items:
            item.finish()
        self._last = choice
        if self._open is not None and choice.record.return_logprob:
            self._open.logprobs = content_entries(choice, self._call.tokenizer)
        return self._ended()

    def of(self, emission: Emission) -> Iterator[Event]:
        if emission.first:
            yield self._event("response.created", response=self._response("in_progress"))
            yield self._event("response.in_progress", response=self._response("in_progress"))
        self._last = emission
        if emission.record.return_logprob:
            self._scored += content_entries(emission, self._call.tokenizer)
        for delta in self._channels.consume(emission):
            before, item = self._open, self._item_of(delta)
            if item is not before:
                yield from self._close(before, "completed")
                yield from self._opened(item)
            if piece := item.add(delta.text):
                yield self._delta(item, piece)
        raise_for_server_abort([emission])

    def closing(self) -> Iterator[Event]:
        status = self._status()
        if self._scored and self._open is not None:
            # An empty delta carries the logprobs of tokens without text, such as the end-of-sequence token.
            yield self._delta(self._open, "")
        yield from self._close(self._open, status)
        yield self._event(f"response.{status}", response=self._store(self._ended()))

    def failed(self, refusal: RefusalError) -> Event:
        return self._event("response.failed", response=self._failed(refusal))

    def _failed(self, refusal: RefusalError) -> dict[str, Any]:
        error = {"code": "server_error", "message": refusal.message}
        return {**self._response("failed"), "error": error}

    def queued(self) -> dict[str, Any]:
        """Return the response before it begins."""
        return self._response("queued")

    async def made(self) -> None:
        """Generate and store the response without a client."""
        call, stored = self._call, self._served.responses
        stored.put(self._response("in_progress"))
        try:
            ended = await answer_later(self._served, call.requests, group=call.id, write=self._whole)
            self._store(ended)
        except Exception as error:
            if not isinstance(error, RefusalError):
                logger.exception("a response in the background failed")
            stored.put(self._failed(RefusalError.of_failure(error)))

    def _event(self, kind: str, **more: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **more}

    def _item_of(self, delta: Delta) -> _Item:
        """Return the item of a delta: the open one, or the next."""
        kind = _ITEM_OF[delta.channel]
        if kind == "function_call" and (delta.name or (self._open and self._open.name)) in self._custom:
            kind = "custom_tool_call"
        if self._open is None or delta.name is not None or self._open.kind != kind:
            self._open = _Item(kind, len(self._items), delta.name)
            self._items.append(self._open)
        return self._open

    def _place_of(self, item: _Item) -> dict[str, Any]:
        place = {"item_id": item.id, "output_index": item.index}
        return place if item.kind in _CALLS else {**place, "content_index": 0}

    def _opened(self, item: _Item) -> Iterator[Event]:
        """Yield the events that open an item, which has no text yet."""
        opened = item.written("in_progress", opens=True)
        yield self._event("response.output_item.added", output_index=item.index, item=opened)
        if item.kind not in _CALLS:
            yield self._event("response.content_part.added", **self._place_of(item), part=item.part)

    def _delta(self, item: _Item, text: str) -> Event:
        if item.kind in _CALLS:
            name = _CALLS[item.kind][1]
            return self._event(f"response.{name}.delta", **self._place_of(item), delta=text)
        more: dict[str, Any] = {}
        if item.kind == "message":
            more["logprobs"], self._scored = self._scored, []
            item.logprobs += more["logprobs"]
        return self._event(
            f"response.{_PART_OF[item.kind]}.delta", **self._place_of(item), delta=text, **more
        )

    def _close(self, item: _Item | None, status: str) -> Iterator[Event]:
        if item is None:
            return
        place = self._place_of(item)
        if piece := item.finish():
            yield self._delta(item, piece)
        if item.kind in _CALLS:
            held, name = _CALLS[item.kind]
            named = {"name": item.name} if item.kind == "function_call" else {}
            yield self._event(f"response.{name}.done", **place, **named, **{held: item.text})
        else:
            more = {"logprobs": item.logprobs} if item.kind == "message" else {}
            yield self._event(f"response.{_PART_OF[item.kind]}.done", **place, text=item.text, **more)
            yield self._event("response.content_part.done", **place, part=item.part)
        done = item.written(status)
        yield self._event("response.output_item.done", output_index=item.index, item=done)

    @property
    def _finish(self) -> FinishReason:
        finish = self._last.finish if self._last is not None else None
        assert finish is not None, "only what ended has a finish"
        return finish

    def _status(self) -> str:
        return "completed" if self._finish.type == "stop" else "incomplete"

    def _response(self, status: str) -> dict[str, Any]:
        call, body = self._call, self._body
        return {
            "id": call.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": bool(body.get("background")),
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": call.model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "store": body.get("store") is not False,
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "usage": None,
            "metadata": body.get("metadata") or {},
        }

    def _ended(self) -> dict[str, Any]:
        assert self._last is not None, "only what ended has a response"
        status = self._status()
        reason = {"length": "max_output_tokens"}.get(self._finish.type, self._finish.type)
        output = [item.written("completed") for item in self._items[:-1]]
        output += [item.written(status) for item in self._items[-1:]]
        return {
            **self._response(status),
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "output": output,
            "usage": self._usage(self._last),
        }

    def _store(self, document: dict[str, Any]) -> dict[str, Any]:
        """Store an ended response, unless the request has `store: false`.

        A later response does not inherit the instructions.
        """
        if self._body.get("store") is not False:
            instructed = self._body.get("instructions") is not None
            conversation = [*self._call.conversation[instructed:], *of_input(document["output"])]
            self._served.responses.put(document, conversation)
        return document

    def _usage(self, last: Emission) -> dict[str, Any]:
        consumed = Consumed.by([last], 1, self._channels.reasoning_tokens)
        return {
            "input_tokens": consumed.prompt,
            "input_tokens_details": {
                "cached_tokens": consumed.cached if self._served.args.enable_cache_report else 0
            },
            "output_tokens": consumed.completion,
            "output_tokens_details": {"reasoning_tokens": consumed.reasoning or 0},
            "total_tokens": consumed.prompt + consumed.completion,
        }
