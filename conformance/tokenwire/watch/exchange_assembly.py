"""Exchanges put together from the records of one connection.

Requests are read by h11, answers by our reader of answers, each exchange anew, so one that was read badly
spoils none before it. What they cannot read is reported as missed, and the rest of the connection is ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import h11

from tokenwire.watch.spool import Kind, Record
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, exchange_name
from tokenwire.wire.http_answer import AnswerReader, Piece
from tokenwire.wire.redaction import Headers, Mask, redact_body, redact_reads, redact_settings

SCENARIO = "watch"
"""Stands for a scenario in what no scenario asked."""
TOO_SLOW, ENDED = "judge-too-slow", "watch-ended"
LARGEST_HEAD = 1 << 20
_EACH_EXCHANGE, _EACH_READ = 4 << 10, 150
"""Bytes that an exchange and a read take besides their data, or thereabouts."""
_NO_REQUEST = h11.Request(method="GET", target="/", headers=[("host", "")])
"""What an answer is read by that comes before any request."""


class Audience(Protocol):
    """Receives the exchanges of all connections. Positions name what begins there."""

    def over(self, position: int, exchange: Exchange) -> None:
        """An exchange is over."""

    def missed(self, position: int, reason: str, *, exchange: bool) -> None:
        """Something passed that cannot be judged; whether that was an exchange, as far as can be seen."""


@dataclass
class Budget:
    """Bytes that exchanges may take that are under way."""

    most: int
    """Of all together."""
    largest: int
    """Of the bodies of one of them."""
    taken: int = 0
    exchanges: int = 0
    """How many are under way."""


class _Asked:
    """One request, read by h11."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
        self.head: h11.Request | None = None
        self.body: list[bytes] = []
        self.over = False
        self.rest = b""
        """What has come behind its end."""

    def feed(self, data: bytes) -> int:
        """How much of the body is in the next bytes of the client. Raises h11.RemoteProtocolError."""
        self._http.receive_data(data)
        size = 0
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self.head = event
            elif isinstance(event, h11.Data):
                self.body.append(bytes(event.data))
                size += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.over, self.rest = True, self._http.trailing_data[0]
                return size
            else:  # more is needed
                return size


class _UnderWay:
    """One exchange, as far as its records have come."""

    def __init__(self) -> None:
        self.position = -1
        """That of its first record; negative while there is none."""
        self.began = 0.0
        self.asked = _Asked()
        self.answer: AnswerReader | None = None
        """There is one as soon as the head of the request has come."""
        self.reads: list[Read] = []
        self.size = 0
        """Bytes of both bodies."""
        self.taken = 0
        """Bytes of the budget."""
        self.skipped = ""
        """Why nothing of it is kept; it is read to its end."""

    def exchange(self, ended: float, ending: Ending, detail: str) -> Exchange:
        """The whole exchange, without the credentials in it."""
        head = self.asked.head
        assert head is not None
        request = HttpRequest(
            head.method.decode("latin-1"),
            head.target.decode("latin-1"),
            raw_body=b"".join(self.asked.body) or None,
            headers=_as_sent(head),
        )
        mask = Mask.of(request)
        by_name = redact_settings if request.method == "GET" else redact_body
        answer = None if self.answer is None else self.answer.head
        return Exchange(
            name=exchange_name(SCENARIO, f"{self.position:012}"),
            request=mask.whole_request(request),
            scenario=SCENARIO,
            status=None if answer is None else answer.status_code,
            headers=() if answer is None else mask.headers(_as_sent(answer)),
            reads=redact_reads(self.reads, by_name, mask.body),
            ending=ending,
            detail=mask.text(detail),
            duration=ended - self.began,
            started=_on_the_clock(self.began),
        )


def _on_the_clock(at: float) -> str:
    """A monotonic time as one in UTC."""
    seconds = time.time() - (time.monotonic() - at)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _as_sent(head: h11.Request | h11.Response) -> Headers:
    """All headers, in order and spelled as they came."""
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items())


class ConnectionReader:
    """Reads the records of one connection, and gives each exchange to an audience once it is over.

    lost: its beginning is not known, and it is ignored up to the next REQUEST.
    """

    def __init__(self, audience: Audience, budget: Budget, *, lost: bool = False) -> None:
        self._audience = audience
        self._budget = budget
        self._lost = lost
        self._stopped = False
        """Whether the rest of the connection is ignored."""
        self._client_left = False
        self._now = _UnderWay()
        self._finished: list[tuple[int, Exchange]] = []

    def take(self, record: Record) -> None:
        """The next record. Raises nothing but what the audience raises."""
        if self._stopped:
            return
        try:
            self._take(record)
        except h11.ProtocolError:
            self._stop("unreadable")
        except Exception:  # whatever is wrong with our reading must not end all other connections
            self._stop("reader-crashed")
        while self._finished:  # out here, where a fault of the audience stays one
            self._audience.over(*self._finished.pop(0))

    def end(self) -> None:
        """The watcher itself has ended: no more records come."""
        if not self._stopped:
            if self._now.asked.head is not None:
                self._miss(ENDED)
            self._stopped = True

    def _take(self, record: Record) -> None:
        kind = record.kind
        if kind is Kind.LOST:
            self._lose()
        elif self._lost and kind is not Kind.REQUEST:
            self._stopped = kind is Kind.CLOSED
        elif kind is Kind.RECEIVED:
            self._received(record)
        elif kind is Kind.REQUEST or kind is Kind.SENT:
            self._lost = False
            self._sent(record)
        elif kind is Kind.CLIENT_ENDED:
            self._client_left = True
        elif kind is Kind.TARGET_ENDED:
            self._target_ended(record)
        elif kind is Kind.CLOSED:
            self._closed(record)

    def _lose(self) -> None:
        if self._now.asked.head is not None:
            self._miss(TOO_SLOW)
        self._forget()
        self._now, self._lost = _UnderWay(), True

    def _sent(self, record: Record) -> None:
        now = self._begun(record)
        if now.asked.over:
            self._keep_rest(now.asked, record.data)
            return
        begun = now.asked.head is not None
        now.size += (size := now.asked.feed(bytes(record.data)))
        head = now.asked.head
        if head is not None and not begun:
            self._budget.exchanges += 1
            size += _EACH_EXCHANGE
            if now.answer is not None:
                raise h11.RemoteProtocolError("an answer came before what it answers")
            now.answer = AnswerReader(head, largest_head=LARGEST_HEAD)
        self._keep(size)
        self._go_on(record)

    def _received(self, record: Record) -> None:
        now = self._begun(record)
        if now.answer is None:
            now.answer = AnswerReader(_NO_REQUEST, largest_head=LARGEST_HEAD)
        if now.answer.over:
            self._keep_rest(now.answer, record.data)
            return
        at, size, count = record.time - now.began, 0, len(now.reads)
        for piece in now.answer.feed(record.data):
            size += len(piece)
            now.reads.append(Read(at, bytes(piece)))
        now.size += size
        self._keep(size + _EACH_READ * (len(now.reads) - count))
        if now.answer.switched:
            self._stop("upgraded")
        else:
            self._go_on(record)

    def _begun(self, record: Record) -> _UnderWay:
        """The exchange that is under way, or begins with this record."""
        now = self._now
        if now.position < 0:
            now.position, now.began = record.position, record.time
        return now

    def _keep_rest(self, ended: _Asked | AnswerReader, data: Piece) -> None:
        """Bytes of the next exchange have come before this one is over."""
        if len(ended.rest) + len(data) > self._budget.largest:
            self._stop("too-large")
        else:
            ended.rest += data

    def _keep(self, size: int) -> None:
        """Take so many bytes of the budget, or keep nothing of this exchange."""
        now, budget = self._now, self._budget
        if not now.skipped:
            if now.size > budget.largest:
                now.skipped = "too-large"
            elif budget.taken + size > budget.most:
                now.skipped = TOO_SLOW
            else:
                now.taken += size
                budget.taken += size
        if now.skipped:
            self._forget()

    def _forget(self) -> None:
        now = self._now
        now.asked.body.clear()
        now.reads.clear()
        self._budget.taken -= now.taken
        now.taken = 0

    def _go_on(self, record: Record) -> None:
        """Go on with the next exchange where this one is over, with the bytes of it that came already."""
        now = self._now
        if now.answer is None or not (now.answer.over and now.asked.over):
            return
        self._finish(record.time, Ending.COMPLETE)
        for kind, rest in ((Kind.SENT, now.asked.rest), (Kind.RECEIVED, now.answer.rest)):
            if rest:
                self._take(record._replace(position=now.position + 1, kind=kind, data=rest))

    def _target_ended(self, record: Record) -> None:
        now = self._now
        if now.asked.head is None or now.answer is None or now.answer.over:
            return
        try:
            now.reads += [Read(record.time - now.began, piece) for piece in now.answer.feed(b"")]
        except h11.RemoteProtocolError as error:  # in the middle of an answer
            self._cut_off(record.time, str(error))
        else:
            self._go_on(record)

    def _closed(self, record: Record) -> None:
        """Whatever is still open was not ended by HTTP."""
        now = self._now
        if now.asked.head is not None:
            if now.answer is not None and now.answer.over:
                self._finish(record.time, Ending.COMPLETE)
            else:
                self._cut_off(record.time, "the connection was closed")
        self._forget()
        self._stopped = True

    def _cut_off(self, ended: float, why: str) -> None:
        """The exchange ended before its answer did: whose doing it was depends on who left first."""
        answer = self._now.answer
        if self._client_left:
            self._finish(ended, Ending.HUNG_UP, "the client left")
        elif answer is None or answer.head is None:
            self._finish(ended, Ending.UNREACHABLE, why)
        else:
            self._finish(ended, Ending.TRUNCATED, why)
        self._stopped = True

    def _finish(self, ended: float, ending: Ending, detail: str = "") -> None:
        now = self._now
        if now.skipped or not now.asked.over:
            self._miss(now.skipped or "request-cut-off")
        else:
            self._finished.append((now.position, now.exchange(ended, ending, detail)))
            self._leave()

    def _leave(self) -> None:
        """The exchange is over."""
        self._forget()
        self._budget.exchanges -= 1
        self._now = _UnderWay()

    def _miss(self, reason: str) -> None:
        self._audience.missed(self._now.position, reason, exchange=True)
        self._leave()

    def _stop(self, reason: str) -> None:
        """Ignore the rest of the connection."""
        self._stopped = True
        if self._now.asked.head is not None:
            self._miss(reason)
        else:
            self._audience.missed(self._now.position, reason, exchange=False)
            self._forget()
