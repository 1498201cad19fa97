"""A server on this machine, from Python's standard library, with a thread for each connection."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from tokenwire.failing import tell_failure
from tokenwire.usage_error import UsageError

LARGEST_BODY = 64 << 20
_DIGITS = 12
_HERE = "127.0.0.1"
_TRIES = 500


def free_port(most: int = 65535) -> int:
    """Return a free port of at most `most`. Raises UsageError."""
    with contextlib.ExitStack() as taken:
        for _ in range(_TRIES):
            probe = taken.enter_context(socket.socket())  # kept, so that the next try gets another port
            probe.bind((_HERE, 0))
            port = int(probe.getsockname()[1])
            if port <= most:
                return port
    raise UsageError(f"no port up to {most} was found to be free; give one with --port")


@dataclass(frozen=True)
class Guard:
    """Decides by the Host and Origin headers if a listener answers a request.

    Any web page can send requests to a port that its browser reaches. Under a host name of its own it can
    read the answers, too (DNS rebinding). So only names that nobody else can own are answered: addresses of
    the listener, loopback names, and names that the operator gave.
    """

    address: str = _HERE
    """Address of the listener."""
    names: frozenset[str] = frozenset()
    """Host names that the operator gave, in lower case."""

    def admits(self, host: str, origin: str | None, *, needs_origin: bool = False) -> bool:
        """True if a request may be answered. With `needs_origin`, a request without an Origin may not."""
        return self._knows(host) and (origin == f"http://{host}" or (origin is None and not needs_origin))

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self.names:
            return True
        try:
            literal, own = ipaddress.ip_address(name), ipaddress.ip_address(self.address)
        except ValueError:
            return False
        # A listener at 0.0.0.0 owns all addresses of its machine.
        return literal.is_loopback or literal == own or own.is_unspecified


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # so it is called
        """Ignore clients that reset their connections, because that is not an error of ours."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            tell_failure("a connection", error)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers the requests of a connection, which is kept open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def parse_request(self) -> bool:
        """Read the head of a request; False if it was refused, which is answered at once."""
        if not super().parse_request():
            return False
        if Guard().admits(self.headers.get("Host", ""), self.headers.get("Origin")):
            return True
        self.close_connection = True
        self.send_json(403, {"error": "a web page of another host or origin is not answered"})
        return False

    def handle_one_request(self) -> None:
        """Answer a request. A failure ends the connection and prints one sentence in place of a traceback."""
        try:
            super().handle_one_request()
        except OSError:
            raise
        except Exception as error:
            self.close_connection = True
            tell_failure(f"the request {self.requestline[:80]}", error)
            self.send_json(
                500, {"error": {"message": "the server failed; its terminal says why", "code": 500}}
            )

    def body(self) -> bytes | None:
        """Read the body of a request; None if its length is refused, which is answered at once."""
        stated = self.headers.get("Content-Length") or "0"
        if not (stated.isascii() and stated.isdigit()) or len(stated) > _DIGITS or int(stated) > LARGEST_BODY:
            self.close_connection = True
            message = f"Content-Length is {stated[:40]!r}; send a number of bytes up to {LARGEST_BODY}"
            self.send_json(400, {"error": {"message": message, "code": 400}})
            return None
        return self.rfile.read(int(stated))

    def send_json(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete response."""
        data = json.dumps(document).encode()  # in ASCII: a client may have sent half a character
        with contextlib.suppress(OSError):  # the client has disconnected
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def send_chunk(self, data: bytes) -> None:
        """Send a chunk of a body; an empty chunk ends it."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # so it is called
        """Log nothing, because the report shows everything."""


@contextlib.contextmanager
def serving(handler: type[LocalHandler], port: int) -> Iterator[str]:
    """Serve on the loopback interface while the block runs; yield the URL. Raises OSError."""
    with _Server((_HERE, port), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://{_HERE}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
