"""Servers that violate HTTP, event streams and JSON in every way: a list of known cases, and random cases."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from tokenwire.dialects.dialect import load_dialects

Conduct = Callable[[socket.socket], None]
"""The behaviour of a server on a connection after it has read the request. It raises OSError if the client
disconnects.
"""

MEGABYTE = b"x" * (1 << 20)
_RECORD = json.dumps(
    {
        "text": "\x01\x02\x03\x04",
        "output_ids": [1, 2, 3, 4],
        "meta_info": {
            "id": "r1",
            "finish_reason": {"type": "length", "length": 4},
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "cached_tokens": 0,
            "weight_version": "default",
        },
    }
).encode()


@dataclass(frozen=True)
class Hostile:
    """A hostile server, and how a run against it must end."""

    conduct: Conduct
    words: tuple[str, ...]
    """Words that the final message of the run must contain."""
    polite_at_first: bool = False
    """True if it answers the first requests of the suite correctly."""
    hangs: bool = False
    """True if only the client's timeout ends an exchange. All other servers end exchanges by what
    they send.
    """


def head(content_type: str = "application/json", *more: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", "connection: close", *more, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def sends(*pieces: bytes) -> Conduct:
    """Return a conduct that sends some bytes and closes the connection."""

    def conduct(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return conduct


def hangs_after(*pieces: bytes) -> Conduct:
    """Return a conduct that sends some bytes and then waits until the client disconnects."""

    def conduct(connection: socket.socket) -> None:
        sends(*pieces)(connection)
        while connection.recv(1 << 16):
            pass

    return conduct


def endless(beginning: bytes, piece: bytes) -> Conduct:
    def conduct(connection: socket.socket) -> None:
        connection.sendall(beginning)
        while True:
            connection.sendall(piece)

    return conduct


def drips(data: bytes) -> Conduct:
    """Return a conduct that sends one byte every half second, until the client disconnects."""

    def conduct(connection: socket.socket) -> None:
        connection.settimeout(0.5)
        for byte in data:
            connection.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1 << 16):
                    return

    return conduct


def whole(body: bytes) -> Conduct:
    return sends(head("application/json", f"content-length: {len(body)}"), body)


def stream(body: bytes) -> Conduct:
    return sends(head("text/event-stream"), body)


def redirects(connection: socket.socket) -> None:
    sends(head("text/plain", "location: /generate", "content-length: 0", status="307 Temporary Redirect"))(
        connection
    )


_ZEROS = gzip.compress(bytes(100 << 20), 1)
_STREAM = head("text/event-stream")
_RECORDS = (b"data: " + _RECORD + b"\n\n") * 300
_NOT_SPOKEN = "not in a shape that this suite knows"
_SILENT = "completed no answer"
_ENDLESS = "sends without end"

HOSTILE = {
    "empty object": Hostile(whole(b"{}"), (_NOT_SPOKEN, "{}")),
    "404": Hostile(
        sends(head("text/plain", "content-length: 0", status="404 Not Found")),
        ("none of the endpoints", "404"),
    ),
    "500": Hostile(
        sends(head("text/plain", "content-length: 0", status="500 Oh")), ("fails at every request", "log")
    ),
    "instant end": Hostile(stream(b"data: [DONE]\n\n"), (_NOT_SPOKEN, "data: [DONE]")),
    "HTML": Hostile(sends(head("text/html"), b"<!doctype html><html></html>"), ("HTML page",)),
    "hang before the head": Hostile(hangs_after(), (_SILENT, "loading its model"), hangs=True),
    "hang in the head": Hostile(hangs_after(b"HTTP/1.1 200 OK\r\ncontent-"), (_SILENT,), hangs=True),
    "hang in the stream": Hostile(hangs_after(_STREAM, b"data: {}\n\n"), (_SILENT,), hangs=True),
    "endless events": Hostile(endless(_STREAM, b"data: {}\n\n" * 1000), (_ENDLESS, "data: {}")),
    "endless records": Hostile(endless(_STREAM, _RECORDS), (_ENDLESS,)),
    "endless comments": Hostile(endless(_STREAM, b": ping\n\n" * 1000), (_ENDLESS,)),
    "endless blank lines": Hostile(endless(_STREAM, b"\r\n" * 5000), (_ENDLESS,)),
    "endless head": Hostile(endless(b"HTTP/1.1 200 OK\r\n", b"x-more: yes\r\n" * 1000), ("Nothing answers",)),
    "a byte at a time": Hostile(drips(_STREAM + b"data: {}\n\n" * 100), (_SILENT,), hangs=True),
    "garbage": Hostile(
        sends(random.Random(1).randbytes(1 << 16)), ("Nothing answers", "RemoteProtocolError")
    ),
    "garbage behind a head": Hostile(sends(head(), random.Random(1).randbytes(1 << 16)), (_NOT_SPOKEN,)),
    "gzip of zeros": Hostile(
        sends(head("application/json", "content-encoding: gzip", f"content-length: {len(_ZEROS)}"), _ZEROS),
        (_NOT_SPOKEN,),
    ),
    "redirect loop": Hostile(redirects, ("status 307",)),
    "wrong content type": Hostile(sends(head("image/png"), b"{}"), (_NOT_SPOKEN,)),
    "content-length too long": Hostile(
        sends(head("application/json", "content-length: 5000"), b"{}"), ("truncated",)
    ),
    "content-length too short": Hostile(
        sends(head("application/json", "content-length: 9"), _RECORD), (_NOT_SPOKEN, '{"text":')
    ),
    "content-length of no number": Hostile(
        sends(head("application/json", "content-length: many"), b"{}"), ("Nothing answers",)
    ),
    "no chunks": Hostile(
        sends(head("application/json", "transfer-encoding: chunked"), b"zz\r\n{}"), ("truncated",)
    ),
    "a chunk of 2^62": Hostile(
        sends(head("application/json", "transfer-encoding: chunked"), b"4000000000000000\r\n", b"{}"),
        ("truncated",),
    ),
    "NaN": Hostile(whole(b'{"output_ids":[NaN],"meta_info":{"completion_tokens":NaN}}'), (_NOT_SPOKEN,)),
    "1e400": Hostile(
        whole(b'{"output_ids":[1e400],"meta_info":{"completion_tokens":1e400}}'), (_NOT_SPOKEN,)
    ),
    "a number of a million digits": Hostile(
        whole(b'{"output_ids":[' + b"9" * 1_000_000 + b"]}"), (_NOT_SPOKEN,)
    ),
    "an event of 100 MB": Hostile(
        sends(_STREAM, b'data: {"text":"', *[MEGABYTE] * 100, b'"}\n\n'), (_ENDLESS, "outgrew")
    ),
    "a document of 100 MB": Hostile(
        sends(head("application/json"), b'{"text":"', *[MEGABYTE] * 100, b'"}'), (_ENDLESS, "outgrew")
    ),
    "deep nesting": Hostile(whole(b"[" * 400_000 + b"]" * 400_000), (_NOT_SPOKEN,)),
    "deep nesting in events": Hostile(stream(b"data: " + b'{"a":' * 100_000 + b"\n\n"), (_NOT_SPOKEN,)),
    "headers of 1 MB": Hostile(
        sends(head("application/json", f"x-big: {'x' * (1 << 20)}"), b"{}"), ("Nothing answers",)
    ),
    "mute after the first words": Hostile(
        hangs_after(), ("stopped answering", "timeout"), polite_at_first=True, hangs=True
    ),
    "endless after the first words": Hostile(
        endless(_STREAM, _RECORDS),
        ("stopped answering", "outgrown"),
        polite_at_first=True,
    ),
    "an event of 100 MB after the first words": Hostile(
        sends(_STREAM, b'data: {"text":"', *[MEGABYTE] * 100, b'"}\n\n'),
        ("stopped answering", "outgrown"),
        polite_at_first=True,
    ),
}


_STATUSES = ("200 OK",) * 6 + ("404 Not Found", "500 Oh", "307 Temporary Redirect", "200", "999 \xff", "OK")
_TYPES = ("application/json", "text/event-stream", "text/html", "text/event-stream; charset=utf-16", "\xe9")
_FRAMINGS = (
    *((),) * 4,
    ("content-length: 20",),
    ("content-length: 99999",),
    ("content-length: -1",),
    ("content-length: 3", "content-length: 4"),
    ("transfer-encoding: chunked",),
    ("transfer-encoding: chunked", "content-length: 20"),
    ("content-encoding: gzip",),
    ("location: /generate",),
    ("x: " + "y" * 70_000,),
)
_PIECES = (
    *(_RECORD, b"data: " + _RECORD + b"\n\n", b"data: [DONE]\n\n", b"data: {}\n\n", b": ping\n\n", b"\r\n"),
    *(
        b'event: error\ndata: {"error":null}\n\n',
        b"retry: -1\nid: \x00\n\n",
        b"data: \xed\xa0\x80\n\n",
        b"\xef\xbb\xbf",
    ),
    *(b"<!doctype html>", b"[" * 100_000, b'{"a":' * 1000, b"9" * 100_000, b"NaN", b'{"output_ids":[1e400]}'),
    *(b'data: {"text":"\\ud800\x1b[2J\xe2\x80\xae"}\n\n', b'{"output_ids":[-1,"1",null]}', b"5\r\nhello\r\n"),
    *(b"4000000000000000\r\n", MEGABYTE, _ZEROS[:5000]),
)


def drawn(seed: int) -> Hostile:
    """Return a random hostile server for a seed: a head, a body of some pieces, and an end.

    Nothing is known about the message of a run against it.
    """
    choice = random.Random(seed)
    start = head(choice.choice(_TYPES), *choice.choice(_FRAMINGS), status=choice.choice(_STATUSES))
    body = [choice.choice(_PIECES) for _ in range(choice.randint(0, 6))]
    if choice.random() < 0.3:
        body.append(choice.randbytes(choice.randint(1, 5000)))
    data = b"".join([start, *body])
    cut = choice.randint(0, len(start)) if choice.random() < 0.1 else len(data)
    conduct = choice.choice((sends, sends, sends, hangs_after, drips))(data[:cut])
    if body and choice.random() < 0.2:
        conduct = endless(data, body[-1] * (1 + 10_000 // len(body[-1])))
    return Hostile(conduct, (), polite_at_first=choice.random() < 0.4, hangs=True)


class HostileServer:
    """Listens on a free loopback port, and treats all connections in the same way. It is a
    context manager.
    """

    def __init__(self, hostile: Hostile) -> None:
        self._hostile = hostile
        self._first_words = len(load_dialects()) if hostile.polite_at_first else 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _listen(self) -> None:
        for connection in self._accepted():
            threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _accepted(self) -> Iterator[socket.socket]:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                yield self._listener.accept()[0]

    def _treat(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:  # the client disconnected
            method = _read_request(connection)
            self._conduct(method)(connection)

    def _conduct(self, method: bytes) -> Conduct:
        with self._lock:
            if self._first_words and method == b"POST":
                self._first_words -= 1
                return whole(_RECORD)
        return whole(b"{}") if self._hostile.polite_at_first and method == b"GET" else self._hostile.conduct


def _read_request(connection: socket.socket) -> bytes:
    """Read a whole request, and return its method."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16) or _left()
    lines, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().partition(b":")[::2] for line in lines.split(b"\r\n")[1:])
    missing = int(fields.get(b"content-length", b"0")) - len(body)
    while missing > 0:
        missing -= len(connection.recv(1 << 16) or _left())
    return lines.partition(b" ")[0]


def _left() -> bytes:
    raise ConnectionResetError("the client disconnected before the end of its request")
