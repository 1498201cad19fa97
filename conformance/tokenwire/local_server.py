"""A server on this machine, of Python's own library: each connection has a thread."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may reset their connections at any time: that is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers the requests of a connection, which stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def send_json(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        data = json.dumps(document).encode()  # in ASCII: a client may have sent half a character
        with contextlib.suppress(OSError):  # the client has left
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def send_chunk(self, data: bytes) -> None:
        """Send a part of a body; an empty one ends it."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # so it is called
        """Log nothing: the report shows everything."""


@contextlib.contextmanager
def serving(handler: type[LocalHandler], port: int) -> Iterator[str]:
    """Serve on the loopback interface while the block runs; yields the URL. Raises OSError."""
    with _Server(("127.0.0.1", port), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
