"""Hand-made calls to control endpoints, and streams that have their place in time."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stream_builder import with_exchange

from tokenwire.dialects.control import Action, ControlCall, Load, load_controls, read_call
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def clock(seconds: float) -> str:
    """The time of day so many seconds after the run began, as exchanges have it."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def sent_at(stream: Stream, seconds: float, duration: float = 1.0, *, scenario: str = "one") -> Stream:
    """The stream as one that was asked for at that time, and took so long."""
    return with_exchange(stream, started=clock(seconds), duration=duration, scenario=scenario)


def called(
    action: Action,
    seconds: float,
    *ids: str,
    status: int = 200,
    load: Load | None = None,
    everything: bool = False,
    version: str = "",
    effect: str = "",
    name: str = "sglang-generate/one/call",
) -> ControlCall:
    """A call that was answered ten milliseconds after it was sent."""
    exchange = Exchange(
        name,
        HttpRequest("POST", "/abort_request"),
        "one",
        status,
        (),
        (),
        Ending.COMPLETE,
        duration=0.01,
        started=clock(seconds),
    )
    flushes = action is Action.FLUSH
    return ControlCall(exchange, action, frozenset(ids), everything, effect, flushes, version, load)


def abort(seconds: float, *ids: str, status: int = 200, everything: bool = False) -> ControlCall:
    return called(Action.ABORT, seconds, *ids, status=status, everything=everything)


def without_ids(status: int) -> ControlCall:
    """An abort without the ids that its family requires."""
    return replace(called(Action.ABORT, 0.6, status=status), lacks_ids=True)


def load_report(seconds: float, live: int, used_tokens: int | None = None) -> ControlCall:
    """A load that the server told of."""
    return called(Action.LOAD, seconds, load=Load(live, used_tokens))


def of_response(
    action: Action, seconds: float, document: dict[str, Any], *, status: int = 200, **body: Any
) -> ControlCall:
    """A request for the stored response in the answer, or, with a body, the request that begins it."""
    request = load_controls()["openai"].response_request(action, str(document.get("id")))
    if action is Action.BEGIN:
        request = HttpRequest("POST", "/v1/responses", body)
    assert request is not None
    return _answered(f"openai-responses/one/{action}", request, document, status, seconds)


def posted(
    path: str, body: dict[str, Any], document: Any, *, status: int = 200, seconds: float = 5
) -> ControlCall:
    """A request to a path that is beside the answers, as the tables of all families know it."""
    name = f"one/{path.rpartition('/')[2]}-{seconds}"
    return _answered(name, HttpRequest("POST", path, body), document, status, seconds)


def asked_for(path: str, document: Any, *, status: int = 200, seconds: float = 5) -> ControlCall:
    """A GET request to a path that is beside the answers."""
    return _answered(f"one/state-{seconds}", HttpRequest("GET", path), document, status, seconds)


def _answered(name: str, request: HttpRequest, document: Any, status: int, seconds: float) -> ControlCall:
    exchange = Exchange(
        name,
        request,
        "one",
        status,
        (),
        (Read(0.01, json.dumps(document).encode()),),
        Ending.COMPLETE,
        duration=0.01,
        started=clock(seconds),
    )
    call = read_call(exchange)
    assert call is not None
    return call
