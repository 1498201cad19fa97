"""Exchanges put together from copies of the bytes of one connection.

Requests are read by h11, answers by our reader of answers, each exchange anew, so one that was read badly
spoils none before it. What they cannot read is reported as missed, and the rest of the connection is not
observed; its traffic goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, TypeVar

import h11

from tokenwire.watch.framing import LARGEST_HEAD, AnswerFollower, RequestFollower, read_request
from tokenwire.watch.room import LARGE, Intake, Kept, Room
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.http_answer import AnswerReader
from tokenwire.wire.redaction import Headers, Mask, redact_body, redact_reads, redact_settings

SCENARIO = "watch"
"""Stands for a scenario in what no scenario asked."""
_EACH = 4 << 10
"""Bytes that an exchange takes besides its bodies, or thereabouts."""
_END = b"\r\n\r\n"
"""What an answer in chunks ends in, and hardly any read before its last."""
_LONGEST_END = len(_END)
_MOST_UNREAD, _MOST_UNSEEN = 64 << 10, 256 << 10
"""Bytes that are looked at together: more of them would take too long at once."""


class Passed(NamedTuple):
    """An exchange as the traffic leaves it behind, all but its answer, and not read further than it took to
    tell where it ends: it still holds all credentials.
    """

    name: str
    request: bytes
    """Its head and its body, as they came."""
    ending: Ending
    detail: str
    began: float
    """When its first byte came, on the clock of the times of the reads."""
    duration: float
    """In seconds."""
    started: str


@dataclass(frozen=True)
class ObservedExchange:
    """An exchange that passed, and the reads of its answer, from its head on."""

    passed: Passed
    kept: Kept

    @property
    def size(self) -> int:
        """Bytes of the request and of the answer."""
        return len(self.passed.request) + self.kept.size

    @property
    def told_size(self) -> int:
        """Bytes that have to be told of it, as they do not lie in the room; thereabouts."""
        return len(self.passed.request) + self.kept.told_size


def read_exchange(passed: Passed, times: Sequence[float], reads: Iterable[bytes | memoryview]) -> Exchange:
    """An exchange with its answer read, and without the credentials in it. The judge's process does this
    before it judges and before it keeps anything: looking for them takes longer than passing bytes on.

    Raises h11.ProtocolError where one of the two cannot be read.
    """
    head, body = read_request(passed.request)
    reader = AnswerReader(head, largest_head=LARGEST_HEAD)
    pieces: list[Read] = []
    try:
        for at, data in zip(times, reads, strict=True):
            pieces += [Read(at - passed.began, bytes(piece)) for piece in reader.feed(data)]
        if not reader.over:
            list(reader.feed(b""))
    except h11.RemoteProtocolError:
        if passed.ending is Ending.COMPLETE:
            raise
    request = HttpRequest(
        head.method.decode("latin-1"),
        head.target.decode("latin-1"),
        raw_body=body or None,
        headers=_spelled(head),
    )
    mask = Mask.of(request)
    by_name = redact_settings if request.method == "GET" else redact_body
    return Exchange(
        name=passed.name,
        request=mask.whole_request(request),
        scenario=SCENARIO,
        status=None if reader.head is None else reader.head.status_code,
        headers=() if reader.head is None else mask.headers(_spelled(reader.head)),
        reads=redact_reads(pieces, by_name, mask.body),
        ending=passed.ending,
        detail=mask.text(passed.detail),
        duration=passed.duration,
        started=passed.started,
    )


def _spelled(head: h11.Request | h11.Response) -> Headers:
    """All of them, in order and spelled as they came."""
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers.raw_items())


T = TypeVar("T", bytes, bytes | memoryview)


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
    open: bool = False
    """Whether the audience knows of it: the head of the request has come."""
    answered_all: bool = False
    size: int = 0
    """Bytes of both bodies."""


class ExchangeAssembler:
    """Assembles the exchanges of one connection; one with more than `largest` bytes of body is not kept.

    Whatever passes is told with its time, in the order in which it came. It reads no more of that than where
    it ends. intake: where the answers land.
    """

    def __init__(self, audience: Audience, room: Room, intake: Intake, *, largest: int) -> None:
        self._audience = audience
        self._room = room
        self._intake = intake
        self._largest = largest
        self._stopped = False
        self._client_left = False
        self._unread: list[bytes] = []
        """Reads that were gathered, and not looked at yet."""
        self._unread_size = 0
        self._unseen_from = self._unseen_to = 0
        """Where in the room reads lie that were not looked at yet."""
        self._gathers = False
        """Whether what comes next is most likely in the middle of a stream."""
        self._next(0.0, b"", b"")

    def _next(self, at: float, asked: bytes, answered: bytes) -> None:
        """Begin the next exchange, with the bytes of it that came already."""
        self._asking = RequestFollower()
        self._answering: AnswerFollower | None = None
        self._heard = _Heard()
        self._kept_back = ""
        self._kept = Kept(self._room)
        self._gathers = False
        self._intake.begin(self._kept)
        if asked:
            self.sent(at, asked)
        if answered:
            self.received(at, answered)

    def gathered(self, at: float, data: bytes) -> bool:
        """Put a read in the middle of a stream aside, which takes next to nothing; false where it has to be
        looked at.
        """
        size = self._unread_size + len(data)
        if (
            not self._gathers
            or self._unseen_from < self._unseen_to
            or size > _MOST_UNREAD
            or data.endswith(_END)
            or not _LONGEST_END <= len(data) < LARGE
        ):
            return False
        self._unread_size = size
        self._unread.append(data)
        self._kept.times.append(at)
        return True

    def landed(self, at: float, data: memoryview) -> bool:
        """The same for a read that landed in the room."""
        size, end = len(data), self._intake.landed_at
        if (
            not self._gathers
            or end != self._unseen_to + size  # it lies behind the one before
            or end > self._unseen_from + _MOST_UNSEEN
            or size < _LONGEST_END
            or data[-_LONGEST_END:] == _END
        ):
            return False
        self._unseen_to = end
        self._kept.lengths.append(size)
        self._kept.times.append(at)
        return True

    def sent(self, at: float, data: bytes) -> None:
        self._try(self._hear_request, at, data)

    def received(self, at: float, data: bytes | memoryview) -> None:
        """A view is one of where the intake said that the read may land."""
        self._try(self._hear_answer, at, data)

    def client_ended(self, _at: float, _: bytes) -> None:
        self._client_left = True

    def target_ended(self, at: float, _: bytes) -> None:
        self._try(self._hear_end, at, b"")

    def closed(self, at: float, _: bytes) -> None:
        self._try(self._hear_close, at, b"")
        self._stopped = True

    def interrupt(self, at: float, _: bytes) -> None:
        """The watcher itself ends."""
        self._try(self._look, at, b"")
        self._miss("watch-ended", only_open=True)

    def _try(self, hear: Callable[[float, T], None], at: float, data: T) -> None:
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
        self._forget()
        is_open = self._heard.open
        if is_open:
            self._audience.over(None)
        if is_open or not only_open:
            self._audience.missed(reason)
        self._heard = _Heard()

    def _forget(self) -> None:
        """Keep nothing of what came, and nothing of what comes."""
        self._gathers = False
        self._unread.clear()
        self._unread_size = 0
        self._unseen_from = self._unseen_to
        self._kept.give_back()
        self._intake.begin(None)

    def _hear_request(self, at: float, data: bytes) -> None:
        self._look(at)
        if self._stopped:
            return
        heard = self._heard
        if not heard.started:
            heard.began = at
            heard.started = datetime.now(UTC).isoformat(timespec="milliseconds")
        asking = self._asking
        if asking.over:
            asking.feed(data)  # the next request has come already
            return
        size = asking.feed(data)
        heard.size += size
        if asking.begun and not heard.open:
            heard.open = True
            if self._answering is not None:
                raise h11.RemoteProtocolError("an answer came before what it answers")
            self._answering = AnswerFollower(asking)
            self._audience.began()
            size += _EACH
        if heard.size > self._largest:
            self._keep_back("too-large")
        if self._kept_back:
            asking.raw.clear()
        elif size and not self._kept.hold(size):
            self._keep_back("judge-too-slow")
        if asking.over and heard.answered_all:
            self._complete(at)

    def _hear_answer(self, at: float, data: bytes | memoryview) -> None:
        self._look(at)
        if not self._stopped:
            self._keep(at, data)
            self._read(at, data)

    def _keep(self, at: float, data: bytes | memoryview) -> None:
        """Keep one read, unless it is of an answer that is not kept."""
        kept = self._kept
        if self._kept_back:
            return
        size = len(data)
        end = self._intake.landed_at if isinstance(data, memoryview) else 0
        if end:
            kept.lie(end - size, end)
            self._unseen_from = self._unseen_to = end
        elif kept.hold(size):
            kept.stretches.append(bytes(data))
            if size >= LARGE:
                self._intake.open()
        else:
            self._keep_back("judge-too-slow")
            return
        kept.lengths.append(size)
        kept.times.append(at)

    def _look(self, at: float, _: bytes = b"") -> None:
        """Read what was put aside; it is all of one answer, unless that ended in the middle of a read."""
        kept, start, end = self._kept, self._unseen_from, self._unseen_to
        if start < end:
            self._unseen_from = end
            kept.lie(start, end)
            self._count(at, self._follower().feed(self._room.memory[start:end]))
        elif self._unread:
            unread, self._unread, self._unread_size = self._unread, [], 0
            data = b"".join(unread)
            kept.lengths += map(len, unread)
            kept.stretches.append(data)
            if not kept.hold(len(data)):
                self._keep_back("judge-too-slow")
            self._count(at, self._follower().feed_all(unread, data))

    def _follower(self) -> AnswerFollower:
        if self._answering is None:
            self._answering = AnswerFollower(None)
        return self._answering

    def _read(self, at: float, data: bytes | memoryview) -> None:
        """Read on to the end of the answer. No bytes: the target has ended it."""
        self._count(at, self._follower().feed(data))

    def _count(self, at: float, size: int) -> None:
        """So much more of a body was read; it may have been the last of an answer."""
        heard, reader = self._heard, self._follower()
        heard.size += size
        if heard.size > self._largest and not self._kept_back:
            self._keep_back("too-large")
        if reader.switched:
            self._miss("upgraded")
        elif reader.over:
            self._gathers = False
            if not heard.answered_all:
                heard.answered_all = True
                if self._asking.over:
                    self._complete(at)
        else:
            self._gathers = reader.streams and not self._kept_back

    def _hear_end(self, at: float, _: bytes) -> None:
        self._look(at)
        if self._stopped or not self._heard.open or self._heard.answered_all:
            return
        try:
            self._read(at, b"")
        except h11.RemoteProtocolError as error:  # in the middle of an answer
            self._cut_off(at, str(error))

    def _hear_close(self, at: float, _: bytes) -> None:
        """Whatever is still open was not ended by HTTP."""
        self._look(at)
        if self._stopped:
            return
        if not self._heard.open:
            self._forget()
        elif self._heard.answered_all:
            self._finish(at, Ending.COMPLETE)
        else:
            self._cut_off(at, "the connection was closed")

    def _keep_back(self, reason: str) -> None:
        """Keep nothing of this exchange: its traffic is only followed."""
        self._kept_back = self._kept_back or reason
        self._asking.raw.clear()
        self._forget()

    def _complete(self, at: float) -> None:
        asked = self._asking.rest
        answered = self._answering.rest if self._answering is not None else b""
        self._finish(at, Ending.COMPLETE)
        self._next(at, asked, answered)

    def _cut_off(self, at: float, why: str) -> None:
        """The exchange ended before its answer did: whose doing it was depends on who left first."""
        if self._client_left:
            self._finish(at, Ending.HUNG_UP, "the client left")
        elif self._answering is None or not self._answering.begun:
            self._finish(at, Ending.UNREACHABLE, why)
        else:
            self._finish(at, Ending.TRUNCATED, why)
        self._stopped = True

    def _finish(self, at: float, ending: Ending, detail: str = "") -> None:
        heard = self._heard
        self._heard = _Heard()
        self._gathers = False
        if self._kept_back or not self._asking.over:
            self._forget()
            self._audience.over(None)
            self._audience.missed(self._kept_back or "request-cut-off")
            return
        self._intake.begin(None)
        passed = Passed(
            self._audience.name(),
            b"".join(self._asking.raw),
            ending,
            detail,
            heard.began,
            at - heard.began,
            heard.started,
        )
        self._kept.store()
        self._audience.over(ObservedExchange(passed, self._kept))
