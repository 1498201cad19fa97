"""A target that answers every request with the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read


@dataclass
class CannedSender:
    """Stands in for the recorder: whatever is sent, this comes back."""

    body: bytes = b"{}"
    status: int | None = 200
    content_type: str = "application/json"
    ending: Ending = Ending.COMPLETE
    detail: str = ""
    duration: float = 0.01

    def __post_init__(self) -> None:
        self.names: list[str] = []

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.names.append(name)
        return Exchange(
            name=name,
            request=request,
            scenario=scenario,
            status=self.status,
            headers=(("content-type", self.content_type),),
            reads=(Read(0.01, self.body),) if self.body else (),
            ending=self.ending,
            detail=self.detail,
            duration=self.duration,
            started=f"{len(self.names):06}",
        )


NULL_TARGETS = {
    "empty object": CannedSender(b"{}"),
    "empty list": CannedSender(b"[]"),
    "null": CannedSender(b"null"),
    "empty object as a stream": CannedSender(
        b"data: {}\n\ndata: [DONE]\n\n", content_type="text/event-stream"
    ),
    "instant end": CannedSender(b"data: [DONE]\n\n", content_type="text/event-stream"),
    "HTML": CannedSender(
        b"<!doctype html><html><body>Hello</body></html>", content_type="text/html; charset=utf-8"
    ),
    "not found": CannedSender(b'{"detail":"Not Found"}', status=404),
    "wants credentials": CannedSender(b'{"detail":"Unauthorized"}', status=401),
    "broken": CannedSender(b"Internal Server Error", status=500, content_type="text/plain"),
    "hangs": CannedSender(b"", status=None, ending=Ending.TIMEOUT, duration=3.0),
    "hangs after the head": CannedSender(b"", ending=Ending.TIMEOUT, duration=3.0),
    "nothing there": CannedSender(b"", status=None, ending=Ending.UNREACHABLE, detail="connection refused"),
    "garbage": CannedSender(bytes(range(256)), content_type="application/octet-stream"),
    "empty body": CannedSender(b""),
    "empty choices": CannedSender(b'{"choices":[],"meta_info":{}}'),
}
"""Targets that must never earn a PASS."""
