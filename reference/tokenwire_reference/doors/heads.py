"""Refuses requests by their heads alone, before their bodies are read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from tokenwire_reference.doors.errors import MALFORMED, RefusalError, refusal_answer
from tokenwire_reference.server_args import ServerArgs

MOST_HEADERS = 128
MOST_HEAD_BYTES = 1 << 16
"""The maximum number of bytes of the path and of all header names and values."""


def body_too_long(most: int) -> RefusalError:
    return RefusalError(
        f"the body has more than {most} bytes; send less, or start the server with a larger --max-body-bytes",
        status=413,
        type=MALFORMED,
    )


class RefuseHeads:
    """Refuses a request for which `why` returns a reason, after reading only the head.

    All other requests pass.
    """

    def __init__(
        self, app: ASGIApp, *, args: ServerArgs, why: Callable[[Scope, ServerArgs], RefusalError | None]
    ) -> None:
        self._app = app
        self._args = args
        self._why = why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (refusal := self._why(scope, self._args)) is not None:
            app = refusal_answer(scope["path"], refusal, self._args.api_dialect)
        await app(scope, receive, send)


def too_long(scope: Scope, args: ServerArgs) -> RefusalError | None:
    """Return the refusal of a request whose head or body is too long; None if both are short enough."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MOST_HEADERS or size > MOST_HEAD_BYTES:
        return RefusalError(
            f"the head has {len(headers)} headers and {size} bytes; send at most {MOST_HEADERS} headers "
            f"and {MOST_HEAD_BYTES} bytes",
            status=431,
            type=MALFORMED,
        )
    length = dict(headers).get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > args.max_body_bytes:
        return body_too_long(args.max_body_bytes)
    return None
