"""The server of `tokenwire torture`: each case at its door, and a place for what a client accumulated.

A case is a path before the endpoint's (`/openai-chat/text/v1/chat/completions`), or the model of a request
(`openai-chat/text`). It needs nothing but Python, and each connection has a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import MSG_PEEK
from threading import Thread
from typing import Any

from tokenwire.torture.behaviour import AFTER_S, BEHAVIOURS, Behaviour
from tokenwire.torture.held import problem_of
from tokenwire.torture.session import Asked, Session
from tokenwire.torture.vectors import Door, Vector, reads_of
from tokenwire.wire.exchange import Ending

_PREFIX = "/tokenwire/"
_NUMBERS = itertools.count()
"""Of connections: a port comes again."""
_LEFT_OPEN = 3
"""So many reads come before a stream is held open."""


def torture_server(
    session: Session, port: int = 0, pause: Callable[[float], object] = time.sleep
) -> contextlib.AbstractContextManager[str]:
    """Serve on the loopback interface while the block runs; yields the URL. Raises OSError."""

    class Handler(_Handler):
        pass

    Handler.session, Handler.pause = session, staticmethod(pause)
    return _serving(_Server(("127.0.0.1", port), Handler))


@contextlib.contextmanager
def _serving(server: _Server) -> Iterator[str]:
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may reset their connections at any time: that is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    session: Session
    pause: Callable[[float], object]
    number = -1
    """Of the connection, which a handler serves to its end."""
    begins = True
    """No request has come on it."""

    def setup(self) -> None:
        super().setup()
        self.number = next(_NUMBERS)

    def do_GET(self) -> None:
        self.begins = False
        path, _, door = self.path.partition("?door=")
        if path == f"{_PREFIX}cases":
            self._json(200, self.session.listed(door))
        elif path.startswith(f"{_PREFIX}sent/"):
            key = path.removeprefix(f"{_PREFIX}sent/").partition("/")[::2]
            self._json(200, self.session.sent.get(key, 0))
        elif path == f"{_PREFIX}report":
            self._json(200, self.session.document())
        elif path.endswith("/models"):
            names = (f"{door}/{case}" for door, case in self.session.cases)
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
        else:
            self._json(404, _error(f"there is no {self.path} here"))

    def do_POST(self) -> None:
        begins, self.begins = self.begins, False
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            self._json(400, _error("the body is not JSON"))
            return
        if self.path.startswith(f"{_PREFIX}report/"):
            found = self._of(self.path.removeprefix(f"{_PREFIX}report/"))
            problem = problem_of(body)
            if found is None or problem:
                self._json(400 if problem else 404, _error(problem or f"there is no case {self.path}"))
            else:
                self._json(200, self.session.take(found[0].name, found[1].id, body))
            return
        model = body.get("model") if isinstance(body, dict) else None
        found = self._of(self.path.removeprefix("/")) or self._of(str(model))
        if found is None:
            self._json(404, _error(f"neither {self.path} nor the model {model!r} names a case"))
        else:
            try:
                self._answer(*found, begins=begins)
            except OSError:
                self.session.left(found[0].name, found[1].id)

    def _of(self, name: str) -> tuple[Door, Vector] | None:
        """The case that a path or a model names first."""
        door, _, rest = name.partition("/")
        return self.session.cases.get((door, rest.partition("/")[0].partition("?")[0]))

    def _answer(self, door: Door, case: Vector, *, begins: bool) -> None:
        before = self.session.note(door.name, case.id, Asked(time.monotonic(), self.number, begins))
        behaviour = BEHAVIOURS.get(case.id, Behaviour("", ""))
        if behaviour.status != 200 and not before:
            headers = {"Retry-After": str(AFTER_S)}
            self._json(behaviour.status, _error("busy; ask again later", behaviour.status), headers)
            return
        reads: Iterator[bytes] = reads_of(case.reads)
        headers = dict(case.headers)
        if behaviour.whole or case.status != 200:
            reads = iter([b"".join(reads)])
        self.send_response(case.status)
        zipper = zlib.compressobj(wbits=31) if behaviour.zipped and self._takes_gzip() else None
        if zipper:
            headers["Content-Encoding"] = "gzip"
        for name, value in headers.items():
            self.send_header(name, value)
        if behaviour.whole or case.status != 200:
            body = next(reads)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        if behaviour.keeps is False:
            self.send_header("Connection", "close")
            self.close_connection = False  # a client that asks on it nevertheless is seen
        self.end_headers()
        for _ in range(behaviour.keep_alives):
            self.pause(behaviour.slow_s)
            self._chunk(b": still waiting\n\n")
        for number, read in enumerate(reads):
            if behaviour.slow_s:
                self.pause(behaviour.slow_s)
            if behaviour.breaks and not before and number == behaviour.breaks:
                self._break_off()
                return
            if behaviour.held_open and number == _LEFT_OPEN:
                self._wait_for_the_client_to_leave(door, case)
                return
            data = read
            if zipper:
                data = zipper.compress(read) + zipper.flush(zlib.Z_SYNC_FLUSH)
            self._chunk(data)
            self.session.sent[door.name, case.id] = number + 1
        if zipper:
            self._chunk(zipper.flush())
        if case.ending == Ending.TRUNCATED:
            self._break_off()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _takes_gzip(self) -> bool:
        return "gzip" in (self.headers.get("Accept-Encoding") or "")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _break_off(self) -> None:
        """End the connection in the middle of the body."""
        self.close_connection = True

    def _wait_for_the_client_to_leave(self, door: Door, case: Vector) -> None:
        self.close_connection = True
        self.connection.recv(1, MSG_PEEK)  # or a reset, which is a way to leave, too
        self.session.left(door.name, case.id)

    def _json(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(document).encode()  # in ASCII: a client may report half a character
        with contextlib.suppress(OSError):  # the client has left
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # so it is called
        """Log nothing: the report shows everything."""


def _error(words: str, code: int = 400) -> dict[str, Any]:
    return {"type": "error", "error": {"message": words, "type": "invalid_request_error", "code": code}}
