"""An exchange: one request and its response, with all bytes of the body."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

BUSY = (429, 503)
"""Statuses of a server that currently has no capacity for a request."""


class Ending(StrEnum):
    """The ways in which an exchange can end, as seen on the connection."""

    COMPLETE = "complete"
    """The body ended as HTTP specifies."""
    TRUNCATED = "truncated"
    """The connection ended before the end of the body."""
    TIMEOUT = "timeout"
    """The exchange reached its time limit."""
    UNREACHABLE = "unreachable"
    """The connection failed, or did not deliver an HTTP response."""
    CANCELLED = "cancelled"
    """The suite closed the exchange because the run ended."""
    OUTGROWN = "outgrown"
    """The suite closed the connection because the body exceeded the size limit. The body is not parsed."""
    HUNG_UP = "hung-up"
    """The suite closed the connection on purpose, like a client that no longer wants the answer."""

    @property
    def ours(self) -> bool:
        """True if the suite ended the exchange, so that its end is not a fault of the server."""
        return self in {Ending.CANCELLED, Ending.HUNG_UP, Ending.OUTGROWN, Ending.TIMEOUT}


@dataclass(frozen=True, slots=True)
class Read:
    """One read from the connection."""

    time: float
    """Seconds since the request was sent, on a monotonic clock."""
    data: bytes


_WORTH_PACKING = 16 << 10
"""The size in bytes from which a body is compressed.

Most data of a run is in bodies larger than this. The events in such bodies are repetitive, so the bodies
shrink to a twelfth of their size.
"""


class PackedReads(Sequence[Read]):
    """Reads whose bytes are compressed, because they are seldom needed after an answer was parsed."""

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
    """The method and path of a request, without its headers and body."""

    method: str
    path: str


@dataclass(frozen=True)
class HttpRequest(RequestHead):
    """A request as it was sent."""

    body: Any = None
    """The JSON value of the body. None if there is no body."""
    raw_body: bytes | None = None
    """The body as it was sent, if it differs from the JSON that this suite writes for `body`."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Server:
    """Facts about the server that are known from outside of the exchange."""

    name: str = ""
    version: str = ""
    flags: tuple[str, ...] = ()


def as_started(seconds: float) -> str:
    """Return a time in seconds since the Unix epoch in the format of `started`.

    It has the same precision as durations. With milliseconds, requests that follow each other would sometimes
    seem to overlap.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def exchange_name(scenario: str, label: str, dialect: str = "") -> str:
    """Return the name of an exchange. If the request uses no dialect, the name contains none."""
    return f"{dialect}/{scenario}/{label}" if dialect else f"{scenario}/{label}"


def dialect_and_label(name: str, scenario: str) -> tuple[str, str]:
    """Split a name from `exchange_name` into dialect and label.

    A name from another recorder is treated as a label without a dialect.
    """
    dialect, between, label = name.partition(f"/{scenario}/")
    return (dialect, label) if between else ("", name.removeprefix(f"{scenario}/"))


class ExchangeHead:
    """The facts about an exchange, without its headers and bodies."""

    name: str
    """The name of the exchange, which is unique in a capture.

    The suite names its own exchanges with `exchange_name`.
    """
    request: RequestHead
    scenario: str
    """The scenario of the request.

    For a capture from another recorder, it is the name of the capture file.
    """
    status: int | None
    ending: Ending
    detail: str
    """A description of the reason why the exchange did not complete."""
    duration: float
    """Seconds from the sending of the request to the end of the exchange."""
    started: str
    """The time at which the request was sent, in UTC and ISO 8601 format."""
    server: Server

    @property
    def size(self) -> int:
        """The size of the response body in bytes."""
        raise NotImplementedError

    @property
    def last_read(self) -> float | None:
        """The time of the last bytes of the body. None if there were no bytes."""
        raise NotImplementedError

    def load(self) -> Exchange:
        """Return the exchange with headers and bodies; see `record.Answer.load`."""
        raise NotImplementedError

    @property
    def named_dialect(self) -> str:
        """The dialect in the name of the exchange. Empty if the name has none."""
        return dialect_and_label(self.name, self.scenario)[0]

    @property
    def label(self) -> str:
        """The part of the name by which exchanges of the same scenario and dialect differ."""
        return dialect_and_label(self.name, self.scenario)[1]

    @property
    def busy(self) -> bool:
        """True if the server had no capacity for the request. The request itself may be correct."""
        return self.status in BUSY


@dataclass(frozen=True)
class Exchange(ExchangeHead):
    """One request and its response.

    The repr shows only the name, because asyncio logs the repr of the result of `asyncio.run`.
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
        """Return the first `size` bytes of the body, or the whole body if it is shorter."""
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
        """Return the first value of a response header.

        The name is compared without regard to upper and lower case.
        """
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)
