"""A server on this machine, built with Python's standard library, with one thread for each connection."""

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
    """Return a free port of at most `most`. Raises UsageError if none is found."""
    with contextlib.ExitStack() as taken:
        for _ in range(_TRIES):
            probe = taken.enter_context(
                socket.socket()
            )  # stays open, so that the next attempt gets another port
            probe.bind((_HERE, 0))
            port = int(probe.getsockname()[1])
            if port <= most:
                return port
    raise UsageError(f"found no free port up to {most}; give one with --port")


@dataclass(frozen=True)
class Guard:
    """Decides by the Host and Origin headers if a listener answers a request.

    Any web page can send requests to a port that the user's browser reaches. If a host name of the page
    points to this machine, the page can also read the answers (DNS rebinding). Therefore only requests to
    names that nobody else can own are answered: addresses of the listener, loopback names, and names that the
    operator gave.
    """

    address: str = _HERE
    """The address of the listener."""
    names: frozenset[str] = frozenset()
    """Host names that the operator gave, in lower case."""

    def admits(self, host: str, origin: str | None, *, needs_origin: bool = False) -> bool:
        """True if a request may be answered.

        With `needs_origin`, a request without an Origin header must not be answered.
        """
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
        # A listener at 0.0.0.0 has all addresses of its machine.
        return literal.is_loopback or literal == own or own.is_unspecified


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the signature of the base class
        """Ignore clients that reset their connections, because this is not an error of the server."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            tell_failure("a connection", error)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection. The connection stays open between requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def parse_request(self) -> bool:
        """Parse the head of a request. Return False if the request was refused, after sending the refusal."""
        if not super().parse_request():
            return False
        if Guard().admits(self.headers.get("Host", ""), self.headers.get("Origin")):
            return True
        self.close_connection = True
        self.send_json(403, {"error": "requests from web pages of another host or origin are not answered"})
        return False

    def handle_one_request(self) -> None:
        """Answer a request. A failure closes the connection and prints one sentence instead of a
        traceback.
        """
        try:
            super().handle_one_request()
        except OSError:
            raise
        except Exception as error:
            self.close_connection = True
            tell_failure(f"the request {self.requestline[:80]}", error)
            self.send_json(
                500, {"error": {"message": "the server failed; its terminal shows the reason", "code": 500}}
            )

    def body(self) -> bytes | None:
        """Read the body of a request. Return None if its length is invalid, after sending the refusal."""
        stated = self.headers.get("Content-Length") or "0"
        if not (stated.isascii() and stated.isdigit()) or len(stated) > _DIGITS or int(stated) > LARGEST_BODY:
            self.close_connection = True
            message = f"Content-Length is {stated[:40]!r}; send a number of bytes up to {LARGEST_BODY}"
            self.send_json(400, {"error": {"message": message, "code": 400}})
            return None
        return self.rfile.read(int(stated))

    def send_json(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete response."""
        data = json.dumps(
            document
        ).encode()  # ASCII only, because a client may have sent half of a surrogate pair
        with contextlib.suppress(OSError):  # the client has disconnected
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def send_chunk(self, data: bytes) -> None:
        """Send a chunk of a response body. An empty chunk ends the body."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the signature of the base class
        """Log nothing, because the report shows all requests."""


@contextlib.contextmanager
def serving(handler: type[LocalHandler], port: int) -> Iterator[str]:
    """Run the server on the loopback interface within the block, and yield its URL. Raises OSError."""
    with _Server((_HERE, port), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://{_HERE}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
