"""Compares the statuses of two answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tokenwire.checks.reading.fields import start_place
from tokenwire.checks.reading.json_fields import fields_of
from tokenwire.judging.failure_kind import lasting_words
from tokenwire.record import Stream
from tokenwire.report.wording import cut, value
from tokenwire.wire.exchange import Ending, Exchange
from tokenwire_twin.difference import Difference, Gravity, Pair, body_of

NO_ANSWER = "no answer"
_OK = 200
_BROKEN = 500
_NOT_BUILT = 501
_LONGEST_REASON = 120
_LONGEST_REQUEST = 240


def _reason(stream: Stream) -> str:
    """Return the error message of a refusal, or the way in which a connection ended without an answer."""
    if stream.exchange.status is None:
        return _no_answer(stream.exchange)
    error = stream.error
    found = [
        held
        for path, held in fields_of(error)
        if path.rpartition("/")[2] in {"message", "detail", "msg"} and isinstance(held, str)
    ]
    words = found[0] if found else stream.exchange.body[:_LONGEST_REASON].decode(errors="replace")
    return " ".join(words.split())


def _no_answer(exchange: Exchange) -> str:
    """Describe how a connection ended without an answer."""
    match exchange.ending:
        case Ending.TIMEOUT:
            return f"the time limit was reached after {exchange.duration:.0f} s"
        case Ending.UNREACHABLE:
            return "the connection failed"
        case _:
            return "the connection was closed"


def _request_line(stream: Stream) -> str:
    """Return the method and the path of a request, and the names of its fields."""
    request = stream.exchange.request
    body = body_of(request)
    fields = f" with {', '.join(body)}" if isinstance(body, dict) and body else ""
    return cut(f"{request.method} {request.path}{fields}", _LONGEST_REQUEST)


def _did(label: str, status: int | None) -> str:
    """Describe the answer of a side by its status."""
    if status == _OK:
        return f"{label} answers"
    if status is None:
        return f"{label} does not answer"
    return f"{label} {'fails' if _broken(status) else 'refuses'} with {status}"


def _broken(status: int | None) -> bool:
    """True if a status is a server error (5xx), or if there was no answer."""
    return status is None or (status >= _BROKEN and status != _NOT_BUILT)


def _answer_in_words(stream: Stream) -> str:
    status = stream.exchange.status
    return NO_ANSWER if status is None else str(status)


def status_differences(pair: Pair) -> Iterator[Difference]:
    sides = pair.first, pair.second
    words = pair.in_sides(*map(_answer_in_words, sides))
    refusing = [stream for stream in sides if stream.exchange.status != _OK]
    reason = _reason(refusing[-1])
    gravity = Gravity.ERRORS
    if len(refusing) == 1:
        gravity = Gravity.REFUSED_A if refusing[0] is pair.first else Gravity.REFUSED_B
    if _broken(sides[0].exchange.status) != _broken(sides[1].exchange.status):
        gravity = Gravity.FAILED
    lasting = cut(lasting_words(reason), _LONGEST_REASON)
    says = f"{words}: {lasting}" if lasting else words
    did = ", ".join(_did(*side) for side in zip(pair.names, (s.exchange.status for s in sides), strict=True))
    silent = refusing[-1].exchange.status is None
    speaker = pair.names[refusing[-1] is pair.second]
    quoted = value(reason) if silent else f"{speaker} says: {value(reason)}"
    message = f"{did}: {quoted}" if reason else did
    places = start_place(pair.first), start_place(pair.second)
    found = pair.differs(gravity, ("status", "", says), message, places)
    yield replace(found, request=_request_line(pair.first)) if gravity is Gravity.FAILED else found
