"""Live requests by id: delivers rows, wakes consumers, and aborts requests. Used on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.request import Request, Row
from tokenwire_reference.core.seams import current_seams
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.meters import Meters
from tokenwire_reference.doors.reader import Delivery, Emission, Reader
from tokenwire_reference.running.engine_runner import EngineRunner
from tokenwire_reference.running.ranks import Ranks

logger = logging.getLogger(__name__)


class DuplicateRequestIdError(ValueError):
    """A request id is in use by a live request."""


class ClientLeftError(Exception):
    """The client disconnected before there was an answer."""


class Generation:
    """The readers of one HTTP request, in the order of their index."""

    def __init__(self, readers: Sequence[Reader], engine: EngineRunner | Ranks) -> None:
        self.readers = readers
        self._engine = engine
        self._early: set[str] | None = set()
        """The ids that were aborted before the engine got the requests; None after the engine got them."""
        self.aborted_early = asyncio.Event()
        """An event that is set if all requests are aborted before the engine gets them."""
        self._wake = asyncio.Event()
        self._at_once: Callable[[], bool] | None = None
        self._error: Exception | None = None
        self._left = False

    @property
    def ended(self) -> bool:
        """True if each record has delivered its finish."""
        return all(reader.taken_finish for reader in self.readers)

    def start(self) -> None:
        """Pass the requests to the engine. Requests that were already aborted end at once."""
        early, self._early = self._early or (), None
        for reader in self.readers:
            self._engine.add(reader.request, aborted=reader.request.rid in early)

    def abort(self, rid: str) -> None:
        if self._early is None:
            self._engine.abort(rid)
            return
        self._early.add(rid)
        if len(self._early) == len(self.readers):
            self.aborted_early.set()

    def hang_up(self) -> None:
        """Tell the consumer that its client has disconnected, so that it stops waiting."""
        self._left = True
        self._wake.set()

    def rows_came(self) -> None:
        """Wake the consumer, once for all rows of a step."""
        try:
            if self._at_once is not None and not self._wake.is_set() and self._at_once():
                return
        except Exception as error:  # an error of one consumer must not affect the others
            self._error = error
        self._wake.set()

    async def woken(self, at_once: Callable[[], bool] | None = None) -> None:
        """Wait until rows arrive that came after the last call.

        Raises ClientLeftError after `hang_up`. If the consumer can take rows without waiting, it passes a
        function as `at_once`, which is called for the rows of each step. The consumer is then woken only if
        `at_once` returns False. Exceptions of `at_once` are raised here.
        """
        self._at_once = at_once
        try:
            await self._wake.wait()
        finally:
            self._at_once = None
        self._wake.clear()
        if self._error is not None:
            raise self._error
        if self._left:
            raise ClientLeftError

    def take(self, delivery: Delivery) -> Iterator[Emission]:
        """Yield an emission of each record with pending tokens."""
        for reader in self.readers:
            if reader.pending:
                yield reader.take(delivery)

    async def first(self, delivery: Delivery) -> Emission:
        """Wait for the first emission of any record, and take it."""
        while True:
            await self.woken()
            for emission in self.take(delivery):
                return emission

    async def whole(self) -> list[Emission]:
        """Wait for the end of every record, and return one emission for each record, with
        the whole answer.
        """
        while not all(reader.finish for reader in self.readers):
            await self.woken()
        return [reader.take(Delivery.CUMULATIVE) for reader in self.readers]

    def close(self) -> None:
        """Abort records that have not ended, because the client has disconnected."""
        for reader in self.readers:
            if reader.finish is None and reader.request.seams.leaving():
                self.abort(reader.request.rid)


class _Live(NamedTuple):
    """A request that has not ended."""

    reader: Reader
    generation: Generation


class RequestManager:
    """Stores every live request by its id. Must be used on the event loop only."""

    def __init__(self, engine: EngineRunner | Ranks, tokenizer: Tokenizer | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self.meters = Meters()
        self._live: dict[str, _Live] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """The live requests of each group, in order."""

    @property
    def live(self) -> int:
        """The number of requests that have not ended."""
        return len(self._live)

    def submit(
        self, requests: Sequence[Request], *, group: str | None = None, start: bool = True
    ) -> Generation:
        """Start the requests of one call, or let the consumer start them.

        `group` is an id with which all requests of the call can be aborted. Raises DuplicateRequestIdError if
        an id is in use or occurs twice; then no request is started.
        """
        names = [request.rid for request in requests]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise DuplicateRequestIdError(f"rid {twice[0]!r} occurs twice; give each request its own")
        for name in {*names, group} - {None}:
            if name in self._live or name in self._groups:
                current_seams().colliding(str(name), self._abort_live)
                raise DuplicateRequestIdError(
                    f"rid {name!r} is the id of a request that has not ended; choose another or send none"
                )
        readers = [self._reader(index, request) for index, request in enumerate(requests)]
        generation = Generation(readers, self._engine)
        if group is not None and group not in names:
            self._groups[group] = dict.fromkeys(names)
        for request, reader in zip(requests, readers, strict=True):
            request.group = group or names[0]
            self._live[request.rid] = _Live(reader, generation)
        if start:
            generation.start()
        return generation

    def _reader(self, index: int, request: Request) -> Reader:
        detokenizer = None
        if self._tokenizer is not None:
            detokenizer = Detokenizer.of(self._tokenizer, request.sampling, request.prompt_token_ids)
            detokenizer = request.seams.detokenizer(detokenizer)
        return Reader(index, request, detokenizer)

    def deliver(self, rows: Sequence[Row]) -> None:
        """Deliver the rows of one step to their readers, remove ended requests, and wake the consumers."""
        consumers: dict[Generation, None] = {}
        for row in rows:
            rid = row.record.rid
            live = self._live.get(rid)
            if live is None:  # the reader failed before the engine got its request
                continue
            reader, generation = live
            last = reader.grown or reader.started
            try:
                reader.append(row)
            # An error in the reader of one request must not stop the delivery to other requests.
            except Exception as error:
                logger.exception("row %d:%d of request %r could not be delivered", row.start, row.end, rid)
                reader.fail(row, error)
                self._engine.abort(rid)
            self._measure(reader, row, last)
            if reader.finish is not None:
                self._forget(reader.request)
                reader.request.seams.ended(rid, self._abort_live)
            consumers[generation] = None
        for generation in consumers:
            generation.rows_came()

    def _measure(self, reader: Reader, row: Row, last: float) -> None:
        """Count a row for `/metrics`. `last` is the time of the previous row."""
        since_start = reader.grown - reader.started
        self.meters.emitted(row.end - row.start, row.start, since_start, reader.grown - last)
        if row.finish is not None:
            self.meters.ended(
                prompt_tokens=len(row.record.prompt_token_ids),
                cached_tokens=row.record.cached_tokens,
                seconds=since_start,
                aborted=row.finish.type == "abort",
            )

    def _forget(self, request: Request) -> None:
        """Remove an ended request, and its group if the group has no other request."""
        del self._live[request.rid]
        group = request.group or ""
        # The group may belong to a later call that reuses the request id of this call. A call of a single
        # request has no group.
        members = self._groups.get(group, {})
        members.pop(request.rid, None)
        if not members:
            self._groups.pop(group, None)

    def abort(self, rid: str) -> None:
        """Abort the request, or the group of requests, with exactly this id; an unknown id has no effect."""
        for name in current_seams().aborting(rid, self._live, list(self._groups.get(rid, (rid,)))):
            self._abort_live(name)

    def _abort_live(self, rid: str) -> None:
        if rid in self._live:
            self._live[rid].generation.abort(rid)

    def abort_all(self) -> None:
        """Abort all requests that have not ended."""
        for name in list(self._live):
            self._abort_live(name)
