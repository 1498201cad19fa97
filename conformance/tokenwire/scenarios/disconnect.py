"""Scenarios in which clients disconnect within an answer.

The load that the server reports shows if the server noticed.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tokenwire.ask import Budget
from tokenwire.asking.scenario import Conversation, scenario, together
from tokenwire.asking.tap import Tap
from tokenwire.dialects.control import Load
from tokenwire.scenarios.abort import long_ask
from tokenwire.wire.exchange import HttpRequest

_LEAVING = 3
_LONG = 1200
_BESIDE = 480
_TOKENS_BETWEEN_LOADS = 48
_MOST_ASKED = {"running": 8, "after": 20}
"""The most requests for the load: until all requests are counted, and until the disconnected ones are gone.
"""
_PATIENCE_S = 10.0
"""The most seconds until a server must have dropped the last request of a disconnected client."""


@dataclass
class _LoadReader:
    """Requests the load from a server."""

    talk: Conversation
    request: HttpRequest
    asked: int = 0

    async def ask_load(self, when: str) -> Load | None:
        """Return the present load; None if the answer does not contain it."""
        self.asked += 1
        call = await self.talk.call(f"load-{self.asked}-{when}", self.request)
        return call.load if call is not None else None

    async def until_live(self, count: int, when: str) -> None:
        """Request the load until at most `count` requests run or wait, or `_PATIENCE_S` is over."""
        until, wait = time.monotonic() + _PATIENCE_S, 0.05
        while time.monotonic() < until:
            load = await self.ask_load(when)
            if load is None or load.live <= count:
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)


async def _load_reader(talk: Conversation) -> _LoadReader | None:
    """Return a reader for the first endpoint that reports the load; None if there is no such endpoint."""
    for request in talk.control.load_requests:
        call = await talk.call(f"door{request.path.replace('/', '-')}", request)
        if call is not None and call.load is not None:
            return _LoadReader(talk, request)
    return None


async def _leave(talk: Conversation, *, stream: bool) -> None:
    loads = await _load_reader(talk)
    if loads is None:
        return
    ask = replace(long_ask(talk, _LONG), stream=stream)
    beside = replace(long_ask(talk, _BESIDE), stream=True)
    await loads.until_live(0, "before")
    taps, staying = [Tap() for _ in range(_LEAVING)], Tap()

    async def stay() -> None:
        if stream:
            for tap in taps:
                await tap.events(1)
        await talk.ask("staying", beside, tap=staying)

    async def watch() -> None:
        """Disconnect as soon as the server counts every request, which may take a while.

        The load is requested less and less often, before and after the disconnects. These requests are
        frequent enough to show that the load falls before the remaining stream is far ahead.
        """
        most = max(1, _TOKENS_BETWEEN_LOADS // (talk.advertised.stream_interval or 1))
        events, more = 1, await staying.events(1)

        async def look_until(enough: Callable[[int], bool], load: Load | None, when: str) -> Load | None:
            nonlocal events, more
            wait = 1
            while more and load is not None and not enough(load.live) and loads.asked < _MOST_ASKED[when]:
                events, wait = events + wait, min(2 * wait, most)
                more = await staying.events(events)
                load = await loads.ask_load(when)
            return load

        load = await loads.ask_load("running")
        load = await look_until(lambda live: live > _LEAVING, load, "running")
        for position, tap in enumerate(taps):
            tap.hang_up(reset=position > 0)
        await look_until(lambda live: live <= 1, load, "after")

    asks = [talk.ask(f"leaving-{position}", ask, tap=tap) for position, tap in enumerate(taps)]
    await together(*asks, stay(), watch())
    await loads.until_live(0, "end")


@scenario(budget=Budget.STANDARD, alone=True, storm=True)
async def _disconnect(talk: Conversation) -> None:
    """Streams whose clients disconnect after the first event, by reset and by close, beside a stream whose
    client stays. The load before and after the disconnects shows if the server noticed them. The remaining
    stream shows how much the server did in the meantime.
    """
    await _leave(talk, stream=True)


@scenario(budget=Budget.STANDARD, alone=True, storm=True)
async def _disconnect_whole(talk: Conversation) -> None:
    """Requests without streaming whose clients disconnect before any data arrives, beside a stream whose
    client stays.
    """
    await _leave(talk, stream=False)
