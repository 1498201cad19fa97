"""The seams on the HTTP side: applies faults to incoming bodies, and to outgoing answers and events."""

from __future__ import annotations

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenwire_faults.catalogue import NO_FAULT, find_fault
from tokenwire_faults.cutting import EVENTS, PATH, Cuts, after_a_cut
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.seams import use_seams
from tokenwire_reference.doors.errors import RefusalError, refusal_answer
from tokenwire_reference.doors.event_stream import NAMED, UNNAMED
from tokenwire_reference.doors.fault_package import HEADER
from tokenwire_reference.doors.json_answer import to_json
from tokenwire_reference.doors.served import Served


class FaultyWire:
    """Applies the fault that a request names, and cuts a stream when it is asked to.

    Other requests pass unchanged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cuts = Cuts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = Headers(scope=scope).get(HEADER) if scope["type"] == "http" else None
        if scope["type"] == "http" and scope["path"] == PATH:
            await self._cuts.answer(scope, receive, send)
            return
        if name is None and not self._cuts.due:
            await self._app(scope, receive, send)
            return
        served: Served = scope["app"].state.served
        try:
            known = find_fault(name) if name is not None else NO_FAULT
        except ValueError as error:
            refused = refusal_answer(scope["path"], RefusalError(str(error)), served.args.api_dialect)
            await refused(scope, receive, send)
            return
        fault = Fault(known, scope["path"], served.tokenizer)
        use_seams(fault)
        # Without extensions, all parts of a stream pass through this middleware.
        scope.pop("extensions", None)
        await self._app(scope, await _faulty_receive(fault, receive), _FaultySend(fault, send, self._cuts))


async def _faulty_receive(fault: Fault, receive: Receive) -> Receive:
    """Read the whole body.

    Return a function that first gives the application the changed body, and then passes later messages
    unchanged.
    """
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return receive
        body, more = body + message.get("body", b""), message.get("more_body", False)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        fault.request = orjson.loads(body)
        body = orjson.dumps(fault.asked(value))
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return waiting.pop() if waiting else await receive()

    return give


class _FaultySend:
    """Sends the changed answer: a JSON body as a whole, a stream event by event."""

    def __init__(self, fault: Fault, send: Send, cuts: Cuts) -> None:
        self._fault = fault
        self._send = send
        self._cuts = cuts
        self._cut = self._over = False
        self._start: Message = {}
        self._body = b""
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            media_type = headers.get("content-type", "")
            self._is_stream = media_type.startswith("text/event-stream")
            if media_type:
                headers["content-type"] = self._fault.media_type(media_type)
            self._start = {**message, "headers": headers.raw}
            if self._is_stream:
                self._cut = self._cuts.take()
                await self._send(self._start)
        elif self._is_stream:
            await self._stream(message)
        else:
            await self._answer(message)

    async def _stream(self, message: Message) -> None:
        *events, self._body = (self._body + message.get("body", b"")).split(b"\n\n")
        for event in events:
            if self._over:
                return
            for frame in self._frames(event + b"\n\n"):
                for written in self._fault.frame(frame):
                    await self._send({"type": "http.response.body", "body": written, "more_body": True})
            if self._cut and self._fault.frames >= EVENTS:
                ending = b"".join(self._fault.cut(after_a_cut(named=event.startswith(b"event:"))))
                await self._send({"type": "http.response.body", "body": ending, "more_body": False})
                self._over = True
        if self._over:
            return
        if not message.get("more_body", False):
            await self._send({"type": "http.response.body", "body": self._body, "more_body": False})

    def _frames(self, frame: bytes) -> list[bytes]:
        *named, data = frame.removesuffix(b"\n\n").split(b"\n")
        try:
            event = orjson.loads(data.removeprefix(b"data: "))
        except orjson.JSONDecodeError:
            return [frame]
        values = self._fault.event(event)
        if not named:
            return [UNNAMED.event(value) for value in values]
        # Faults write error events without a type, so the type is added for endpoints with named events.
        return [NAMED.event({"type": "error", **value}) for value in values]

    async def _answer(self, message: Message) -> None:
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        try:
            status, answer = self._fault.answered(self._start["status"], orjson.loads(self._body))
        except orjson.JSONDecodeError:
            status, answer = self._start["status"], self._body
        body = answer if isinstance(answer, bytes) else to_json(answer)
        MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
        await self._send({**self._start, "status": status})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
