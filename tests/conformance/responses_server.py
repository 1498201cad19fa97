"""An OpenAI-compatible server that has `/v1/responses` too, or only a part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from item_answers import events, message, response
from openai_server import COMPLETIONS, OpenAIServer, text_of

from tokenwire.wire.exchange import HttpRequest

RESPONSES = "/v1/responses"
Lacks = Literal["", "endpoint", "implementation", "tools", "streams"]
_OF_CHAT = ("model", "temperature", "top_p", "stream")


def _refusal(status: int, message: str) -> tuple[int, str, bytes]:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return status, "application/json", json.dumps({"error": error}).encode()


@dataclass
class ResponsesServer(OpenAIServer):
    """Answers responses with what completions of the same words say."""

    lacks: Lacks = ""

    def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
        body = request.body
        if request.path != RESPONSES or request.method != "POST" or self.lacks == "endpoint":
            return super()._answer(request)
        if self.lacks == "implementation":
            return _refusal(501, "responses are not implemented")
        if not isinstance(body, dict) or request.raw_body is not None:
            return super()._answer(HttpRequest("POST", COMPLETIONS, body, raw_body=request.raw_body))
        if type(body.get("stream", False)) is not bool:
            return _refusal(400, f"Invalid value for stream: {body['stream']!r:.80}")
        for name, value in (("tools", "tools"), ("stream", "streams")):
            if body.get(name) and self.lacks == value:
                return _refusal(400, f"{name}: {value} are not supported")
        return self._respond(body)

    def _respond(self, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
        known = {"input", "max_output_tokens", "store", "tools", *_OF_CHAT}
        if unknown := next((name for name in body if name not in known), None):
            return _refusal(400, f"Unknown parameter: {unknown}")
        turns = body.get("input")
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
            return _refusal(400, f"Invalid value for input: {turns!r:.80}")
        asked = {name: body[name] for name in _OF_CHAT if name in body and name != "stream"}
        asked["prompt"] = " ".join(text_of(turn) for turn in turns)
        asked |= {"max_tokens": body["max_output_tokens"]} if "max_output_tokens" in body else {}
        status, kind, data = super()._answer(HttpRequest("POST", COMPLETIONS, asked))
        if status != 200:
            return status, kind, data
        answer = json.loads(data)
        (choice,), usage = answer["choices"], answer["usage"]
        cut = "incomplete" if choice["finish_reason"] == "length" else "completed"
        name = f"resp_{next(self._seeds)}"
        item = message(choice["text"], cut, name.replace("resp", "msg"))
        counts = dict(zip(("input_tokens", "output_tokens", "total_tokens"), usage.values(), strict=True))
        if not body.get("stream"):
            whole = {**response(item, status=cut, name=name), "model": answer["model"], "usage": counts}
            return 200, "application/json", json.dumps(whole).encode()
        written = events(item, status=cut)
        for event in (written[0], written[-1]):
            event["response"] |= {"id": name, "model": answer["model"]}
        written[-1]["response"]["usage"] = counts
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in written)
        return 200, "text/event-stream", "".join(lines).encode()
