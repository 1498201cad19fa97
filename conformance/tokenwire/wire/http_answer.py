"""Parse a response from the bytes of its connection: the head, the pieces of the body, and the end.

The library h11 parses the response strictly. Plain chunks, which are most of a stream, are parsed here,
because this takes much less time. At the first byte of any other form, h11 takes over, so that all errors
come from h11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import overload

import h11

LARGEST_HEAD = 100 << 10
"""The maximum size in bytes of a response head, or of a line between chunks."""
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,20})\r\n")
_LONGEST_SIZE = 22
_LAST_CHUNK = b"0\r\n\r\n"
_NO_BODY = frozenset({204, 304})

Piece = bytes | memoryview


def _is_begun(data: bytes) -> bool:
    """True if the bytes may be the beginning of a chunk size or of the last chunk."""
    return _LAST_CHUNK.startswith(data) or (len(data) < _LONGEST_SIZE and b"\n" not in data)


class AnswerReader:
    """Parses the response to one request. It accepts exactly the responses that h11 accepts."""

    def __init__(self, request: h11.Request, *, largest_head: int = LARGEST_HEAD) -> None:
        """Prepare the request. Raises h11.LocalProtocolError if it is not valid HTTP."""
        self._largest_head = largest_head
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=largest_head)
        self.request_head = self._http.send(request)
        """The bytes of the request before its body."""
        self._is_head = request.method == b"HEAD"
        self.head: h11.Response | None = None
        self.switched = False
        """True if the server switched to another protocol."""
        self.over = False
        self.rest = b""
        """The bytes after the end of the response."""
        self._plain = False
        """True if the body is chunked, and all chunks so far were plain."""
        self._left = 0
        """The number of bytes left in the current chunk, including its line end."""
        self._begun = b""
        """The beginning of a chunk size or of the last chunk, whose rest has not arrived."""

    @overload
    def feed(self, data: bytes) -> Iterable[bytes]: ...

    @overload
    def feed(self, data: Piece) -> Iterable[Piece]: ...

    def feed(self, data: Piece) -> Iterable[Piece]:
        """Parse the next bytes of the connection, and return the pieces of the body in these bytes.

        The caller must consume all pieces. A piece is a bytes object, or a view if `data` is a view. Empty
        data means that the server closed the connection. Raises h11.RemoteProtocolError for an invalid or
        incomplete response, after the pieces before the error.
        """
        if self._plain and not (self._left or self._begun or self.over) and (found := _SIZE.match(data)):
            start, end = found.end(), len(data) - 2  # most reads are exactly one chunk
            if start < end == start + int(found[1], 16) and data[end:] == b"\r\n":
                return (data[start:end],)
        return self._feed(data)

    def _feed(self, data: Piece) -> Iterator[Piece]:
        if self.over:
            self.rest += data
        elif not self._plain:
            yield from self._by_h11(data)
        elif data:
            yield from self._plain_chunks(self._begun + data if self._begun else data)
        else:
            yield from self._odd_chunks(self._begun)  # h11 reports the early end of the connection
            yield from self._by_h11(b"")

    def _by_h11(self, data: Piece) -> Iterator[Piece]:
        if not data and self.head is None:
            raise h11.RemoteProtocolError("Server disconnected without sending a response.")
        http = self._http
        http.receive_data(bytes(data))
        while True:
            event = http.next_event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.Response):
                self.head = event
                if self._is_chunked(event):
                    self._plain = True
                    yield from self._plain_chunks(http.trailing_data[0])
                    return
            elif isinstance(event, h11.InformationalResponse):
                self.switched |= event.status_code == 101
            else:
                self.over = isinstance(event, h11.EndOfMessage)
                self.rest = http.trailing_data[0] if self.over else b""
                return

    def _is_chunked(self, head: h11.Response) -> bool:
        if self._is_head or head.status_code in _NO_BODY:
            return False
        return any(name == b"transfer-encoding" for name, _ in head.headers)

    def _plain_chunks(self, data: Piece) -> Iterator[Piece]:
        # Parsing with h11 makes an event a quarter more expensive (benchmarks/NOTES.md). So the framing that
        # all servers write is parsed here. Everything else (extensions, trailers) is left to h11.
        position, size, left = 0, len(data), self._left
        self._begun = b""
        while position < size:
            if left > 2:
                piece = data[position : position + left - 2]
                position, left = position + len(piece), left - len(piece)
                yield piece
            elif left:
                expected, came = b"\r\n"[2 - left :], bytes(data[position : position + left])
                if not expected.startswith(came):
                    raise h11.RemoteProtocolError(f"malformed chunk footer: {came!r} (expected {expected!r})")
                position, left = position + len(came), left - len(came)
            elif data[position : position + len(_LAST_CHUNK)] == _LAST_CHUNK:
                self.over, self.rest = True, bytes(data[position + len(_LAST_CHUNK) :])
                return
            elif (found := _SIZE.match(data, position)) and (length := int(found[1], 16)):
                position = found.end()
                end = position + length
                if data[end : end + 2] == b"\r\n":
                    yield data[position:end]
                    position = end + 2
                else:
                    left = length + 2
            elif _is_begun(begun := bytes(data[position : position + _LONGEST_SIZE])):
                self._begun = begun
                position = size
            else:
                self._left = 0
                yield from self._odd_chunks(data[position:])
                return
        self._left = left

    def _odd_chunks(self, data: Piece) -> Iterator[Piece]:
        """Parse the rest of the body with a new h11 connection, from the start of a chunk."""
        self._plain = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._largest_head)
        self._http.send(h11.Request(method="GET", target="/", headers=[("host", "")]))
        self._http.send(h11.EndOfMessage())
        self._http.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        self._http.next_event()
        if data:
            yield from self._by_h11(data)
