"""Prefill and decode apart: two servers get the same request, and share a room for the pages of its prompt.

A router sends each request to a server that prefills and to one that decodes, with the same
`bootstrap_host`, `bootstrap_port` and `bootstrap_room` (lists of them for a batch). The first runs the
prompt, samples one token and hands its full pages over (`extras.page_transfer`). The second waits for them,
runs what is left of the prompt, and samples every token itself, the first among them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request as HttpRequest

from tokenwire_reference.core.kv import PADDING_PAGE, StoredPage
from tokenwire_reference.core.prefix_keys import PrefixKeys
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.seams import Seams
from tokenwire_reference.doors.body import hold_against_schema
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import unless_client_leaves
from tokenwire_reference.extras.page_transfer import Pages, PageServer, TransferError, fetch_pages

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine
    from tokenwire_reference.core.stopping import StopRules

T = TypeVar("T")


class Disaggregation(ABC):
    """What one of the two servers does with the requests of a call before the engine gets them."""

    async def prepare(self, http_request: HttpRequest, requests: Sequence[Request]) -> None:
        """Raises RefusalError for requests without a room, or whose pages do not come."""
        body = hold_against_schema(dict(http_request.state.body), "disaggregated-request")
        rooms, hosts, ports = (
            value if isinstance(value, list) else [value]
            for value in map(body.get, ("bootstrap_room", "bootstrap_host", "bootstrap_port"))
        )
        if None in rooms or None in hosts or len(requests) % len(rooms):
            raise RefusalError(
                f"bootstrap_room is {rooms!r:.60} and bootstrap_host {hosts!r:.60}; two servers share each "
                "request, of which this is one: send it by their router",
                param="bootstrap_room",
            )
        prompts = len(requests) // len(rooms)
        shared = [requests[first : first + prompts] for first in range(0, len(requests), prompts)]
        addresses = list(zip(_for_all(hosts, len(rooms)), _for_all(ports, len(rooms)), strict=True))
        numbers = [int(room or 0) for room in rooms]
        await self._share(http_request, list(zip(numbers, addresses, shared, strict=True)))

    @abstractmethod
    async def _share(
        self, http_request: HttpRequest, rooms: Sequence[tuple[int, Any, Sequence[Request]]]
    ) -> None:
        """Do so with each room, the address that it is handed over at, and the samples of its prompt."""


def _for_all(values: Sequence[T], count: int) -> Sequence[T]:
    return list(chain(values, repeat(values[-1], max(0, count - len(values)))))[:count]


class Decode(Disaggregation):
    """Waits for the pages of each prompt."""

    def __init__(self, engine: Engine, patience_s: float) -> None:
        self._engine = engine
        self._fingerprint = engine.model.fingerprint()
        self._template = engine.cache.read_page(PADDING_PAGE)
        self._patience_s = patience_s

    async def _share(
        self, http_request: HttpRequest, rooms: Sequence[tuple[int, Any, Sequence[Request]]]
    ) -> None:
        fetched = asyncio.gather(*(self._fetch(*room) for room in rooms))
        try:
            async with asyncio.timeout(self._patience_s):
                await unless_client_leaves(http_request, fetched)
        except TimeoutError as error:
            words = f"no pages came from the prefill server within {self._patience_s:g} s"
            raise RefusalError(words, type="500", status=500) from error

    async def _fetch(self, room: int, address: tuple[str, int | None], requests: Sequence[Request]) -> None:
        host, port = address
        most = len(requests[0].prompt_token_ids) // self._engine.args.page_size
        fetching = fetch_pages(
            (host, port or 0), room, fingerprint=self._fingerprint, template=self._template, most=most
        )
        try:
            pages = await fetching
        except TransferError as error:
            words = f"the prefill server at {host}:{port} did not hand over room {room}: {error}"
            raise RefusalError(words, type="500", status=500) from error
        for request in requests:
            request.handed_over = pages


class Prefill(Disaggregation):
    """Ends each request at its first token, and hands its pages over."""

    def __init__(self, engine: Engine, patience_s: float) -> None:
        self.engine = engine
        self.loop: asyncio.AbstractEventLoop | None = None
        self.server = PageServer(engine.model.fingerprint(), patience_s)

    async def start(self, host: str, port: int) -> int:
        """Listen for servers that decode; the port. Raises OSError where it is taken."""
        self.loop = asyncio.get_running_loop()
        return await self.server.start(host, port)

    async def _share(self, _: HttpRequest, rooms: Sequence[tuple[int, Any, Sequence[Request]]]) -> None:
        for room, _, requests in rooms:
            try:
                self.server.expect(room)
            except TransferError as error:
                raise RefusalError(str(error), type="503", status=503) from error
            for request in requests:
                request.seams = _UntilTheFirstToken(self, room)

    def hand_over(self, request: Request, room: int) -> None:
        """Put the pages of a prompt into its room. Called between two steps, where the engine runs."""
        finish = request.finish
        failed = finish is not None and finish.type == "abort"
        pages = Pages({}, (finish.message if finish else "") or "abort") if failed else self._pages(request)
        assert self.loop is not None, "it was started"
        self.loop.call_soon_threadsafe(self.server.offer, room, pages)

    def _pages(self, request: Request) -> Pages:
        pool, cache = self.engine.scheduler.pool, self.engine.cache
        keys = PrefixKeys(pool.page_size, request.extra_key, request.cache_salt)
        keys.grow(request.prompt_token_ids)
        wanted = keys.pages(0, len(request.prompt_token_ids))
        held = pool.hold_prefix(wanted)
        found = chain(
            repeat("device", request.cached_tokens_device // pool.page_size),
            repeat("host", request.cached_tokens_host // pool.page_size),
            repeat("storage", request.cached_tokens_storage // pool.page_size),
            repeat("computed"),
        )
        stored = {
            key.digest: StoredPage(tier, cache.read_page(page))  # type: ignore[arg-type]  # one of its four
            for key, page, tier in zip(wanted, held, found, strict=False)
        }
        pool.release(held)
        return Pages(stored)


class _UntilTheFirstToken(Seams):
    """For one request of a server that prefills. The logprobs of its prompt are told by the other server."""

    def __init__(self, prefill: Prefill, room: int) -> None:
        self._prefill = prefill
        self._room = room

    def stop_rules(self, rules: T) -> T:
        of_request: StopRules = rules  # type: ignore[assignment]  # the seam gives back what it gets
        of_request.max_new_tokens = min(of_request.max_new_tokens, 1)
        return rules

    def published(self, request: Request, row: T) -> T:
        if request.finish is not None:
            self._prefill.hand_over(request, self._room)
            request.prompt_series = {name: [] for name in request.prompt_series}
        return row
