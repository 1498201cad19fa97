"""An exchange: one request and its response, byte for byte."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

BUSY = (429, 503)
"""Statuses of a server that lacks capacity for a request now."""


class Ending(StrEnum):
    """Endings of an exchange, as seen on the connection."""

    COMPLETE = "complete"
    """The body ended as HTTP defines."""
    TRUNCATED = "truncated"
    """The connection ended in the middle of the body."""
    TIMEOUT = "timeout"
    """The time limit for one exchange was reached."""
    UNREACHABLE = "unreachable"
    """The connection failed, or delivered no HTTP response."""
    CANCELLED = "cancelled"
    """The run ended, so the suite closed the exchange."""
    OUTGROWN = "outgrown"
    """The body exceeded the size limit, so the suite closed the connection; the body is not parsed."""
    HUNG_UP = "hung-up"
    """The suite closed the connection on purpose, as a client does that lost interest."""

    @property
    def ours(self) -> bool:
        """True if the suite ended the exchange, so that the target is not to blame."""
        return self in {Ending.CANCELLED, Ending.HUNG_UP, Ending.OUTGROWN, Ending.TIMEOUT}


@dataclass(frozen=True, slots=True)
class Read:
    """One read from the connection."""

    time: float
    """Seconds since the request was sent, on a monotonic clock."""
    data: bytes


_WORTH_PACKING = 16 << 10
"""Bytes from which a body is compressed. Most bytes of a run are in larger bodies, whose repetitive events
shrink to a twelfth.
"""


class PackedReads(Sequence[Read]):
    """Reads with compressed bytes, because they are seldom needed after an answer was parsed."""

    __slots__ = ("_packed", "_sizes", "times")

    def __init__(self, reads: Sequence[Read]) -> None:
        self.times = array("d", (read.time for read in reads))
        self._sizes = array("q", (len(read.data) for read in reads))
        self._packed = zlib.compress(b"".join(read.data for read in reads), zlib.Z_BEST_SPEED)

    @property
    def body(self) -> bytes:
        return zlib.decompress(self._packed)

    @property
    def size(self) -> int:
        return sum(self._sizes)

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Read]:
        body, end = self.body, 0
        for time, size in zip(self.times, self._sizes, strict=True):
            start, end = end, end + size
            yield Read(time, body[start:end])

    def __reversed__(self) -> Iterator[Read]:
        return reversed(tuple(self))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


@dataclass(frozen=True)
class RequestHead:
    """A request without headers and body."""

    method: str
    path: str


@dataclass(frozen=True)
class HttpRequest(RequestHead):
    """A request as it was sent."""

    body: Any = None
    """The JSON value of the body; None without a body."""
    raw_body: bytes | None = None
    """The body as sent, if it is not JSON as this suite writes it."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Server:
    """Facts about the server from outside the exchange."""

    name: str = ""
    version: str = ""
    flags: tuple[str, ...] = ()


def as_started(seconds: float) -> str:
    """Format a time in seconds since the epoch for `started`.

    It has the precision of durations. With milliseconds, consecutive requests would sometimes seem to
    overlap.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def exchange_name(scenario: str, label: str, dialect: str = "") -> str:
    """Return the name of an exchange of the suite, without a dialect if the request uses none."""
    return f"{dialect}/{scenario}/{label}" if dialect else f"{scenario}/{label}"


def dialect_and_label(name: str, scenario: str) -> tuple[str, str]:
    """Split a name of `exchange_name` into dialect and label. A name of another recorder is all label."""
    dialect, between, label = name.partition(f"/{scenario}/")
    return (dialect, label) if between else ("", name.removeprefix(f"{scenario}/"))


class ExchangeHead:
    """An exchange without its headers and bodies."""

    name: str
    """A name that is unique in a capture; the suite's own exchanges use `exchange_name`."""
    request: RequestHead
    scenario: str
    """The scenario of the request; for a capture of unknown origin, the file's name."""
    status: int | None
    ending: Ending
    detail: str
    """The reason why the exchange did not complete, in words."""
    duration: float
    """Seconds from sending the request to the ending."""
    started: str
    """The UTC time of the request, ISO 8601."""
    server: Server

    @property
    def size(self) -> int:
        """Bytes of the response body."""
        raise NotImplementedError

    @property
    def last_read(self) -> float | None:
        """The time of the last bytes; None without any."""
        raise NotImplementedError

    def load(self) -> Exchange:
        """Return the exchange with headers and bodies; see `record.Answer.load`."""
        raise NotImplementedError

    @property
    def named_dialect(self) -> str:
        """The dialect of the request, if the name contains it; else empty."""
        return dialect_and_label(self.name, self.scenario)[0]

    @property
    def label(self) -> str:
        """The part of the name that differs between exchanges of its scenario and dialect."""
        return dialect_and_label(self.name, self.scenario)[1]

    @property
    def busy(self) -> bool:
        """True if the server lacked capacity for the request, which does not make the request wrong."""
        return self.status in BUSY


@dataclass(frozen=True)
class Exchange(ExchangeHead):
    """One request and its response.

    The repr shows only the name, because asyncio writes the repr of the result of every `asyncio.run`.
    """

    name: str
    request: HttpRequest = field(repr=False)
    scenario: str
    status: int | None
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    reads: Sequence[Read] = field(repr=False)
    ending: Ending
    detail: str = ""
    duration: float = 0.0
    started: str = ""
    server: Server = field(default_factory=Server)

    def load(self) -> Exchange:
        return self

    @property
    def body(self) -> bytes:
        reads = self.reads
        return reads.body if isinstance(reads, PackedReads) else b"".join(read.data for read in reads)

    def packed(self) -> Exchange:
        """Return the exchange with compressed reads, if that saves memory."""
        return self if self.size < _WORTH_PACKING else replace(self, reads=PackedReads(self.reads))

    @property
    def size(self) -> int:
        if isinstance(self.reads, PackedReads):
            return self.reads.size
        return sum(len(read.data) for read in self.reads)

    def begin(self, size: int) -> bytes:
        """Return the first bytes of the body, or all of a shorter one."""
        begin = b""
        for read in self.reads:
            if len(begin) >= size:
                break
            begin += read.data
        return begin[:size]

    @property
    def last_read(self) -> float | None:
        if isinstance(self.reads, PackedReads):
            return self.reads.times[-1]
        return self.reads[-1].time if self.reads else None

    def header(self, name: str) -> str | None:
        """Return the first value of a response header; the case of its name does not matter."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)
