"""Hand-made calls to control endpoints, and streams that have their place in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stream_builder import with_exchange

from tokenwire.dialects.control import Action, ControlCall, Load
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

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


def load_report(seconds: float, live: int, used_tokens: int | None = None) -> ControlCall:
    """A load that the server told of."""
    return called(Action.LOAD, seconds, load=Load(live, used_tokens))
