"""The admin listener, and its page for people, which loads itself anew and holds no script."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from tokenwire.report.templates import template
from tokenwire.requirement import load_requirements
from tokenwire.watch.counts import Counts
from tokenwire.watch.judging import Opinion
from tokenwire.watch.proxy import Address
from tokenwire.wire.inert import inert

_LARGEST_HEAD = 16 << 10
_PATIENCE_S = 10.0
_REFRESH_S = 5


@dataclass(frozen=True)
class Page:
    """The document at a path."""

    content_type: str
    make: Callable[[], str]


def http_document(status: HTTPStatus, kind: str, data: bytes | None, *headers: str) -> bytes:
    """An answer that ends its connection. Without data it is a head alone, and what follows is its body."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        *([] if data is None else [f"Content-Length: {len(data)}"]),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *headers,
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (data or b"")


class Admin:
    """Answers GET and HEAD, one request to a connection."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Begin; returns the address with its port. Raises OSError if it is taken."""
        self._server = await asyncio.start_server(
            self._serve, address.host, address.port, limit=_LARGEST_HEAD
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
            writer.write(self._answer(head))
            await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        page = self._pages.get(rest.partition(" ")[0].partition("?")[0])
        if method not in {"GET", "HEAD"}:
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "GET only\n"
        elif page is None:
            known = " ".join(self._pages)
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"there are {known}\n"
        else:
            status, kind, body = HTTPStatus.OK, page.content_type, page.make()
        allowed = ["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []
        answer = http_document(status, kind, inert(body).encode(), *allowed)
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else answer


def _replay_command(opinion: Opinion, requirement: str) -> str:
    """What judges a recorded exchange again; empty if it was not recorded."""
    words = ["tokenwire", "replay", opinion.recorded, "--requirement", requirement]
    return shlex.join(words) if opinion.recorded else ""


def live_page(counts: Counts, *, target: str, listening: str, waiting: int, under_way: int) -> str:
    """The page as it is now; `waiting` are bytes, `under_way` exchanges."""
    return template("tokenwire.watch", "live_page.html.jinja").render(
        counts=counts,
        target=target,
        listening=listening,
        waiting=waiting,
        under_way=under_way,
        refresh=_REFRESH_S,
        replay_command=_replay_command,
        requirements=load_requirements(),
        violations=counts.violations.most_common(),
        gaps=counts.gaps.most_common(),
    )
