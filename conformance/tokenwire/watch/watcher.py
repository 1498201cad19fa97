"""The watcher: proxy, observers, judge, tally and admin listener, put together."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenwire.watch.admin import Admin, Page
from tokenwire.watch.distant_judge import DistantJudge, judge_command
from tokenwire.watch.exchange_assembly import SCENARIO, ExchangeAssembler, ObservedExchange
from tokenwire.watch.judging import Opinion
from tokenwire.watch.live_page import live_page
from tokenwire.watch.prometheus import CONTENT_TYPE, exposition
from tokenwire.watch.proxy import Address, Proxy
from tokenwire.watch.room import Intake, Room
from tokenwire.watch.tally import Tally
from tokenwire.wire.exchange import Exchange, exchange_name


@dataclass(frozen=True)
class WatchPlan:
    """What to watch, and what to keep."""

    listen: Address
    target: Address
    admin: Address | None = None
    record: Path | None = None
    """Where violating exchanges are kept."""
    record_cap: int = 256 << 20
    """Bytes that they may take together."""
    profiles: tuple[str, ...] = ()
    """Judge only what these hold; all that one answer can violate where empty."""
    largest_exchange: int = 64 << 20
    """Bytes of bodies beyond which an exchange is passed on and not judged."""
    most_waiting: int = 256 << 20
    """Bytes that exchanges may take that are under way or wait for the judge: no more of them is kept."""
    judge_patience_s: float = 60.0
    """For one exchange."""
    drain_s: float = 10.0
    """How long those in line may still be judged when the watcher ends."""
    judge: Sequence[str] = field(default_factory=tuple)
    """Another command line for the judge's process; empty for our own."""
    tls: ssl.SSLContext | None = None
    """How to trust a target that speaks TLS; the system's way where None."""


class _Observer:
    """The observer of one connection: it counts, notes the time, and leaves the rest for later."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._tally = watcher.tally
        self._later = watcher.later
        self.intake = Intake(watcher.room)
        self._heard = ExchangeAssembler(
            watcher, watcher.room, self.intake, largest=watcher.plan.largest_exchange
        )
        self._gathered = self._heard.gathered
        self._tally.connections += 1
        self._tally.open_connections += 1
        watcher.observers.add(self)

    def sent(self, data: bytes) -> None:
        self._tally.sent_bytes += len(data)
        self._later.hear(self._heard.sent, time.monotonic(), data)

    def received(self, data: bytes | memoryview) -> None:
        at = time.monotonic()
        self._tally.received_bytes += len(data)
        if isinstance(data, bytes):
            if not self._gathered(at, data):
                self._later.hear(self._heard.received, at, data)
        elif not self._heard.landed(at, data):  # as long as its intake knows where that was
            self._later.catch_up()
            self._heard.received(at, data)

    def client_ended(self) -> None:
        self._later.hear(self._heard.client_ended, time.monotonic())

    def target_ended(self) -> None:
        self._later.hear(self._heard.target_ended, time.monotonic())

    def closed(self) -> None:
        self.intake.sent()
        self._later.hear(self._heard.closed, time.monotonic())
        self._tally.open_connections -= 1
        self._watcher.observers.discard(self)

    def interrupt(self) -> None:
        self._later.hear(self._heard.interrupt, time.monotonic())


class _Later:
    """What is heard, with its time, once all that has arrived on all connections is passed on."""

    def __init__(self) -> None:
        self._left: list[tuple[Callable[[float, bytes], None], float, bytes]] = []

    def hear(self, hear: Callable[[float, bytes], None], at: float, data: bytes = b"") -> None:
        self._left.append((hear, at, data))
        if len(self._left) == 1:
            asyncio.get_running_loop().call_soon(self.catch_up)

    def catch_up(self) -> None:
        if self._left:
            left, self._left = self._left, []
            for hear, at, data in left:
                hear(at, data)


class Watcher:
    """An async context manager: it watches as long as it is open.

    on_opinion: told of each exchange that was heard. Raises OSError on entering where an address is not free.
    """

    def __init__(
        self, plan: WatchPlan, on_opinion: Callable[[Exchange, Opinion], None] = lambda *_: None
    ) -> None:
        self.plan = plan
        self.tally = Tally()
        self.observers: set[_Observer] = set()
        self.later = _Later()
        self.room = Room(plan.most_waiting)
        self.listening = plan.listen
        self.admin_listening = plan.admin
        self._on_opinion = on_opinion
        self._serial = 0
        self._proxy = Proxy(plan.target, self.observe, self._unreachable, tls=plan.tls)
        self._admin = Admin(
            {
                "/": Page("text/html; charset=utf-8", self._page),
                "/metrics": Page(CONTENT_TYPE, self._metrics),
                "/healthz": Page("text/plain; charset=utf-8", lambda: "watching\n"),
            }
        )
        self._judge: DistantJudge

    async def __aenter__(self) -> Watcher:
        self.listening = await self._proxy.listen(self.plan.listen)
        try:
            if self.plan.admin is not None:
                self.admin_listening = await self._admin.listen(self.plan.admin)
        except OSError:
            await self._proxy.close()
            raise
        self._judge = DistantJudge(
            self.plan.judge or judge_command(self.plan.record, self.plan.record_cap, self.plan.profiles),
            self.room,
            self._heard,
            self.missed,
            patience_s=self.plan.judge_patience_s,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections, let the judge finish within bounds, and stop."""
        for observer in list(self.observers):
            observer.interrupt()
        await self._proxy.close()
        self.later.catch_up()
        await self._judge.close(self.plan.drain_s)
        self._admin.close()
        self.room.close()

    def observe(self) -> _Observer:
        """An observer for a new connection."""
        return _Observer(self)

    def name(self) -> str:
        self._serial += 1
        return exchange_name(SCENARIO, f"{self._serial:08}")

    def began(self) -> None:
        self.tally.open_exchanges += 1

    def over(self, heard: ObservedExchange | None) -> None:
        self.tally.open_exchanges -= 1
        self.tally.exchanges += 1
        if heard is not None:
            self._judge.submit(heard)

    def missed(self, reason: str) -> None:
        self.tally.gaps[reason] += 1

    def _unreachable(self, _: OSError) -> None:
        self.tally.unreachable += 1

    def _heard(self, exchange: Exchange, opinion: Opinion) -> None:
        self.tally.heard(exchange, opinion)
        self._on_opinion(exchange, opinion)

    def _metrics(self) -> str:
        return exposition(self.tally, self._judge.waiting)

    def _page(self) -> str:
        scheme = "https" if self.plan.target.tls else "http"
        return live_page(
            self.tally,
            target=f"{scheme}://{self.plan.target}",
            listening=str(self.listening),
            waiting=self._judge.waiting,
        )
