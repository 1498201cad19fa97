"""Overhearing: exchanges made from copies of the bytes of one connection.

Both directions are read by h11, each exchange anew, so one that was read badly spoils none before it. What
h11 cannot read is told as missed, and the connection is not listened to any longer; its traffic goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import h11

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.redaction import Headers, Mask, redact_body, redact_reads, redact_settings

_LARGEST_HEAD = 1 << 20


class Audience(Protocol):
    """Who is told of what was overheard."""

    def name(self) -> str:
        """A name for a new exchange, unique."""

    def began(self) -> None:
        """A request has come."""

    def over(self, exchange: Exchange | None) -> None:
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
    response: h11.Response | None = None
    reads: list[Read] = field(default_factory=list)
    answered_all: bool = False
    size: int = 0


def _headers(head: h11.Request | h11.Response) -> Headers:
    """All of them, in order and spelled as they came."""
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items())


class Overhearing:
    """The ear of one connection. `largest`: bytes of body of one exchange beyond which it is not kept."""

    def __init__(
        self, audience: Audience, *, largest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._audience = audience
        self._largest = largest
        self._clock = clock
        self._deaf = False
        self._client_left = False
        self._next(b"", b"")

    def _next(self, asked: bytes, answered: bytes) -> None:
        """Begin the next exchange, with the bytes of it that came already."""
        self._asking = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        self._answering = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._heard = _Heard()
        self._kept_back = False
        if asked:
            self.sent(asked)
        if answered:
            self.received(answered)

    def sent(self, data: bytes) -> None:
        self._try(self._hear_request, data)

    def received(self, data: bytes) -> None:
        self._try(self._hear_answer, data)

    def client_ended(self) -> None:
        self._client_left = True

    def target_ended(self) -> None:
        self._try(self._hear_end)

    def closed(self) -> None:
        self._try(self._hear_close)
        self._deaf = True

    def interrupt(self) -> None:
        """The watcher itself ends."""
        self._miss("watch-ended", only_open=True)

    def _try(self, hear: Callable[..., None], *data: bytes) -> None:
        if self._deaf:
            return
        try:
            hear(*data)
        except h11.ProtocolError:
            self._miss("unreadable")
        except Exception:  # whatever is wrong with our reading must not reach the traffic
            self._miss("reader-crashed")

    def _miss(self, reason: str, *, only_open: bool = False) -> None:
        """Stop listening to this connection."""
        if self._deaf:
            return
        self._deaf = True
        is_open = self._heard.request is not None
        if is_open:
            self._audience.over(None)
        if is_open or not only_open:
            self._audience.missed(reason)
        self._heard = _Heard()

    def _hear_request(self, data: bytes) -> None:
        heard = self._heard
        if heard.request is None and not heard.started:
            heard.began = self._clock()
            heard.started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._asking.receive_data(data)
        while not self._deaf:
            event = self._asking.next_event()
            if isinstance(event, h11.Request):
                heard.request = event
                self._answering.send(event)
                self._audience.began()
            elif isinstance(event, h11.Data):
                self._keep(heard, heard.body, bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                heard.asked_all = True
                if heard.answered_all:
                    self._complete()
                return
            else:  # more is needed, or the next request has come already
                return

    def _hear_answer(self, data: bytes) -> None:
        heard = self._heard
        self._answering.receive_data(data)
        while not self._deaf:
            event = self._answering.next_event()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    self._miss("upgraded")
            elif isinstance(event, h11.Response):
                heard.response = event
            elif isinstance(event, h11.Data):
                piece = bytes(event.data)
                if self._keep(heard, None, piece):
                    heard.reads.append(Read(self._clock() - heard.began, piece))
            elif isinstance(event, h11.EndOfMessage):
                heard.answered_all = True
                if heard.asked_all:
                    self._complete()
                return
            else:
                return

    def _hear_end(self) -> None:
        if self._heard.request is None or self._heard.answered_all:
            return
        try:
            self._hear_answer(b"")
        except h11.RemoteProtocolError as error:  # in the middle of an answer
            self._cut_off(str(error))

    def _hear_close(self) -> None:
        """Whatever is still open was not ended by HTTP."""
        if self._heard.request is None:
            return
        if self._heard.answered_all:
            self._finish(Ending.COMPLETE)
        else:
            self._cut_off("the connection was closed")

    def _keep(self, heard: _Heard, pieces: list[bytes] | None, piece: bytes) -> bool:
        heard.size += len(piece)
        if heard.size > self._largest:
            self._kept_back = True
            heard.body.clear()
            heard.reads.clear()
        elif pieces is not None:
            pieces.append(piece)
        return not self._kept_back

    def _complete(self) -> None:
        asked, _ = self._asking.trailing_data
        answered, _ = self._answering.trailing_data
        self._finish(Ending.COMPLETE)
        self._next(asked, answered)

    def _cut_off(self, why: str) -> None:
        """The exchange ended before its answer did: whose doing it was depends on who left first."""
        if self._client_left:
            self._finish(Ending.HUNG_UP, "the client left")
        elif self._heard.response is None:
            self._finish(Ending.UNREACHABLE, why)
        else:
            self._finish(Ending.TRUNCATED, why)
        self._deaf = True

    def _finish(self, ending: Ending, detail: str = "") -> None:
        heard, request = self._heard, self._heard.request
        assert request is not None
        self._heard = _Heard()
        if self._kept_back or not heard.asked_all:
            self._audience.over(None)
            self._audience.missed("too-large" if self._kept_back else "request-cut-off")
            return
        asked = HttpRequest(
            request.method.decode("latin-1"),
            request.target.decode("latin-1"),
            raw_body=b"".join(heard.body) or None,
            headers=_headers(request),
        )
        response, mask = heard.response, Mask.of(asked)
        by_name = redact_settings if request.method == b"GET" else redact_body
        self._audience.over(
            Exchange(
                name=self._audience.name(),
                request=mask.whole_request(asked),
                scenario="watch",
                status=response.status_code if response is not None else None,
                headers=mask.headers(_headers(response)) if response is not None else (),
                reads=redact_reads(heard.reads, by_name, mask.body),
                ending=ending,
                detail=mask.text(detail),
                duration=self._clock() - heard.began,
                started=heard.started,
            )
        )
