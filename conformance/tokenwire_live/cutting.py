"""A proxy before a worker that breaks off a stream when it is asked to.

Bytes are forwarded as they arrive. `POST /tokenwire/cut` asks for a cut: the next stream of events ends after
its second event, together with both connections, as if the worker had died. `DELETE /tokenwire/cut` ends the
request. Both are answered with the number of streams that were cut so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokenwire.dialects.control import Action, load_controls
from tokenwire.local_server import Guard
from tokenwire.wire.address import Address

_EVENTS = 2
"""The number of events of a stream before its cut."""
_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16
_REFUSED = "requests from web pages of another host or origin are not answered"
_STREAM = re.compile(rb"content-type:[ \t]*text/event-stream", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"
_EVENT = re.compile(rb"\n\n|\r\n\r\n")


@dataclass
class _Search:
    """Searches the bytes of a connection for the place of the cut."""

    seen: bytes = b""
    """The last bytes that may contain the beginning of a match."""

    def place(self, data: bytes) -> int | None:
        """Return the number of bytes of `data` before the cut; None if the cut is not in `data`."""
        held, self.seen = self.seen, (self.seen + data)[-_READ_BYTES:]
        whole = held + data
        media_type = _STREAM.search(whole)
        head = -1 if media_type is None else whole.find(_END_OF_HEAD, media_type.end())
        if head < 0:
            return None
        ends = [event.end() for event in _EVENT.finditer(whole, head + len(_END_OF_HEAD))]
        return max(0, ends[_EVENTS - 1] - len(held)) if len(ends) >= _EVENTS else None


class CuttingProxy:
    """Forwards connections to a worker, and cuts a stream when it is asked to."""

    def __init__(self, worker: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self._worker = worker
        self._tls = (tls or ssl.create_default_context()) if worker.tls else None
        self._armed = False
        self._cuts = 0
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        table = load_controls()["tokenwire"]
        calls = {action: table.plain_request(action) for action in (Action.CUT, Action.SPARE)}
        self._calls = {
            f"{call.method} {call.path} HTTP/1.1".encode(): action
            for action, call in calls.items()
            if call is not None
        }

    async def listen(self, address: Address) -> Address:
        """Start to listen; return the address with the actual port. Raises OSError if it is in use."""
        self._server = await asyncio.start_server(self._accept, address.host, address.port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._serve(reader, writer)
        except OSError:  # one side has ended, so the other side ends too
            pass
        finally:
            self._running.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await _head(reader)
        line, *fields = first.partition(_END_OF_HEAD)[0].split(b"\r\n")
        action = self._calls.get(line)
        if action is not None:
            await self._answer(action, fields, writer)
            return
        from_worker, to_worker = await asyncio.open_connection(
            self._worker.host, self._worker.port, ssl=self._tls
        )
        try:
            to_worker.write(first)
            async with asyncio.TaskGroup() as both:
                forward = both.create_task(_forward(reader, to_worker))
                both.create_task(self._forward_until_the_cut(from_worker, writer, forward))
        except* OSError:
            pass
        finally:
            to_worker.close()

    async def _answer(self, action: Action, fields: Sequence[bytes], writer: asyncio.StreamWriter) -> None:
        named = {name.strip().lower(): value.strip() for name, _, value in _split(fields)}
        admitted = Guard().admits(named.get("host", ""), named.get("origin"))
        if admitted:
            self._armed = action is Action.CUT
        status = "200 OK" if admitted else "403 Forbidden"
        body = json.dumps({"cuts": self._cuts} if admitted else {"error": _REFUSED}).encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()

    async def _forward_until_the_cut(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.Task[None]
    ) -> None:
        search = _Search()
        while data := await reader.read(_READ_BYTES):
            place = search.place(data) if self._armed else None
            if place is not None:
                self._armed, self._cuts = False, self._cuts + 1
            writer.write(data if place is None else data[:place])
            await writer.drain()
            if place is not None:
                break
        else:
            with contextlib.suppress(OSError):
                writer.write_eof()
            return
        writer.close()
        other.cancel()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Read until the head of a request is complete; return all bytes that were read."""
    found = b""
    while _END_OF_HEAD not in found and len(found) < _HEAD_BYTES:
        data = await reader.read(_READ_BYTES)
        if not data:
            break
        found += data
    return found


def _split(fields: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the value of each header field, with the colon between them."""
    return (field.decode("latin-1").partition(":") for field in fields)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
