"""Foreign captures: one JSON object for each line and exchange, as other recorders write them.

Each line holds `name`, `server{name,version,flags}`, `request{method,path,headers,body}` and
`response{status,headers,complete,body{text|base64}}`; the arrival of the chunks stands in
`http_chunks_ms_len` (milliseconds and bytes) or in `http_chunk_sizes` and `recv_s_len` (bytes; seconds and
bytes with the framing). The flags are a list or one command line; a `note` may be anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenwire.wire.capture import (
    CaptureChunk,
    Located,
    capture_chunks,
    chunks,
    exchanges_of,
    header_of,
    name_of,
    seconds_of,
    server_of,
    status_of,
    text_of,
)
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read, Server
from tokenwire.wire.inert import inert
from tokenwire.wire.json_lines import CaptureError, value_of
from tokenwire.wire.redaction import Headers, redact, redact_headers


def _headers(headers: Mapping[str, str] | Sequence[Any]) -> Headers:
    """Headers as a mapping, as pairs, or as whole header lines."""
    pairs: list[tuple[str, str]] = []
    for entry in headers.items() if isinstance(headers, Mapping) else headers:
        if isinstance(entry, str):
            name, _, value = entry.partition(":")
            pairs.append((name.strip(), value.strip()))
        else:
            name, value = entry
            pairs.append(header_of(name, value))
    return tuple(pairs)


def _arrivals(response: Mapping[str, Any], size: int) -> list[tuple[float, int]]:
    """Time in seconds and length of each piece of the body; one piece where the lengths do not tell."""
    if "http_chunks_ms_len" in response:
        arrivals = [(ms / 1000, length) for ms, length in response["http_chunks_ms_len"]]
    else:
        last = max((time for time, _ in response.get("recv_s_len", ())), default=0.0)
        arrivals = [(last, length) for length in response.get("http_chunk_sizes", ())]
    if sum(length for _, length in arrivals) != size:
        arrivals = [(max((time for time, _ in arrivals), default=0.0), size)]
    return arrivals


def _server(reported: Mapping[str, Any]) -> Server:
    flags = reported.get("flags")
    return server_of({**reported, "flags": flags.split()} if isinstance(flags, str) else reported)


def _exchange(line: Mapping[str, Any], scenario: str) -> Exchange:
    request, response, server = line["request"], line["response"], line.get("server", {})
    body = response["body"]
    data = base64.b64decode(body["base64"]) if "base64" in body else text_of(body, "text").encode()
    reads: list[Read] = []
    position = 0
    for time, length in _arrivals(response, len(data)):
        if length:
            reads.append(Read(seconds_of(time), data[position : position + length]))
            position += length
    raw = request.get("body_is_raw_text", False)
    note = line.get("note")
    note = inert(note) if isinstance(note, str) else ""
    status = status_of(response["status"]) if response["status"] else None
    if status is None:
        ending = Ending.UNREACHABLE
    elif response.get("complete", True):
        ending = Ending.COMPLETE
    elif note.startswith("client closed"):
        ending = Ending.CANCELLED
    else:
        ending = Ending.TRUNCATED
    return Exchange(
        name=name_of(line, "name"),
        request=redact(
            HttpRequest(
                text_of(request, "method"),
                text_of(request, "path"),
                None if raw else request.get("body"),
                request["body"].encode() if raw else None,
                _headers(request.get("headers", {})),
            )
        ),
        scenario=scenario,
        status=status,
        headers=redact_headers(_headers(response["headers"])),
        reads=tuple(reads),
        ending=ending,
        detail=""
        if ending is Ending.COMPLETE
        else note or "the capture says that the answer is not complete",
        duration=reads[-1].time if reads else 0.0,
        server=_server(server),
    )


def _exchanges(chunk: CaptureChunk) -> Iterator[Located]:
    """Those of a foreign capture; its file's name is their scenario. A last line that was cut off is left
    out.
    """
    for line in chunk.lines():
        try:
            exchange = _exchange(value_of(line.data), chunk.span.path.name.split(".")[0])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not line.complete:
                return
            raise CaptureError(
                f"{chunk.span.path}, line {line.number}: "
                f"not an exchange with name, request and response: {error!r}"
            ) from error
        yield Located(exchange, chunk.part(line.number, line.start, line.stop))


def _after_every_line(_lines: bytearray, _start: int, end: int) -> int:
    return end


def foreign_chunks(path: Path) -> Iterator[CaptureChunk]:
    """The exchanges of a foreign capture, plain or gzipped, as they are in its file."""
    return chunks(path, _after_every_line, _exchanges)


def any_chunks(path: Path) -> Iterator[CaptureChunk]:
    """The exchanges of a capture of either form, told apart by the first line."""
    first = next(next(foreign_chunks(path)).lines(), None)
    is_ours = first is not None and b'"kind"' in first.data and b'"response"' not in first.data
    return capture_chunks(path) if is_ours else foreign_chunks(path)


def read_foreign_capture(path: Path) -> Iterator[Exchange]:
    """The exchanges of a foreign capture, in its order.

    Raises CaptureError for a complete line that is not such an exchange, OSError for a file that cannot be
    read.
    """
    return exchanges_of(foreign_chunks(path))


def read_any_capture(path: Path) -> Iterator[Exchange]:
    """The exchanges of a capture of either form."""
    return exchanges_of(any_chunks(path))
