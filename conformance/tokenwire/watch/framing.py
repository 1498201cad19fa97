"""Where requests and answers end, told from as little of them as that takes.

A head that is spelled as most are is matched by one pattern. What is spelled otherwise is read by h11, and by
our reader of answers, from its first byte on. The judge's process reads all of it, and has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11

from tokenwire.wire.http_answer import AnswerReader, Piece

LARGEST_HEAD = 1 << 20
_FIELDS = rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ -~\t]*\r\n)*)\r\n"
_REQUEST = re.compile(rb"([A-Z]+) [!-~]+ HTTP/1\.1\r\n" + _FIELDS)
_ANSWER = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [ -~]*)?\r\n" + _FIELDS)
_NAME = re.compile(rb"^[^:]+", re.MULTILINE)
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,15})[ \t]*\r$", re.MULTILINE | re.IGNORECASE)
_CHUNKED = re.compile(rb"^transfer-encoding:[ \t]*chunked[ \t]*\r$", re.MULTILINE | re.IGNORECASE)
_NO_BODY = frozenset({b"204", b"304"})
_ODD = frozenset({b"transfer-encoding", b"upgrade", b"expect"})
"""What changes how a request goes on behind its head."""
_UNASKED = h11.Request(method="GET", target="/", headers=[("host", "")])
"""What an answer is read by that comes before any request."""


def _names(fields: bytes) -> list[bytes]:
    return _NAME.findall(fields.lower())


class RequestFollower:
    """Follows one request to its end. Raises h11.RemoteProtocolError for what is none."""

    def __init__(self) -> None:
        self.begun = False
        """Whether its head has come."""
        self.over = False
        self.raw: list[bytes] = []
        """Its bytes."""
        self.rest = b""
        """What has come behind its end."""
        self._method = b""
        self._left = 0
        """Bytes of the body that are still to come."""
        self._http: h11.Connection | None = None

    @property
    def answer_has_body(self) -> bool:
        return self._method != b"HEAD"

    def head(self) -> h11.Request:
        """Its head, which has come."""
        return read_request(b"".join(self.raw))[0]

    def feed(self, data: bytes) -> int:
        """How much of the body is in the next bytes of the connection."""
        if self.over:
            self.rest += data
            return 0
        if self.begun and self._http is None:
            return self._body(data)
        if self._http is None and not self.raw and (found := _REQUEST.match(data)):
            names = _names(found[2])
            lengths = _LENGTH.findall(found[2])
            if (
                found[1] != b"CONNECT"
                and names.count(b"host") == 1
                and names.count(b"content-length") == len(lengths) < 2
                and _ODD.isdisjoint(names)
            ):
                self.begun, self._method = True, found[1]
                self._left = int(lengths[0]) if lengths else 0
                self.raw.append(found[0])
                return self._body(data[found.end() :])
        return self._by_h11(data)

    def _body(self, data: bytes) -> int:
        size = len(data)
        if size > self._left:
            self.rest, data = data[self._left :], data[: self._left]
            size = self._left
        if size:
            self.raw.append(data)
        self._left -= size
        self.over = not self._left
        return size

    def _by_h11(self, data: bytes) -> int:
        if self._http is None:
            self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
        http, size = self._http, 0
        self.raw.append(data)
        http.receive_data(data)
        while True:
            event = http.next_event()
            if isinstance(event, h11.Request):
                AnswerReader(event)  # raises for one that no answer can be read to
                self.begun, self._method = True, event.method
            elif isinstance(event, h11.Data):
                size += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.over, self.rest = True, http.trailing_data[0]
                if self.rest:
                    self.raw[-1] = data[: -len(self.rest)]
                return size
            else:  # more is needed
                return size


def read_request(raw: bytes) -> tuple[h11.Request, bytes]:
    """A whole request: its head and its body. Raises h11.RemoteProtocolError for what is none."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
    http.receive_data(raw)
    head, body = http.next_event(), b""
    if not isinstance(head, h11.Request):
        raise h11.RemoteProtocolError("the head of a request is cut off")
    while isinstance(event := http.next_event(), h11.Data):
        body += event.data
    return head, body


class AnswerFollower:
    """Follows one answer to its end. What it reads is counted, and nothing is kept."""

    def __init__(self, asked: RequestFollower | None) -> None:
        """asked: the request, whose head has come; None for an answer that comes before any."""
        self._asked = asked
        self.begun = False
        """Whether its head has come."""
        self.over = False
        self.rest = b""
        """What has come behind its end."""
        self.switched = False
        """Whether the server speaks something else from here on."""
        self._length = 0
        self._left: int | None = None
        """Bytes of the body that are still to come, where that is known."""
        self._reader: AnswerReader | None = None

    @property
    def streams(self) -> bool:
        """Whether its body comes in chunks, and all so far were plain."""
        return self._reader is not None and self._reader.plain

    def feed_all(self, reads: Sequence[bytes], joined: bytes) -> int:
        """The same for several reads, one behind the other."""
        passed = None if self._reader is None else self._reader.pass_over(reads)
        return self.feed(joined) if passed is None else passed

    def feed(self, data: Piece) -> int:
        """How much of the body is in the next bytes of the connection. No bytes: the server has closed it.

        Raises h11.RemoteProtocolError for what is no answer, or no whole one.
        """
        if self._reader is not None:
            return self._by_reader(data)
        if self.over:
            self.rest += data
            return 0
        if self.begun:
            return self._body(data)
        found = _ANSWER.match(data)
        if found is None or self._asked is None or not self._take(found):
            head = _UNASKED if self._asked is None else self._asked.head()
            self._reader = AnswerReader(head, largest_head=LARGEST_HEAD)
            return self._by_reader(data)
        self.begun = True
        behind = data[found.end() :]
        if self._reader is not None:
            return self._by_reader(behind) if behind else 0
        return self._body(behind) if behind or self._left == 0 else 0

    def _take(self, found: re.Match[bytes]) -> bool:
        """Whether a head that was matched tells where the answer ends."""
        assert self._asked is not None
        status, fields = found.groups()
        names = _names(fields)
        lengths = _LENGTH.findall(fields)
        chunked = names.count(b"transfer-encoding")
        if names.count(b"content-length") != len(lengths) or len(lengths) + chunked > 1:
            return False
        if chunked and not _CHUNKED.search(fields):
            return False
        if not self._asked.answer_has_body or status in _NO_BODY:
            self._length = self._left = 0
        elif chunked:
            self._reader = AnswerReader(None, largest_head=LARGEST_HEAD)
        elif lengths:
            self._length = self._left = int(lengths[0])
        return True

    def _body(self, data: Piece) -> int:
        size, left = len(data), self._left
        if left is None:  # up to the end of the connection
            self.over = not size
            return size
        if left and not size:
            came = f"received {self._length - left} bytes, expected {self._length}"
            raise h11.RemoteProtocolError(
                f"peer closed connection without sending complete message body ({came})"
            )
        if size > left:
            self.rest = bytes(data[left:])
            size = left
        self._left = left - size
        self.over = not self._left
        return size

    def _by_reader(self, data: Piece) -> int:
        reader = self._reader
        assert reader is not None
        size = sum(map(len, reader.feed(data)))
        self.begun = reader.head is not None
        self.over, self.rest, self.switched = reader.over, reader.rest, reader.switched
        return size
