"""A small HTTP server of a test, which handles requests in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # requests come many at once; a full queue would reset them


@contextmanager
def serve_in_threads(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests with a handler, and yield the URL of the server."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
