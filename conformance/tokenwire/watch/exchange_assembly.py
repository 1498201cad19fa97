"""Exchanges put together from copies of the bytes of one connection.

Requests are read by h11, answers by our reader of answers, each exchange anew, so one that was read badly
spoils none before it. What they cannot read is reported as missed, and the rest of the connection is not
observed; its traffic goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import h11

from tokenwire.watch.room import Body, Room
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.http_answer import AnswerReader
from tokenwire.wire.redaction import Headers, Mask, redact_body, redact_reads, redact_settings

SCENARIO = "watch"
"""Stands for a scenario in what no scenario asked."""
_LARGEST_HEAD = 1 << 20
_UNASKED = h11.Request(method="GET", target="/", headers=[("host", "")])
"""What an answer is read by that comes before any request."""


@dataclass(frozen=True)
class ObservedExchange:
    """An exchange as the traffic leaves it behind, not read yet: it still holds all credentials, and its body
    lies in the room, not in its reads.
    """

    exchange: Exchange
    body: Body

    @property
    def size(self) -> int:
        """Bytes of both bodies."""
        return len(self.exchange.request.raw_body or b"") + sum(self.body.lengths)


def redacted(told: Exchange, times: Sequence[float], pieces: Sequence[bytes]) -> Exchange:
    """An exchange with its reads and without the credentials in it. The judge's process does this before it
    judges and before it keeps anything: looking for them takes longer than passing bytes on.
    """
    mask = Mask.of(told.request)
    by_name = redact_settings if told.request.method == "GET" else redact_body
    return replace(
        told,
        request=mask.whole_request(told.request),
        headers=mask.headers(told.headers),
        reads=redact_reads(tuple(map(Read, times, pieces)), by_name, mask.body),
        detail=mask.text(told.detail),
    )


class Audience(Protocol):
    """Receives the exchanges of a connection."""

    def name(self) -> str:
        """A name for a new exchange, unique."""

    def began(self) -> None:
        """A request has come."""

    def over(self, heard: ObservedExchange | None) -> None:
        """An exchange that began is over; None where it was missed."""

    def missed(self, reason: str) -> None:
        """Something passed that cannot be judged."""


@dataclass
class _Heard:
    """What was heard of one exchange so far."""

    began: float = 0.0
    started: str = ""
    request: h11.Request | None = None
    body: list[bytes] = field(default_factory=list)
    asked_all: bool = False
    answered_all: bool = False
    size: int = 0


def _headers(head: h11.Request | h11.Response) -> Headers:
    """All of them, in order and spelled as they came."""
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items())


class ExchangeAssembler:
    """Assembles the exchanges of one connection; one with more than `largest` bytes of body is not kept.

    Whatever passes is told with its time, in the order in which it came.
    """

    def __init__(self, audience: Audience, room: Room, *, largest: int) -> None:
        self._audience = audience
        self._room = room
        self._largest = largest
        self._stopped = False
        self._client_left = False
        self._next(0.0, b"", b"")

    def _next(self, at: float, asked: bytes, answered: bytes) -> None:
        """Begin the next exchange, with the bytes of it that came already."""
        self._asking: h11.Connection | None = None
        self._answering: AnswerReader | None = None
        self._heard = _Heard()
        self._kept_back = ""
        self._body = Body(self._room)
        if asked:
            self.sent(at, asked)
        if answered:
            self.received(at, answered)

    def sent(self, at: float, data: bytes) -> None:
        self._try(self._hear_request, at, data)

    def received(self, at: float, data: bytes) -> None:
        self._try(self._hear_answer, at, data)

    def client_ended(self, _at: float, _: bytes) -> None:
        self._client_left = True

    def target_ended(self, at: float, _: bytes) -> None:
        self._try(self._hear_end, at, b"")

    def closed(self, at: float, _: bytes) -> None:
        self._try(self._hear_close, at, b"")
        self._stopped = True

    def interrupt(self, _at: float, _: bytes) -> None:
        """The watcher itself ends."""
        self._miss("watch-ended", only_open=True)

    def _try(self, hear: Callable[[float, bytes], None], at: float, data: bytes) -> None:
        if self._stopped:
            return
        try:
            hear(at, data)
        except h11.ProtocolError:
            self._miss("unreadable")
        except Exception:  # whatever is wrong with our reading must not reach the traffic
            self._miss("reader-crashed")

    def _miss(self, reason: str, *, only_open: bool = False) -> None:
        """Stop observing this connection."""
        if self._stopped:
            return
        self._stopped = True
        self._body.give_back()
        is_open = self._heard.request is not None
        if is_open:
            self._audience.over(None)
        if is_open or not only_open:
            self._audience.missed(reason)
        self._heard = _Heard()

    def _hear_request(self, at: float, data: bytes) -> None:
        heard = self._heard
        if heard.request is None and not heard.started:
            heard.began = at
            heard.started = datetime.now(UTC).isoformat(timespec="milliseconds")
        asking = self._asking
        if asking is None:
            asking = self._asking = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        asking.receive_data(data)
        while not self._stopped:
            event = asking.next_event()
            if isinstance(event, h11.Request):
                heard.request = event
                if self._answering is not None:
                    raise h11.RemoteProtocolError("an answer came before what it answers")
                self._answering = AnswerReader(event, largest_head=_LARGEST_HEAD)
                self._audience.began()
                if not self._body.more():
                    self._keep_back("judge-too-slow")
            elif isinstance(event, h11.Data):
                heard.size += len(event.data)
                heard.body.append(bytes(event.data))
                if heard.size > self._largest:
                    self._keep_back("too-large")
            elif isinstance(event, h11.EndOfMessage):
                heard.asked_all = True
                if heard.answered_all:
                    self._complete(at)
                return
            else:  # more is needed, or the next request has come already
                return

    def _hear_answer(self, at: float, data: bytes) -> None:
        heard, reader = self._heard, self._answering
        if reader is None:
            reader = self._answering = AnswerReader(_UNASKED, largest_head=_LARGEST_HEAD)
        for piece in reader.feed(data):
            heard.size += len(piece)
            if self._kept_back:
                continue
            if heard.size > self._largest:
                self._keep_back("too-large")
            elif not self._body.add(at, piece):
                self._keep_back("judge-too-slow")
        if reader.switched:
            self._miss("upgraded")
        elif reader.over and not heard.answered_all:
            heard.answered_all = True
            if heard.asked_all:
                self._complete(at)

    def _hear_end(self, at: float, _: bytes) -> None:
        if self._heard.request is None or self._heard.answered_all:
            return
        try:
            self._hear_answer(at, b"")
        except h11.RemoteProtocolError as error:  # in the middle of an answer
            self._cut_off(at, str(error))

    def _hear_close(self, at: float, _: bytes) -> None:
        """Whatever is still open was not ended by HTTP."""
        if self._heard.request is None:
            self._body.give_back()
            return
        if self._heard.answered_all:
            self._finish(at, Ending.COMPLETE)
        else:
            self._cut_off(at, "the connection was closed")

    def _keep_back(self, reason: str) -> None:
        """Keep nothing of this exchange: its traffic is only followed."""
        self._kept_back = self._kept_back or reason
        self._heard.body.clear()
        self._body.give_back()

    def _complete(self, at: float) -> None:
        asked = self._asking.trailing_data[0] if self._asking is not None else b""
        answered = self._answering.rest if self._answering is not None else b""
        self._finish(at, Ending.COMPLETE)
        self._next(at, asked, answered)

    def _cut_off(self, at: float, why: str) -> None:
        """The exchange ended before its answer did: whose doing it was depends on who left first."""
        if self._client_left:
            self._finish(at, Ending.HUNG_UP, "the client left")
        elif self._answering is None or self._answering.head is None:
            self._finish(at, Ending.UNREACHABLE, why)
        else:
            self._finish(at, Ending.TRUNCATED, why)
        self._stopped = True

    def _finish(self, at: float, ending: Ending, detail: str = "") -> None:
        heard, request = self._heard, self._heard.request
        assert request is not None
        self._heard = _Heard()
        if self._kept_back or not heard.asked_all:
            self._body.give_back()
            self._audience.over(None)
            self._audience.missed(self._kept_back or "request-cut-off")
            return
        asked = HttpRequest(
            request.method.decode("latin-1"),
            request.target.decode("latin-1"),
            raw_body=b"".join(heard.body) or None,
            headers=_headers(request),
        )
        head = self._answering.head if self._answering is not None else None
        exchange = Exchange(
            name=self._audience.name(),
            request=asked,
            scenario=SCENARIO,
            status=head.status_code if head is not None else None,
            headers=_headers(head) if head is not None else (),
            reads=(),
            ending=ending,
            detail=detail,
            duration=at - heard.began,
            started=heard.started,
        )
        body = self._body
        body.times = [at - heard.began for at in body.times]
        self._audience.over(ObservedExchange(exchange, body))
