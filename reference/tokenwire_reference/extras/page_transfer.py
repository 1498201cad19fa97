"""Transfers pages of keys and values from a prefill server to a decode server, over a socket.

    decode ──▶ prefill   {"room": 7, "fingerprint": "…", "proof": "…"}               a line of JSON
    prefill ──▶ decode   {"pages": [["digest", "computed"], …], "bytes": 4096}       a line, and the bytes
                         {"failure": "Aborted"}                                      a line in place of it

The bytes are a file of safetensors. A *room* holds the pages of one prompt. A room is handed over once, to
the first peer that requests it and has the key. A room that nobody requests is dropped after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import orjson
from safetensors.torch import load, save
from torch import Tensor

from tokenwire_reference.core.kv import StoredPage

logger = logging.getLogger(__name__)
MOST_ROOMS = 4096
_LONGEST_LINE = 1 << 20
_FOUND = get_args(get_type_hints(StoredPage)["tier"])


class TransferError(RuntimeError):
    """Pages did not arrive, or do not fit this server."""


@dataclass(frozen=True)
class Pages:
    """The full pages of a prompt by key digest, or the reason for their absence."""

    stored: Mapping[bytes, StoredPage]
    failure: str = ""

    def head(self, data: bytes) -> dict[str, Any]:
        if self.failure:
            return {"failure": self.failure}
        pages = [(digest.hex(), page.tier) for digest, page in self.stored.items()]
        return {"pages": pages, "bytes": len(data)}

    def data(self) -> bytes:
        """Return all tensors of all pages, in order."""
        tensors = [tensor for page in self.stored.values() for tensor in page.payload]
        return save({f"{place:08}": tensor for place, tensor in enumerate(tensors)}) if tensors else b""


@dataclass(frozen=True)
class Identity:
    """The identity that two servers compare: their common model, and their common key if they have one."""

    fingerprint: str
    key: str | None = field(default=None, repr=False)

    def asks(self, room: int) -> dict[str, Any]:
        """Return the request of a decode server for a room.

        It proves that the sender has the key, without the key itself.
        """
        return {"room": room, "fingerprint": self.fingerprint, "proof": self._proof(room)}

    def proven_by(self, asked: Mapping[str, Any], room: int) -> bool:
        """True if a request proves that its sender has the key."""
        given = asked.get("proof")
        return self.key is None or (
            isinstance(given, str) and hmac.compare_digest(given.encode(), self._proof(room).encode())
        )

    def _proof(self, room: int) -> str:
        said = f"{room} {self.fingerprint}".encode()
        return "" if self.key is None else hmac.new(self.key.encode(), said, "sha256").hexdigest()


class _Room:
    """The pages of one prompt, which wait for a decode server."""

    def __init__(self) -> None:
        self.pages: asyncio.Future[Pages] = asyncio.get_running_loop().create_future()
        self.asked_for = False
        self.handed_over = False


class PageServer:
    """Hands over the pages of each room once, to the first valid request. Must be used on the event loop."""

    def __init__(self, identity: Identity, patience_s: float) -> None:
        self._identity = identity
        self._patience_s = patience_s
        self._rooms: dict[int, _Room] = {}
        self._server: asyncio.Server | None = None

    @property
    def rooms(self) -> int:
        """The number of rooms that have not been handed over."""
        return sum(not room.handed_over for room in self._rooms.values())

    async def start(self, host: str, port: int) -> int:
        """Listen for decode servers; return the port. Raises OSError if the port is in use."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_LINE)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def expect(self, number: int) -> None:
        """Add a room for expected pages, unless the room exists.

        Raises TransferError if there are too many rooms.
        """
        known = self._rooms.get(number)
        if known is None or known.handed_over:
            self._make(number)

    def _make(self, number: int) -> _Room:
        if len(self._rooms) >= MOST_ROOMS:
            raise TransferError(f"{MOST_ROOMS} rooms are waiting for a decode server; try again later")
        room = self._rooms[number] = _Room()
        asyncio.get_running_loop().call_later(self._patience_s, self._drop, number, room)
        return room

    def _drop(self, number: int, room: _Room) -> None:
        if self._rooms.get(number) is room:
            del self._rooms[number]

    def offer(self, number: int, pages: Pages) -> None:
        """Put pages into a room. If the room does not exist any more, nothing happens."""
        room = self._rooms.get(number)
        if room is not None and not room.pages.done():
            room.pages.set_result(pages)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection. An error ends only the connection, with one line in the log."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._hand_over(orjson.loads(await reader.readline()), writer)
        except Exception as error:
            logger.warning("a room was not handed over: %s", _in_one_line(error))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _hand_over(self, asked: Any, writer: asyncio.StreamWriter) -> None:
        pages = await self._asked_for(asked)
        data = await asyncio.to_thread(pages.data)
        writer.write(json.dumps(pages.head(data)).encode() + b"\n")
        writer.write(data)
        await writer.drain()

    async def _asked_for(self, asked: Any) -> Pages:
        """Return the pages of the requested room, or the reason for a refusal."""
        match asked:
            case {"room": int(number)} if not isinstance(number, bool) and 0 <= number < 1 << 64:
                pass
            case _:
                return Pages({}, "no room was named")
        if not self._identity.proven_by(asked, number):
            return Pages({}, "the prefill server has an --api-key, and this server has another one or none")
        if asked.get("fingerprint") != self._identity.fingerprint:
            return Pages({}, "the prefill server runs another model, torch, device or data type")
        room = self._rooms.get(number) or self._make(number)
        if room.asked_for:
            return Pages({}, "it was asked for before")
        room.asked_for = True
        pages = await asyncio.shield(room.pages)
        room.handed_over = True
        return pages


async def fetch_pages(
    address: tuple[str, int], room: int, *, identity: Identity, template: Sequence[Tensor], most: int
) -> Mapping[bytes, StoredPage]:
    """Return the pages of a room, at most `most` of them, with tensors like those of `template`.

    Raises TransferError for missing or invalid data. The message quotes the peer only if the peer is a
    prefill server, because another program may listen on the port.
    """
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address, limit=_LONGEST_LINE)
        writer.write(json.dumps(identity.asks(room)).encode() + b"\n")
        return await _receive(reader, template, most)
    except TransferError:
        raise
    except Exception as error:
        logger.warning("no pages came from %s:%d: %s", *address, _in_one_line(error))
        raise TransferError("no pages came") from None
    finally:
        if writer is not None:
            writer.close()


async def _receive(
    reader: asyncio.StreamReader, template: Sequence[Tensor], most: int
) -> Mapping[bytes, StoredPage]:
    """Parse the answer of a prefill server. Raises the errors of parsing for any other answer."""
    head = orjson.loads(await reader.readline() or b'{"failure": "it closed the connection"}')
    if failure := head.get("failure"):
        raise TransferError(f"{failure}"[:300])
    # The header of a safetensors file takes some 100 bytes for each tensor.
    page_bytes = sum(tensor.nbytes + 256 for tensor in template)
    if not (len(head["pages"]) <= most and 0 <= head["bytes"] <= most * page_bytes + 1024):
        raise TransferError(
            f"the prefill server sends {len(head['pages'])} pages, but the prompt has only {most}"
        )
    data = await reader.readexactly(head["bytes"])
    return await asyncio.to_thread(_pages, head["pages"], data, template)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


def _pages(
    stated: Sequence[tuple[str, Any]], data: bytes, template: Sequence[Tensor]
) -> Mapping[bytes, StoredPage]:
    tensors = [tensor for _, tensor in sorted(load(data).items())] if data else []
    shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
    if shapes != [(tensor.shape, tensor.dtype) for tensor in template] * len(stated):
        raise TransferError(
            "the pages of the prefill server have another shape than the pages of this server"
        )
    pages: dict[bytes, StoredPage] = {}
    for place, (digest, tier) in enumerate(stated):
        if tier not in _FOUND:
            raise TransferError(f"a page was found in {tier!r:.40}; known tiers are {', '.join(_FOUND)}")
        first = place * len(template)
        pages[bytes.fromhex(digest)] = StoredPage(tier, tensors[first : first + len(template)])
    return pages
