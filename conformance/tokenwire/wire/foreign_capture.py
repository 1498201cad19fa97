"""Foreign captures: the format of other recorders, with one exchange as a JSON object in each line.

Each line has `name`, `server{name,version,flags}`, `request{method,path,headers,body}` and
`response{status,headers,complete,body{text|base64}}`. The field `http_chunks_ms_len` has the arrival of the
chunks, as pairs of milliseconds and bytes. Older recordings have `http_chunk_sizes` (bytes) and `recv_s_len`
(pairs of seconds and bytes with framing). The flags are a list or one command line. A `note` may have any
value.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenwire.wire.capture import (
    CaptureChunk,
    JsonLine,
    Located,
    capture_chunks,
    chunks,
    exchange_of,
    seconds_of,
)
from tokenwire.wire.exchange import Ending, Exchange, Read
from tokenwire.wire.json_lines import CaptureError, value_of
from tokenwire.wire.redaction import Headers, redact, redact_headers


def _headers(headers: Mapping[str, str] | Sequence[Any]) -> Headers:
    """Return headers from an object, from pairs, or from header lines."""
    pairs: list[tuple[str, str]] = []
    for entry in headers.items() if isinstance(headers, Mapping) else headers:
        if isinstance(entry, str):
            name, _, value = entry.partition(":")
            pairs.append((name.strip(), value.strip()))
        else:
            name, value = entry
            pairs.append((name, value))
    return tuple(pairs)


def _arrivals(response: Mapping[str, Any], size: int) -> list[tuple[float, int]]:
    """Return the arrival time in seconds and the length of each piece of the body.

    If the lengths do not add up to the body's size, return one piece.
    """
    if "http_chunks_ms_len" in response:
        arrivals = [(ms / 1000, length) for ms, length in response["http_chunks_ms_len"]]
    else:
        last = max((time for time, _ in response.get("recv_s_len", ())), default=0.0)
        arrivals = [(last, length) for length in response.get("http_chunk_sizes", ())]
    if sum(length for _, length in arrivals) != size:
        arrivals = [(max((time for time, _ in arrivals), default=0.0), size)]
    return arrivals


def _reads(response: Mapping[str, Any]) -> Iterator[Read]:
    """Yield the pieces of the body, divided as they arrived."""
    body = response["body"]
    data = base64.b64decode(body["base64"]) if "base64" in body else str.encode(body["text"])
    position = 0
    for time, length in _arrivals(response, len(data)):
        if length:
            yield Read(seconds_of(time), data[position : position + length])
            position += length


def _ending(response: Mapping[str, Any], note: str) -> Ending:
    if not response["status"]:
        return Ending.UNREACHABLE
    if response.get("complete", True):
        return Ending.COMPLETE
    return Ending.CANCELLED if note.startswith("client closed") else Ending.TRUNCATED


def _exchange(line: Mapping[str, Any], scenario: str) -> Exchange:
    request, response, server = line["request"], line["response"], line.get("server", {})
    if isinstance(flags := server.get("flags"), str):
        server = {**server, "flags": flags.split()}
    note = line["note"] if isinstance(line.get("note"), str) else ""
    reads, ending = tuple(_reads(response)), _ending(response, note)
    is_raw = request.get("body_is_raw_text", False)
    lines: list[JsonLine] = [
        {
            **{
                "kind": "request",
                "name": line["name"],
                "scenario": scenario,
                "started": "",
                "server": server,
            },
            **{name: request[name] for name in ("method", "path")},
            "headers": _headers(request.get("headers", {})),
            **({"raw_body": {"text": request["body"]}} if is_raw else {"body": request.get("body")}),
        },
        *([{"kind": "response", **response, "headers": ()}] if response["status"] else []),
        {
            "kind": "end",
            "time": reads[-1].time if reads else 0.0,
            "ending": ending,
            "detail": ""
            if ending is Ending.COMPLETE
            else note or "the capture says that the answer is incomplete",
        },
    ]
    # The body is not converted to our format, because it may be large.
    exchange = exchange_of(lines)
    headers = redact_headers(_headers(response["headers"]))
    return replace(exchange, request=redact(exchange.request), headers=headers, reads=reads)


def _exchanges(chunk: CaptureChunk) -> Iterator[Located]:
    """Yield the exchanges of a foreign capture. Their scenario is the file's name.

    An incomplete last line is skipped.
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
    """Yield a foreign capture, plain or gzipped, in chunks of whole lines."""
    return chunks(path, _after_every_line, _exchanges)


def any_chunks(path: Path) -> Iterator[CaptureChunk]:
    """Yield the chunks of a capture.

    The first line of the file shows if the format is ours or the foreign one.
    """
    first = next(next(foreign_chunks(path)).lines(), None)
    is_ours = first is not None and b'"kind"' in first.data and b'"response"' not in first.data
    return capture_chunks(path) if is_ours else foreign_chunks(path)
