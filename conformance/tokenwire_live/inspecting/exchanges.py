"""Requests that were sent from the page: stores the running requests and the latest answers, in limited
memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from tokenwire.asking.run import Reached
from tokenwire.asking.tap import Tap
from tokenwire.dialects.control import load_controls
from tokenwire.dialects.dialect import Dialect
from tokenwire.processes import Helper
from tokenwire.usage_error import UsageError
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, as_started
from tokenwire.wire.json_pointer import find, put
from tokenwire_live.inspecting.bench import COUNTS, TARGET, Answer, Bench, Question

SCENARIO = "by-hand"
_MOST_ROWS = 200
_MOST_BYTES = 64 << 20
"""The maximum size of all stored answers in bytes. The oldest answers are deleted first."""
_MOST_WAITING = 1000
"""The maximum number of requests that may run or wait."""


@dataclass
class Asked:
    """A request that was sent from the page."""

    number: int
    to: str
    dialect: Dialect
    request: HttpRequest
    tap: Tap = field(default_factory=Tap)
    ended: Exchange | None = None
    refused: str = ""
    """The reason why the request could not be sent; empty if it was sent."""
    counts: Mapping[str, Any] | None = None
    """The verdict on the complete answer; None until the answer is judged."""
    so_far: Mapping[str, Any] = field(default_factory=dict)
    """The verdict on the part of the answer that the page showed last."""
    task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"{SCENARIO}/{self.number}"

    @property
    def exchange(self) -> Exchange:
        """Return the exchange, as far as it has arrived."""
        known = self.ended or self.tap.so_far()
        if known is None:
            waiting = self.refused or "it waits for its turn"
            return Exchange(self.name, self.request, SCENARIO, None, (), (), Ending.CANCELLED, waiting)
        return known if self.ended else replace(known, ending=Ending.CANCELLED, detail="under way")

    @property
    def answer(self) -> Answer:
        return Answer(self.exchange, self.dialect.name, not (self.ended or self.refused), self.to)

    def row(self) -> dict[str, Any]:
        """Return the data for the answer's row in the page's table."""
        known = self.ended or self.tap.so_far()
        reads = known.reads if known is not None else ()
        state = self.refused or (
            self.ended.ending.value if self.ended else "under way" if known else "waiting"
        )
        return {
            "number": self.number,
            "to": self.to,
            "path": self.request.path,
            "state": state,
            "open": not (self.ended or self.refused),
            "status": known.status if known else None,
            "bytes": len(self.tap.body),
            "first": reads[0].time if reads else None,
            "seconds": self.ended.duration if self.ended else None,
            **(self.counts or self.so_far),
        }


class Exchanges:
    """Sends the requests of the page, and stores the answers. All calls must come from one event loop."""

    def __init__(self, targets: Mapping[str, Reached], bench: Bench) -> None:
        self.targets = targets
        self._helper = Helper(bench)
        self.known: dict[int, Asked] = {}
        self._count = 0
        self._judging = asyncio.Event()
        self._background = asyncio.create_task(self._judge_the_rest())

    @property
    def dialects(self) -> Mapping[str, Dialect]:
        return {dialect.name: dialect for dialect in self.targets[TARGET].found.asked}

    def send(self, dialect: str, body: str, to: str = TARGET) -> int:
        """Send a request, and return the number of the request. Raises UsageError."""
        if dialect not in self.dialects or to not in self.targets:
            raise UsageError(f"server {to!r} does not support dialect {dialect!r}")
        if sum(asked.ended is None for asked in self.known.values()) >= _MOST_WAITING:
            raise UsageError(f"{_MOST_WAITING} requests are already waiting; wait until some have ended")
        endpoint = self.dialects[dialect].endpoint
        # If the body is JSON, it is parsed and sent in the suite's format. Any other text is sent unchanged.
        try:
            sent = self._addressed(strict_json.loads(body), self.dialects[dialect], to)
            request = HttpRequest(endpoint.methods[0], endpoint.path, sent)
        except ValueError:
            request = HttpRequest(endpoint.methods[0], endpoint.path, None, body.encode(errors="replace"))
        self._count += 1
        asked = Asked(self._count, to, self.dialects[dialect], request)
        self.known[asked.number] = asked
        asked.task = asyncio.create_task(self._ask(asked))
        self._forget()
        return asked.number

    def _addressed(self, body: Any, dialect: Dialect, to: str) -> Any:
        """Return the body with the model name of another server."""
        ours, theirs = (self.targets[name].found.model for name in (TARGET, to))
        if dialect.request.model is not None and find(body, dialect.request.model) == ours:
            put(body, dialect.request.model, theirs)
        return body

    async def _ask(self, asked: Asked) -> None:
        try:
            sender = self.targets[asked.to].once
            asked.ended = await sender.send(asked.name, SCENARIO, asked.request, tap=asked.tap)
        except ValueError as error:
            asked.refused = f"it cannot be sent: {error}"
        self._judging.set()

    def stop(self, number: int) -> None:
        """Close the connection of a running request."""
        asked = self.known[number]
        if asked.ended is None:
            asked.tap.hang_up(reset=False)

    async def abort(self, number: int) -> str:
        """Send an abort for a request, and return a description of the result."""
        asked = self.known[number]
        request_id = asked.dialect.read_asked(asked.request).request_id
        control = load_controls().get(asked.dialect.family)
        if request_id is None:
            return "it has no id: give its request one in the form, and send it again"
        named = f"{asked.dialect.policy.request_id_prefix}{request_id}"
        request = control.abort_request(named, asked.dialect.endpoint.path) if control else None
        if request is None:
            return f"{asked.dialect.name} has no abort by id"
        label = f"{asked.name}-abort-{as_started(time.time())}"
        answer = await self.targets[asked.to].once.send(label, SCENARIO, request, aside=True)
        return f"{request.method} {request.path} for {named!r} was answered {answer.status or answer.detail}"

    async def view(self, number: int, beside: int = 0) -> dict[str, Any]:
        """Return the page's view of an answer.

        If `beside` names another answer, the view compares both answers.
        """
        asked = self.known[number]
        other = self.known[beside].answer if beside in self.known else None
        view = await self._judged(Question(asked.answer, number, other))
        if other is None:
            asked.so_far = {name: view[name] for name in COUNTS if name in view}
        return view

    async def _judged(self, question: Question) -> dict[str, Any]:
        try:
            judged: dict[str, Any] = await asyncio.wrap_future(self._helper.submit(question))
        except BrokenProcessPool:
            return {"html": "<p>the process that judges died of this answer</p>", "playback": None}
        return judged

    async def _judge_the_rest(self) -> None:
        """Judge finished answers, the newest first, because the table shows how many violations each has."""
        while True:
            await self._judging.wait()
            left = [asked for asked in self.known.values() if asked.ended and asked.counts is None]
            if not left:
                self._judging.clear()
                continue
            left[-1].counts = await self._judged(Question(left[-1].answer))

    def _forget(self) -> None:
        """Delete the oldest finished answers, until the limit is satisfied."""
        ended = [asked for asked in self.known.values() if not asked.row()["open"]]
        size = sum(len(asked.tap.body) for asked in ended)
        for asked in ended[: max(0, len(self.known) - _MOST_ROWS)]:
            size -= len(self.known.pop(asked.number).tap.body)
        for asked in list(self.known.values()):
            if size > _MOST_BYTES and asked.ended:
                size -= len(self.known.pop(asked.number).tap.body)

    async def close(self) -> None:
        """Disconnect all running requests."""
        tasks = [self._background, *(asked.task for asked in self.known.values() if asked.task)]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._helper.close()
