"""The server of `tokenwire torture`: serves each case at its endpoint, and receives the clients' reports.

A case is chosen by a path before the endpoint's path (`/openai-chat/text/v1/chat/completions`), or by the
model of the request (`openai-chat/text`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import zlib
from collections.abc import Callable
from socket import MSG_PEEK
from typing import Any

from tokenwire.local_server import LocalHandler, serving
from tokenwire.wire.exchange import Ending
from tokenwire_clients.behaviour import AFTER_S, behaviour_of
from tokenwire_clients.held import problem_of
from tokenwire_clients.session import Asked, Session
from tokenwire_clients.vectors import Door, Vector, reads_of

_PREFIX = "/tokenwire/"
_NUMBERS = itertools.count()
"""Numbers for connections. Ports would not be unique, because they are reused."""
_LEFT_OPEN = 3
"""The number of parts that are sent of a stream that is held open without an end."""


def torture_server(
    session: Session, port: int = 0, pause: Callable[[float], object] = time.sleep
) -> contextlib.AbstractContextManager[str]:
    """Serve on the loopback interface in this context, and yield the server's URL. Raises OSError."""

    class Handler(_Handler):
        pass

    Handler.session, Handler.pause = session, staticmethod(pause)
    return serving(Handler, port)


class _Handler(LocalHandler):
    session: Session
    pause: Callable[[float], object]
    number = -1
    """The number of the connection. One handler serves one connection."""
    begins = True
    """True until the first request on the connection has arrived."""

    def setup(self) -> None:
        super().setup()
        self.number = next(_NUMBERS)

    def do_GET(self) -> None:  # noqa: N802  # so it is called
        self.begins = False
        path, _, door = self.path.partition("?door=")
        if path == f"{_PREFIX}cases":
            self.send_json(200, self.session.listed(door))
        elif path.startswith(f"{_PREFIX}sent/"):
            key = path.removeprefix(f"{_PREFIX}sent/").partition("/")[::2]
            self.send_json(200, self.session.sent.get(key, 0))
        elif path == f"{_PREFIX}report":
            self.send_json(200, self.session.document())
        elif path.endswith("/models"):
            names = (f"{door}/{case}" for door, case in self.session.cases)
            self.send_json(
                200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
            )
        else:
            self.send_json(404, _error(f"there is no {self.path} here"))

    def do_POST(self) -> None:  # noqa: N802  # so it is called
        begins, self.begins = self.begins, False
        if (raw := self.body()) is None:
            return
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            self.send_json(400, _error("the body is not JSON"))
            return
        if self.path.startswith(f"{_PREFIX}report/"):
            found = self._of(self.path.removeprefix(f"{_PREFIX}report/"))
            problem = problem_of(body)
            if found is None or problem:
                self.send_json(400 if problem else 404, _error(problem or f"there is no case {self.path}"))
            else:
                self.send_json(200, self.session.take(found[0].name, found[1].id, body))
            return
        model = body.get("model") if isinstance(body, dict) else None
        found = self._of(self.path.removeprefix("/")) or self._of(str(model))
        if found is None:
            self.send_json(404, _error(f"neither {self.path} nor the model {model!r} names a case"))
        else:
            try:
                self._answer(*found, begins=begins)
            except OSError:
                self.session.left(found[0].name, found[1].id)

    def _of(self, name: str) -> tuple[Door, Vector] | None:
        """Return the case that the beginning of a path or of a model name names.

        None if no case has this name.
        """
        door, _, rest = name.partition("/")
        return self.session.cases.get((door, rest.partition("/")[0].partition("?")[0]))

    def _answer(self, door: Door, case: Vector, *, begins: bool) -> None:
        before = self.session.note(door.name, case.id, Asked(time.monotonic(), self.number, begins))
        behaviour = behaviour_of(case.id)
        if behaviour.status != 200 and not before:
            headers = {"Retry-After": str(AFTER_S)}
            self.send_json(behaviour.status, _error("busy; ask again later", behaviour.status), headers)
            return
        reads, headers = reads_of(case.reads), dict(case.headers)
        self.send_response(case.status)
        takes_gzip = "gzip" in (self.headers.get("Accept-Encoding") or "")
        zipper = zlib.compressobj(wbits=31) if behaviour.zipped and takes_gzip else None
        if zipper:
            headers["Content-Encoding"] = "gzip"
        for name, value in headers.items():
            self.send_header(name, value)
        if behaviour.whole or case.status != 200:
            body = b"".join(reads)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        if behaviour.keeps is False:
            self.send_header("Connection", "close")
            self.close_connection = False  # a client that uses the connection nevertheless is detected
        self.end_headers()
        for _ in range(behaviour.keep_alives):
            self.pause(behaviour.slow_s)
            self.send_chunk(b": still waiting\n\n")
        for number, read in enumerate(reads):
            if behaviour.slow_s:
                self.pause(behaviour.slow_s)
            if behaviour.breaks and not before and number == behaviour.breaks:
                self._break_off()
                return
            if behaviour.held_open and number == _LEFT_OPEN:
                self._wait_for_the_client_to_leave(door, case)
                return
            self.send_chunk(zipper.compress(read) + zipper.flush(zlib.Z_SYNC_FLUSH) if zipper else read)
            self.session.sent[door.name, case.id] = number + 1
        if zipper:
            self.send_chunk(zipper.flush())
        if case.ending == Ending.TRUNCATED:
            self._break_off()
        else:
            self.send_chunk(b"")

    def _break_off(self) -> None:
        """Close the connection within the body of an answer."""
        self.close_connection = True

    def _wait_for_the_client_to_leave(self, door: Door, case: Vector) -> None:
        self.close_connection = True
        self.connection.recv(1, MSG_PEEK)  # a reset closes the connection as well
        self.session.left(door.name, case.id)


def _error(words: str, code: int = 400) -> dict[str, Any]:
    return {"type": "error", "error": {"message": words, "type": "invalid_request_error", "code": code}}
