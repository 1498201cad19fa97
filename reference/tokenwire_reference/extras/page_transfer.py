"""Pages of keys and values on their way from an engine that prefills to one that decodes: a socket, a room.

    decode ──▶ prefill   {"room": 7, "fingerprint": "…"}                             a line of JSON
    prefill ──▶ decode   {"pages": [["digest", "computed"], …], "bytes": 4096}       a line, and so many bytes
                         {"failure": "Aborted"}                                      a line in place of it

The bytes are a file of safetensors. A room is handed over once, and dropped after a while if it is not
fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from safetensors.torch import load, save
from torch import Tensor

from tokenwire_reference.core.kv import StoredPage

logger = logging.getLogger(__name__)
MOST_ROOMS = 4096
_LONGEST_LINE = 1 << 20
_FOUND = get_args(get_type_hints(StoredPage)["tier"])


class TransferError(RuntimeError):
    """Pages did not come, or are of no use here."""


@dataclass(frozen=True)
class Pages:
    """The full pages of a prompt, by the digests of their keys; or why there are none."""

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


class PageServer:
    """Hands over the pages of each room to the first who asks. Lives on the event loop."""

    def __init__(self, fingerprint: str, patience_s: float) -> None:
        """`fingerprint` is that of the model: pages of another one are of no use."""
        self._fingerprint = fingerprint
        self._patience_s = patience_s
        self._rooms: dict[int, asyncio.Future[Pages]] = {}
        self._server: asyncio.Server | None = None

    @property
    def rooms(self) -> int:
        """The number of rooms that have not been handed over."""
        return len(self._rooms)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError where it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_LINE)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def expect(self, room: int) -> asyncio.Future[Pages]:
        """Make a room for pages that will come, if there is none. Raises TransferError for too many."""
        if room not in self._rooms:
            if len(self._rooms) >= MOST_ROOMS:
                raise TransferError(f"{MOST_ROOMS} rooms wait to be handed over; try again later")
            loop = asyncio.get_running_loop()
            self._rooms[room] = loop.create_future()
            loop.call_later(self._patience_s, self._rooms.pop, room, None)
        return self._rooms[room]

    def offer(self, room: int, pages: Pages) -> None:
        """Put pages into a room, if it waits for some."""
        waiting = self._rooms.get(room)
        if waiting is not None and not waiting.done():
            waiting.set_result(pages)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._hand_over(json.loads(await reader.readline()), writer)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError, TransferError) as error:
            logger.warning("a room was not handed over: %s: %s", type(error).__name__, error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _hand_over(self, asked: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked["fingerprint"] == self._fingerprint:
            room = int(asked["room"])
            pages = await asyncio.shield(self.expect(room))
            self._rooms.pop(room, None)
        else:
            pages = Pages({}, "the prefill server runs another model, torch, device or data type")
        data = await asyncio.to_thread(pages.data)
        writer.write(json.dumps(pages.head(data)).encode() + b"\n")
        writer.write(data)
        await writer.drain()


async def fetch_pages(
    address: tuple[str, int], room: int, *, fingerprint: str, template: Sequence[Tensor], most: int
) -> Mapping[bytes, StoredPage]:
    """Return the pages of a room, at most `most` of them, each with tensors as those of `template` are.

    Raises TransferError for what does not come, and for what is something else.
    """
    reader = writer = None
    try:
        reader, writer = await asyncio.open_connection(*address, limit=_LONGEST_LINE)
        asked = {"room": room, "fingerprint": fingerprint}
        writer.write(json.dumps(asked).encode() + b"\n")
        head = json.loads(await reader.readline() or b'{"failure": "it closed the connection"}')
        if failure := head.get("failure"):
            raise TransferError(f"{failure}"[:300])
        # The header of a safetensors file takes some 100 bytes for each tensor.
        page_bytes = sum(tensor.nbytes + 256 for tensor in template)
        if not (len(head["pages"]) <= most and 0 <= head["bytes"] <= most * page_bytes + 1024):
            raise TransferError(f"it sends {len(head['pages'])} pages, and the prompt has {most}")
        data = await reader.readexactly(head["bytes"])
        return await asyncio.to_thread(_pages, head["pages"], data, template)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransferError(f"{type(error).__name__}: {error}") from error
    finally:
        if writer is not None:
            writer.close()


def _pages(
    stated: Sequence[tuple[str, Any]], data: bytes, template: Sequence[Tensor]
) -> Mapping[bytes, StoredPage]:
    tensors = [tensor for _, tensor in sorted(load(data).items())] if data else []
    shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
    if shapes != [(tensor.shape, tensor.dtype) for tensor in template] * len(stated):
        raise TransferError("its pages have another shape than those of this server")
    pages: dict[bytes, StoredPage] = {}
    for place, (digest, tier) in enumerate(stated):
        if tier not in _FOUND:
            raise TransferError(f"a page was {tier!r:.40}, which is none of {', '.join(_FOUND)}")
        first = place * len(template)
        pages[bytes.fromhex(digest)] = StoredPage(tier, tensors[first : first + len(template)])
    return pages
