"""Prefill and decode on two servers. Both servers get the same request; a *room* identifies the pages of its
prompt.

A router sends each request to a server that prefills and to a server that decodes. Both get the same
`bootstrap_host`, `bootstrap_port` and `bootstrap_room` (lists for a batch). The prefill server runs the
prompt, samples one token, and hands the full pages over (`extras.page_transfer`). The decode server waits for
the pages, runs the rest of the prompt, and samples all tokens, including the first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from tokenwire_reference.core.kv import PADDING_PAGE, StoredPage
from tokenwire_reference.core.prefix_keys import PrefixKeys
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.request_extras import HANDED_OVER
from tokenwire_reference.core.seams import Seams
from tokenwire_reference.doors.body import hold_against_schema
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.host_list import LOOPBACK, HostList
from tokenwire_reference.extras.page_transfer import (
    Identity,
    Pages,
    PageServer,
    TransferError,
    fetch_pages,
)
from tokenwire_reference.server_args import ServerArgs

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine
    from tokenwire_reference.core.stopping import StopRules

_T = TypeVar("_T")


@dataclass(frozen=True)
class Room:
    """The address at which the pages of a prompt are handed over, and the requests with that prompt."""

    number: int
    host: str
    port: int
    requests: Sequence[Request]


def rooms_of(body: Mapping[str, Any], requests: Sequence[Request]) -> list[Room]:
    """Return the rooms of a call's requests. Raises RefusalError if a request has no room."""
    known = hold_against_schema(dict(body), "disaggregated-request")
    numbers, hosts, ports = (
        value if isinstance(value, list) else [value]
        for value in map(known.get, ("bootstrap_room", "bootstrap_host", "bootstrap_port"))
    )
    if None in numbers or None in hosts or len(requests) % len(numbers):
        raise RefusalError(
            f"bootstrap_room is {numbers!r:.60} and bootstrap_host {hosts!r:.60}; this server "
            "shares each request with another one: send it to their router",
            param="bootstrap_room",
        )
    prompts = len(requests) // len(numbers)
    return [
        Room(int(number), host, port or 0, requests[place * prompts : (place + 1) * prompts])
        for place, (number, host, port) in enumerate(
            zip(numbers, _for_all(hosts, len(numbers)), _for_all(ports, len(numbers)), strict=True)
        )
    ]


def _for_all(values: Sequence[_T], count: int) -> Sequence[_T]:
    return list(chain(values, repeat(values[-1], max(0, count - len(values)))))[:count]


class Disaggregation(ABC):
    """The part of one of the two servers in a call. It begins before the engine gets the requests."""

    @abstractmethod
    async def share(self, rooms: Sequence[Room], aborted: asyncio.Event) -> None:
        """Fetch or hand over the pages of the requests. Raises RefusalError if pages do not arrive."""

    @abstractmethod
    def load(self) -> dict[str, int]:
        """Return the numbers of requests that wait for the other server, under SGLang's names."""


class Decode(Disaggregation):
    """The decode server, which waits for the pages of each prompt."""

    def __init__(self, engine: Engine, args: ServerArgs) -> None:
        self._engine = engine
        self._identity = Identity(engine.model.fingerprint(), args.api_key)
        self._may_ask = HostList(args.disaggregation_prefill_hosts or LOOPBACK)
        self._template = engine.cache.read_page(PADDING_PAGE)
        self._patience_s = args.disaggregation_timeout_seconds
        self._waiting = 0

    def load(self) -> dict[str, int]:
        return {"decode_transfer_queue_reqs": self._waiting}

    async def share(self, rooms: Sequence[Room], aborted: asyncio.Event) -> None:
        for room in rooms:
            if room.host not in self._may_ask:
                raise RefusalError(
                    f"bootstrap_host is {room.host!r:.80}, which this server may not ask for pages; "
                    "permit it with --disaggregation-prefill-host",
                    param="bootstrap_host",
                )
        self._waiting += len(rooms)
        fetching = asyncio.create_task(self._fetch_all(rooms))
        aborting = asyncio.create_task(aborted.wait())
        try:
            done, _ = await asyncio.wait(
                (fetching, aborting), timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            if fetching in done:
                fetching.result()
            elif not done:
                words = f"no pages came from the prefill server within {self._patience_s:g} s"
                raise RefusalError(words, type="500", status=500)
        finally:
            self._waiting -= len(rooms)
            fetching.cancel()
            aborting.cancel()

    async def _fetch_all(self, rooms: Sequence[Room]) -> None:
        fetches = [asyncio.ensure_future(self._fetch(room)) for room in rooms]
        try:
            await asyncio.gather(*fetches)
        finally:
            for fetch in fetches:
                fetch.cancel()

    async def _fetch(self, room: Room) -> None:
        fetching = fetch_pages(
            (room.host, room.port),
            room.number,
            identity=self._identity,
            template=self._template,
            most=len(room.requests[0].prompt_token_ids) // self._engine.args.page_size,
        )
        try:
            pages = await fetching
        except TransferError as error:
            words = (
                f"the prefill server at {room.host}:{room.port} did not hand over room {room.number}: {error}"
            )
            raise RefusalError(words, type="500", status=500) from error
        for request in room.requests:
            HANDED_OVER.put(request, pages)


class Prefill(Disaggregation):
    """The prefill server, which ends each request at its first token and hands its pages over."""

    def __init__(self, engine: Engine, args: ServerArgs) -> None:
        self.engine = engine
        self.loop: asyncio.AbstractEventLoop | None = None
        identity = Identity(engine.model.fingerprint(), args.api_key)
        self.server = PageServer(identity, args.disaggregation_timeout_seconds)

    def load(self) -> dict[str, int]:
        return {"prefill_inflight_queue_reqs": self.server.rooms}

    async def start(self, host: str, port: int) -> int:
        """Listen for decode servers; return the port. Raises OSError if the port is in use."""
        self.loop = asyncio.get_running_loop()
        return await self.server.start(host, port)

    async def share(self, rooms: Sequence[Room], aborted: asyncio.Event) -> None:
        del aborted  # this method must not wait
        for room in rooms:
            try:
                self.server.expect(room.number)
            except TransferError as error:
                raise RefusalError(str(error), type="503", status=503) from error
            for request in room.requests:
                request.seams = _UntilTheFirstToken(self, room.number, request.seams)  # type: ignore[assignment]

    def hand_over(self, request: Request, room: int) -> None:
        """Make the pages of a prompt available in its room.

        Called between two steps, on the engine's thread.
        """
        finish = request.finish
        failed = finish is not None and finish.type == "abort"
        pages = Pages({}, (finish.message if finish else "") or "abort") if failed else self._pages(request)
        assert self.loop is not None, "it was started"
        self.loop.call_soon_threadsafe(self.server.offer, room, pages)

    def _pages(self, request: Request) -> Pages:
        pool, cache = self.engine.scheduler.pool, self.engine.cache
        keys = PrefixKeys(pool.page_size, *request.prefix_secrets)
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


class _UntilTheFirstToken:
    """The seams of a request on the prefill server, which end the request at its first token.

    The decode server reports the logprobs of the prompt.
    """

    def __init__(self, prefill: Prefill, room: int, before: Seams) -> None:
        self._prefill = prefill
        self._room = room
        self._before = before
        """The request's original seams."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)

    def stop_rules(self, rules: _T) -> _T:
        of_request: StopRules = self._before.stop_rules(rules)  # type: ignore[assignment]  # it gives these
        of_request.max_new_tokens = min(of_request.max_new_tokens, 1)
        return rules

    def published(self, request: Request, row: _T) -> _T:
        row = self._before.published(request, row)
        if request.finish is not None:
            self._prefill.hand_over(request, self._room)
            request.prompt_series = {name: [] for name in request.prompt_series}
        return row
