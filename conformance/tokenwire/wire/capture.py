"""Captures: exchanges on disk.

Captures are written as the data arrives, and can be read even if they are cut off. A capture file is JSON
Lines, plain or gzipped, with one or more exchanges. Each exchange has a `request` line, a `response` line (if
the response head arrived), a `read` line for each read, and an `end` line (`spec/schemas/exchange.json`).
Credentials in headers and URLs are written without their values. If a response repeats the value of a
credential, the value is replaced before anything is written (see `redaction`). Prompts and other content are
written unchanged.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast
from urllib.parse import quote

from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server
from tokenwire.wire.inert import inert
from tokenwire.wire.json_lines import CaptureError, demand_short, pieces, value_of
from tokenwire.wire.redaction import Headers, redact, redact_headers

FORMAT = 1
JsonLine = Mapping[str, Any]


def _bytes_to_json(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _bytes_from_json(line: JsonLine) -> bytes:
    if "base64" in line:
        return base64.b64decode(_text_of(line, "base64"), validate=True)
    return _text_of(line, "text").encode()


def _text_of(line: JsonLine, member: str) -> str:
    """Return a member that must be a string. Raises TypeError for another type."""
    value = line[member]
    if not isinstance(value, str):
        raise TypeError(f"{member} is {value!r}, not a text")
    return value


def _name_of(line: JsonLine, member: str) -> str:
    """Return a name from a capture, with control characters escaped. Raises TypeError if it is
    not a string.
    """
    return inert(_text_of(line, member))


def seconds_of(value: Any) -> float:
    """Return a time in seconds. Raises TypeError if the value is not a number of at least 0."""
    if type(value) not in {int, float} or not 0 <= value < math.inf:
        raise TypeError(f"{value!r} is not a number of seconds")
    return float(value)


def status_of(value: Any) -> int:
    """Return an HTTP status code. Raises TypeError for any other value."""
    if type(value) is not int or not 100 <= value <= 999:
        raise TypeError(f"{value!r} is not a status")
    return value


def _header_of(name: Any, value: Any) -> tuple[str, str]:
    """Return a header. Raises TypeError if a value is not a string."""
    if not (isinstance(name, str) and isinstance(value, str)):
        raise TypeError(f"the header {name!r}: {value!r} is not a pair of strings")
    return name, value


def _request_line(
    name: str, scenario: str, request: HttpRequest, started: str, server: Server
) -> dict[str, Any]:
    request = redact(request)
    line: dict[str, Any] = {
        "kind": "request",
        "format": FORMAT,
        "name": name,
        "scenario": scenario,
        "started": started,
        "server": {"name": server.name, "version": server.version, "flags": list(server.flags)},
        "method": request.method,
        "path": request.path,
        "headers": [list(pair) for pair in request.headers],
    }
    if request.raw_body is not None:
        line["raw_body"] = _bytes_to_json(request.raw_body)
    elif request.body is not None:
        line["body"] = request.body
    return line


def _response_line(status: int, headers: Headers) -> dict[str, Any]:
    return {"kind": "response", "status": status, "headers": [list(pair) for pair in redact_headers(headers)]}


def _read_line(read: Read) -> dict[str, Any]:
    return {"kind": "read", "time": read.time, **_bytes_to_json(read.data)}


def _end_line(ending: Ending, detail: str, duration: float) -> dict[str, Any]:
    return {"kind": "end", "time": duration, "ending": ending.value, "detail": detail}


def exchange_lines(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """Yield the lines of an exchange as JSON values, without the values of credentials."""
    yield _request_line(exchange.name, exchange.scenario, exchange.request, exchange.started, exchange.server)
    if exchange.status is not None:
        yield _response_line(exchange.status, exchange.headers)
    yield from map(_read_line, exchange.reads)
    yield _end_line(exchange.ending, exchange.detail, exchange.duration)


class ExchangeWriter:
    """Writes one exchange to an open file, line by line.

    Each line is flushed before the next line is written.
    """

    def __init__(
        self, file: BinaryIO, *beneath: BinaryIO, on_loss: Callable[[OSError], object] | None = None
    ) -> None:
        """Write to a file.

        `beneath`: files that must be closed after `file`, because closing `file` leaves them open. `on_loss`:
        a function that is called if a write fails; nothing is written after the failure. Without `on_loss`,
        OSError is raised.
        """
        self._file = file
        self._beneath = beneath
        self._on_loss = on_loss
        self._lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(
        self,
        name: str,
        scenario: str,
        request: HttpRequest,
        *,
        started: str = "",
        server: Server | None = None,
    ) -> None:
        """Write the request, which is the first line of every exchange."""
        self._write(_request_line(name, scenario, request, started, server or Server()))

    def response(self, status: int, headers: Headers) -> None:
        """Write the response head."""
        self._write(_response_line(status, headers))

    def read(self, read: Read) -> None:
        """Write some bytes of the response body."""
        self._write(_read_line(read))

    def end(self, ending: Ending, *, detail: str = "", duration: float = 0.0) -> None:
        """Write the end of the exchange."""
        self._write(_end_line(ending, detail, duration))

    def exchange(self, exchange: Exchange) -> None:
        """Write a whole exchange at once."""
        for line in exchange_lines(exchange):
            self._write(line)

    def close(self) -> None:
        for file in (self._file, *self._beneath):
            with self._losing():
                file.close()

    def _write(self, line: JsonLine) -> None:
        if not self._lost:
            with self._losing():
                data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii")
                self._file.write(data + b"\n")
                self._file.flush()

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._on_loss is None:
                raise
            if not self._lost:  # buffered data fails again when the file is closed
                self._lost = True
                self._on_loss(error)


class CaptureWriter:
    """A folder of captures, with one file for each exchange.

    The file of the exchange `generate/greedy-stream` is `generate/greedy-stream.jsonl` below the folder. With
    `compress`, it ends with `.jsonl.gz`.
    """

    def __init__(
        self, directory: Path, *, compress: bool = False, on_loss: Callable[[str], object] | None = None
    ) -> None:
        """Initialize with a folder.

        `on_loss`: a function that is called with a message if a write fails; nothing is written after the
        failure. Without `on_loss`, OSError is raised.
        """
        self._directory = directory
        self._suffix = ".jsonl.gz" if compress else ".jsonl"
        self._on_loss = on_loss
        self.lost = ""
        """The reason why writing stopped, as a sentence. Empty while writing works."""

    def open(self, name: str) -> ExchangeWriter:
        """Open a new file for the exchange with this name.

        Raises ValueError for a name that leads out of the folder, and FileExistsError if the file exists.
        """
        if any(part in {"", ".", ".."} for part in name.split("/")):
            raise ValueError(f"the exchange name {name!r} does not name a file; use words separated by '/'")
        path = self._directory / (quote(name, safe="/") + self._suffix)
        file = self._new_file(path)
        on_loss = self._lose if self._on_loss is not None else None
        if path.suffix == ".gz":
            # The gzip header has neither name nor time, so that equal exchanges make equal files.
            zipped = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
            return ExchangeWriter(cast(BinaryIO, zipped), file, on_loss=on_loss)
        return ExchangeWriter(file, on_loss=on_loss)

    def _new_file(self, path: Path) -> BinaryIO:
        try:
            if not self.lost:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Exclusive creation, so that no exchange overwrites another.
                return path.open("xb")
        except FileExistsError:
            raise
        except OSError as error:
            if self._on_loss is None:
                raise
            self._lose(error)
        return Path(os.devnull).open("wb")

    def _lose(self, error: OSError) -> None:
        if not self.lost and self._on_loss is not None:
            why = error.strerror or error
            self.lost = f"{self._directory} contains only some of the exchanges: {why}"
            self._on_loss(self.lost)


class Span(NamedTuple):
    """A range of lines in a capture.

    The lines contain whole exchanges, so they can be read without the lines around them.
    """

    path: Path
    number: int
    """The number of the first line, counted from 1."""
    offset: int
    """The number of bytes before the first line. For a gzipped file, unzipped bytes are counted."""
    size: int
    read: Callable[[CaptureChunk], Iterator[Located]]
    """The function that reads the exchanges of these lines."""


class Located(NamedTuple):
    """An exchange of a capture, and the place of its lines."""

    exchange: Exchange
    span: Span


class _Line(NamedTuple):
    """A line of a capture."""

    number: int
    start: int
    """The offset of the first byte within the span."""
    data: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.data)

    @property
    def complete(self) -> bool:
        """True if the line ends with a line break. Only the last line of a file may lack the line break."""
        return self.data.endswith(b"\n")


@dataclass(frozen=True)
class CaptureChunk:
    """The bytes of a span."""

    span: Span
    data: bytes

    def located(self) -> Iterator[Located]:
        """Yield the exchanges in the chunk. Raises CaptureError for a complete but invalid line."""
        return self.span.read(self)

    def lines(self) -> Iterator[_Line]:
        start = 0
        for number, data in enumerate(BytesIO(self.data), self.span.number):
            yield _Line(number, start, data)
            start += len(data)

    def part(self, number: int, start: int, stop: int) -> Span:
        """Return the span of some lines, given the number of the first line and the byte range."""
        return self.span._replace(number=number, offset=self.span.offset + start, size=stop - start)


Cut = Callable[[bytearray, int, int], int]
"""A function that returns the position between two line ends at which a chunk may end.

It returns 0 if the chunk must not end there.
"""


def chunks(path: Path, cut: Cut, read: Callable[[CaptureChunk], Iterator[Located]]) -> Iterator[CaptureChunk]:
    """Yield a plain or gzipped file in chunks of whole lines, in order. An empty file yields one chunk.

    A gzipped file that is cut off yields its readable lines. Raises CaptureError if a `.gz` file is not
    gzipped, and OSError if the file cannot be read.
    """
    number, offset, begun, looked = 1, 0, bytearray(), 0
    for piece in pieces(path):
        # A chunk contains only whole exchanges, because it is parsed without the other chunks.
        begun += piece
        complete = begun.rfind(b"\n", looked) + 1
        # The last exchange may be incomplete, so its lines stay in the buffer.
        if position := cut(begun, looked, complete):
            # A memoryview, because a slice of the bytearray would be copied twice.
            yield CaptureChunk(
                Span(path, number, offset, position, read), bytes(memoryview(begun)[:position])
            )
            number, offset = number + begun.count(b"\n", 0, position), offset + position
            del begun[:position]
        looked = max(looked, complete) - position
        demand_short(path, number, len(begun))
    yield CaptureChunk(Span(path, number, offset, len(begun), read), bytes(begun))


_KIND = re.compile(rb'"kind"\s*:\s*\Z')
_AS_LONG = 16
"""The number of bytes before a value in which the key of the value is searched.

If the key is further away, the line is not found, and the chunk gets larger.
"""


def _before_the_last_request(lines: bytearray, start: int, end: int) -> int:
    """Return the position of the last line that begins an exchange.

    Return 0 if there is no such line. The search cannot find text within a JSON string, because quotation
    marks are escaped there.
    """
    position = end
    while (position := lines.rfind(b'"request"', start, position)) >= 0:
        if _KIND.search(lines, max(position - _AS_LONG, 0), position):
            return max(start, lines.rfind(b"\n", start, position) + 1)
    return 0


class _Unfinished:
    """An exchange whose lines have not all arrived."""

    def __init__(self, line: JsonLine) -> None:
        self._name = _name_of(line, "name")
        self._scenario = _name_of(line, "scenario")
        self._started = _name_of(line, "started")
        self._server = _server_of(line["server"])
        self._request = HttpRequest(
            _text_of(line, "method"),
            _text_of(line, "path"),
            line.get("body"),
            _bytes_from_json(line["raw_body"]) if "raw_body" in line else None,
            _headers(line),
        )
        self._status: int | None = None
        self._headers: Headers = ()
        self._reads: list[Read] = []

    def take(self, line: JsonLine) -> Exchange | None:
        """Add a line. Return the exchange if this is its end line."""
        match line["kind"]:
            case "response":
                self._status, self._headers = status_of(line["status"]), _headers(line)
            case "read":
                self._reads.append(Read(seconds_of(line["time"]), _bytes_from_json(line)))
            case "end":
                ending = Ending(line["ending"])
                return self.finish(ending, _name_of(line, "detail"), seconds_of(line["time"]))
            case kind:
                raise ValueError(f"{kind!r} is not a kind of line; known are request, response, read and end")
        return None

    def finish(self, ending: Ending, detail: str, duration: float | None = None) -> Exchange:
        if duration is None:
            duration = self._reads[-1].time if self._reads else 0.0
        return Exchange(
            self._name,
            self._request,
            self._scenario,
            self._status,
            self._headers,
            tuple(self._reads),
            ending,
            detail,
            duration,
            self._started,
            self._server,
        )


def _headers(line: JsonLine) -> Headers:
    return tuple(_header_of(*pair) for pair in line["headers"])


def _server_of(reported: JsonLine) -> Server:
    """Return the server that a request line describes. Raises TypeError if a value is not a string."""
    name, version = (_name_of({member: "", **reported}, member) for member in ("name", "version"))
    flags = reported.get("flags", ())
    if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError(f"flags is {flags!r}, not a list of strings")
    return Server(name, version, tuple(map(inert, flags)))


def exchange_of(lines: Iterable[JsonLine]) -> Exchange:
    """Build an exchange from the lines that `exchange_lines` yields.

    Raises ValueError, KeyError, TypeError or AttributeError if the lines do not form one exchange.
    """
    first, *others = lines
    unfinished = _Unfinished(first)
    for line in others:
        if (exchange := unfinished.take(line)) is not None:
            return exchange
    raise ValueError("an exchange has no end line")


def _taken(unfinished: _Unfinished | None, line: JsonLine) -> Exchange | None:
    if unfinished is None:
        raise ValueError(f"a {line['kind']!r} line comes before any request line")
    return unfinished.take(line)


def read_capture(path: Path) -> Iterator[Exchange]:
    """Yield the exchanges of a capture file in order.

    An exchange without an end line gets the ending CANCELLED, because its recorder stopped. An incomplete
    last line is skipped. Raises CaptureError for a complete but invalid line, and OSError if the file cannot
    be read.
    """
    return exchanges_of(capture_chunks(path))


def exchanges_of(chunks: Iterable[CaptureChunk]) -> Iterator[Exchange]:
    """Yield the exchanges of chunks. Raises the same exceptions as `CaptureChunk.located`."""
    return (located.exchange for chunk in chunks for located in chunk.located())


def capture_chunks(path: Path) -> Iterator[CaptureChunk]:
    """Yield a capture file in chunks of whole exchanges."""
    return chunks(path, _before_the_last_request, _exchanges)


def _exchanges(chunk: CaptureChunk) -> Iterator[Located]:
    unfinished: _Unfinished | None = None
    first = _Line(chunk.span.number, 0, b"")
    cut_off = "the capture has no end line for this exchange"
    for line in chunk.lines():
        if not line.complete:
            cut_off = f"the capture was cut off in line {line.number}"
            break
        try:
            value = value_of(line.data)
            begun = _Unfinished(value) if value["kind"] == "request" else None
            exchange = None if begun else _taken(unfinished, value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(
                f"{chunk.span.path}, line {line.number}: not a line of a capture: {error!r}; "
                "see spec/schemas/exchange.json"
            ) from error
        if begun is not None:
            # A recorder writes the lines of an exchange together, so the recorder died before this exchange
            # ended.
            if unfinished is not None:
                span = chunk.part(first.number, first.start, line.start)
                yield Located(unfinished.finish(Ending.CANCELLED, cut_off), span)
            unfinished, first = begun, line
        elif exchange is not None:
            yield Located(exchange, chunk.part(first.number, first.start, line.stop))
            unfinished = None
    if unfinished is not None:
        span = chunk.part(first.number, first.start, len(chunk.data))
        yield Located(unfinished.finish(Ending.CANCELLED, cut_off), span)
