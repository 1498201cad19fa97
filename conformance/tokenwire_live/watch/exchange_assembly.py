"""Assembles exchanges from the recorded bytes of a connection.

h11 parses requests, and `AnswerReader` parses responses. If something cannot be parsed, the rest of the
connection is ignored and reported as a gap.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import h11

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, as_started, exchange_name
from tokenwire.wire.http_answer import AnswerReader, Piece
from tokenwire.wire.redaction import Headers, Mask, redact_body, redact_reads, redact_settings
from tokenwire_live.watch.spool import Kind, Record

SCENARIO = "watch"
"""The scenario name of exchanges that the proxy has seen."""
TOO_SLOW, ENDED = "judge-too-slow", "watch-ended"
LARGEST_HEAD = 1 << 20
_EACH_EXCHANGE, _EACH_READ = 4 << 10, 150
"""Estimated memory in bytes of an exchange and of a read, besides their data."""
_NO_REQUEST = h11.Request(method="GET", target="/", headers=[("host", "")])
"""A placeholder for the request, if a response comes before any request."""


class Receiver(Protocol):
    """Receives the exchanges of all connections.

    An exchange is identified by the position of its first record.
    """

    def finished(self, position: int, exchange: Exchange) -> None:
        """Receive an exchange that has ended, completely or not."""

    def missed(self, position: int, reason: str, *, exchange: bool) -> None:
        """Receive a gap, which is traffic that cannot be judged.

        `exchange`: True if it probably was an exchange.
        """


@dataclass
class Budget:
    """The memory that exchanges in progress may use."""

    most: int
    """The maximum number of bytes of all exchanges together."""
    largest: int
    """The maximum number of bytes of the bodies of one exchange."""
    taken: int = 0
    exchanges: int = 0
    """The number of exchanges in progress."""


class _Request:
    """A request, parsed by h11."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
        self.head: h11.Request | None = None
        self.body: list[bytes] = []
        self.over = False
        self.rest = b""
        """Bytes that came after the end of the request."""

    def feed(self, data: bytes) -> int:
        """Parse bytes from the client; return how many of them belong to the body.

        Raises h11.RemoteProtocolError.
        """
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
            else:  # The parser needs more data.
                return size


class _OpenExchange:
    """An exchange in progress."""

    def __init__(self) -> None:
        self.position = -1
        """The position of the exchange's first record; -1 before that record."""
        self.began = 0.0
        self.request = _Request()
        self.answer: AnswerReader | None = None
        """The parser of the response; None until the request head was parsed."""
        self.reads: list[Read] = []
        self.size = 0
        """The number of bytes of both bodies."""
        self.taken = 0
        """The number of bytes that this exchange has taken from the budget."""
        self.skipped = ""
        """The reason why the bytes of this exchange are only parsed and not stored; empty
        if they are stored.
        """

    def completed(self, ended: float, ending: Ending, detail: str) -> Exchange:
        """Return the finished exchange, with its credentials masked."""
        head = self.request.head
        assert head is not None
        request = HttpRequest(
            head.method.decode("latin-1"),
            head.target.decode("latin-1"),
            raw_body=b"".join(self.request.body) or None,
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
            started=as_started(time.time() - (time.monotonic() - self.began)),
        )


def _as_sent(head: h11.Request | h11.Response) -> Headers:
    """Return all headers in their original order and spelling."""
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items())


class ConnectionReader:
    """Parses the records of one connection, and passes on each finished exchange.

    lost: True if records are missing. Everything up to the next REQUEST record is then ignored.
    """

    def __init__(self, receiver: Receiver, budget: Budget, *, lost: bool = False) -> None:
        self._receiver = receiver
        self._budget = budget
        self._lost = lost
        self._stopped = False
        """True if the rest of the connection is ignored."""
        self._client_left = False
        self._open = _OpenExchange()
        self._finished: list[tuple[int, Exchange]] = []

    def take(self, record: Record) -> None:
        """Parse the next record. Exceptions of the receiver are raised."""
        if self._stopped:
            return
        try:
            self._take(record)
        except h11.ProtocolError:
            self._stop("unreadable")
        except Exception:  # a bug in our own code must not affect the other connections
            self._stop("reader-crashed")
        # This call is not within `try`, because exceptions of the receiver must be raised.
        while self._finished:
            self._receiver.finished(*self._finished.pop(0))

    def end(self) -> None:
        """End the connection, because the proxy stops."""
        if not self._stopped:
            if self._open.request.head is not None:
                self._report_missed(ENDED)
            self._stopped = True

    def _take(self, record: Record) -> None:
        kind = record.kind
        if kind is Kind.LOST:
            self._drop()
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

    def _drop(self) -> None:
        if self._open.request.head is not None:
            self._report_missed(TOO_SLOW)
        self._release()
        self._open, self._lost = _OpenExchange(), True

    def _sent(self, record: Record) -> None:
        exchange = self._begin(record)
        if exchange.request.over:
            self._keep_rest(exchange.request, record.data)
            return
        begun = exchange.request.head is not None
        exchange.size += (size := exchange.request.feed(bytes(record.data)))
        head = exchange.request.head
        if head is not None and not begun:
            self._budget.exchanges += 1
            size += _EACH_EXCHANGE
            if exchange.answer is not None:
                raise h11.RemoteProtocolError("a response came before its request")
            exchange.answer = AnswerReader(head, largest_head=LARGEST_HEAD)
        self._charge(size)
        self._finish_if_complete(record)

    def _received(self, record: Record) -> None:
        exchange = self._begin(record)
        # A server may send a response without a request: a 408 ends an idle connection.
        if exchange.answer is None:
            exchange.answer = AnswerReader(_NO_REQUEST, largest_head=LARGEST_HEAD)
        if exchange.answer.over:
            self._keep_rest(exchange.answer, record.data)
            return
        elapsed, size, count = record.time - exchange.began, 0, len(exchange.reads)
        for piece in exchange.answer.feed(record.data):
            size += len(piece)
            exchange.reads.append(Read(elapsed, bytes(piece)))
        exchange.size += size
        self._charge(size + _EACH_READ * (len(exchange.reads) - count))
        if exchange.answer.switched:
            self._stop("upgraded")
        else:
            self._finish_if_complete(record)

    def _begin(self, record: Record) -> _OpenExchange:
        """Return the exchange in progress. If the exchange has no records yet, it begins with this record."""
        exchange = self._open
        if exchange.position < 0:
            exchange.position, exchange.began = record.position, record.time
        return exchange

    def _keep_rest(self, ended: _Request | AnswerReader, data: Piece) -> None:
        """Store bytes of the next exchange that arrive before the current exchange has ended."""
        if len(ended.rest) + len(data) > self._budget.largest:
            self._stop("too-large")
        else:
            ended.rest += data

    def _charge(self, size: int) -> None:
        """Take bytes from the budget.

        If the budget is exhausted, the stored bytes of this exchange are dropped.
        """
        exchange, budget = self._open, self._budget
        if not exchange.skipped:
            if exchange.size > budget.largest:
                exchange.skipped = "too-large"
            elif budget.taken + size > budget.most:
                exchange.skipped = TOO_SLOW
            else:
                exchange.taken += size
                budget.taken += size
        if exchange.skipped:
            self._release()

    def _release(self) -> None:
        exchange = self._open
        exchange.request.body.clear()
        exchange.reads.clear()
        self._budget.taken -= exchange.taken
        exchange.taken = 0

    def _finish_if_complete(self, record: Record) -> None:
        """End the exchange if it is complete, and begin the next exchange with the remaining bytes."""
        exchange = self._open
        if exchange.answer is None or not (exchange.answer.over and exchange.request.over):
            return
        self._finish(record.time, Ending.COMPLETE)
        for kind, rest in ((Kind.SENT, exchange.request.rest), (Kind.RECEIVED, exchange.answer.rest)):
            if rest:
                # This position is within the current record, so no other exchange can have the same position.
                self._take(record._replace(position=exchange.position + 1, kind=kind, data=rest))

    def _target_ended(self, record: Record) -> None:
        exchange = self._open
        if exchange.request.head is None or exchange.answer is None or exchange.answer.over:
            return
        try:
            exchange.reads += [
                Read(record.time - exchange.began, piece) for piece in exchange.answer.feed(b"")
            ]
        except h11.RemoteProtocolError as error:  # the connection ended within a response
            self._cut_off(record.time, str(error))
        else:
            # A response without Content-Length ends with the connection.
            self._finish_if_complete(record)

    def _closed(self, record: Record) -> None:
        """End the exchange in progress, because the connection was closed."""
        exchange = self._open
        if exchange.request.head is not None:
            if exchange.answer is not None and exchange.answer.over:
                self._finish(record.time, Ending.COMPLETE)
            else:
                self._cut_off(record.time, "the connection was closed")
        self._release()
        self._stopped = True

    def _cut_off(self, ended: float, why: str) -> None:
        """End an exchange with an incomplete response. The side that closed first is the cause."""
        answer = self._open.answer
        # If the client disconnected first, the target is not to blame.
        if self._client_left:
            self._finish(ended, Ending.HUNG_UP, "the client left")
        elif answer is None or answer.head is None:
            self._finish(ended, Ending.UNREACHABLE, why)
        else:
            self._finish(ended, Ending.TRUNCATED, why)
        self._stopped = True

    def _finish(self, ended: float, ending: Ending, detail: str = "") -> None:
        exchange = self._open
        if exchange.skipped or not exchange.request.over:
            self._report_missed(exchange.skipped or "request-cut-off")
        else:
            self._finished.append((exchange.position, exchange.completed(ended, ending, detail)))
            self._next_exchange()

    def _next_exchange(self) -> None:
        """Prepare for the next exchange."""
        self._release()
        self._budget.exchanges -= 1
        self._open = _OpenExchange()

    def _report_missed(self, reason: str) -> None:
        self._receiver.missed(self._open.position, reason, exchange=True)
        self._next_exchange()

    def _stop(self, reason: str) -> None:
        """Ignore the rest of the connection."""
        self._stopped = True
        if self._open.request.head is not None:
            self._report_missed(reason)
        else:
            self._receiver.missed(self._open.position, reason, exchange=False)
            self._release()
