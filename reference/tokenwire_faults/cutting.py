"""Cuts: the reference plays a gateway whose worker breaks off, and faults of such a gateway."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tokenwire_faults.acts import DONE, act_at
from tokenwire_faults.answers import Object, choices_of, holder_of_finish
from tokenwire_faults.fault import Fault
from tokenwire_reference.doors.event_stream import NAMED, UNNAMED

PATH = "/tokenwire/cut"
EVENTS = 2
"""The number of events of a stream before its cut."""


class Cuts:
    """Notes if the next stream is to be cut, and counts the cuts.

    `POST` to PATH asks for a cut, and `DELETE` ends the request. Both are answered with the number of cuts.
    """

    def __init__(self) -> None:
        self.due = False
        self._made = 0

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.due = scope["method"] == "POST"
        await JSONResponse({"cuts": self._made})(scope, receive, send)

    def take(self) -> bool:
        """True if this stream is to be cut."""
        due, self.due = self.due, False
        self._made += due
        return due


def after_a_cut(*, named: bool) -> list[bytes]:
    """Return the framed events with which a gateway ends a stream whose worker broke off."""
    error = {"error": {"message": "the worker broke off", "type": "server_error", "code": 502}}
    return [NAMED.event({"type": "error", **error})] if named else [UNNAMED.event(error), DONE]


@act_at("cut")
def _cut_looks_complete(frames: list[bytes]) -> Iterable[bytes]:
    """Write the end mark only, or nothing at an endpoint without an end mark."""
    return [frame for frame in frames if frame == DONE]


@act_at("cut")
def _cut_is_passed_on() -> Iterable[bytes]:
    raise ConnectionAbortedError("cut off by the fault cut-is-passed-on")


@act_at("event", "cut-finishes-with-stop")
def _remember(fault: Fault, event: Object) -> None:
    fault.memory["event"] = deepcopy(event)


@act_at("cut")
def _cut_finishes_with_stop(fault: Fault, frames: list[bytes]) -> Iterable[bytes]:
    """Write the last event again, with a finish reason."""
    event = fault.memory["event"]
    for choice in choices_of(event):
        holder = holder_of_finish(choice)
        holder["finish_reason"] = {"type": "stop"} if "meta_info" in choice else "stop"
    return [UNNAMED.event(event), *(frame for frame in frames if frame == DONE)]
