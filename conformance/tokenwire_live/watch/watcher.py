"""The watcher: connects proxy, observers, judge and counts."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tokenwire.judging.clock import DEFAULT_LIMIT_S
from tokenwire.wire.address import Address
from tokenwire_live.watch.counts import Counts
from tokenwire_live.watch.exchange_assembly import TOO_SLOW
from tokenwire_live.watch.judge_process import JudgePlan
from tokenwire_live.watch.judge_supervisor import JudgeSupervisor, judge_command
from tokenwire_live.watch.judging import Opinion
from tokenwire_live.watch.proxy import Proxy
from tokenwire_live.watch.spool import Kind, Spool


@dataclass(frozen=True)
class WatchPlan:
    """The traffic to watch, and the limits."""

    listen: Address
    target: Address
    judging: JudgePlan = field(default_factory=JudgePlan)
    sample: float = 1.0
    """The share of exchanges to judge."""
    most_waiting: int = 128 << 20
    """The most bytes that wait for the judge; from half of it on, new exchanges are not judged."""
    judge_patience_s: float = DEFAULT_LIMIT_S
    """The time limit for one exchange."""
    drain_s: float = 10.0
    """The seconds for the judge to finish when the watcher ends."""
    judge: Sequence[str] = field(default_factory=tuple)
    """A replacement command line of the judge's process; empty for ours."""
    tls: ssl.SSLContext | None = None
    """The TLS context for the target; None for the system's."""


_BEGINS = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]\r\n")
"""Matches the beginning of a request."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio, whose multiples are spread evenly and match no pattern of the traffic."""


class _Observer:
    """Counts the bytes of one connection, and appends them to the spool."""

    def __init__(self, number: int, spool: Spool, counts: Counts, sample: float) -> None:
        self._number = number
        self._sample = sample
        self._spool = spool
        self._append = spool.append
        self._append_received = spool.append_received
        self._pinned: int | None = None
        """The segment with bytes to be sent."""
        self._counts = counts
        counts.connections += 1
        counts.open_connections += 1
        self._dropping = not spool.append(number, Kind.OPENED)
        """True if records are dropped until the next request."""
        self._known = not self._dropping
        """True if the spool has any record of the connection."""

    def sent(self, data: bytes) -> None:
        self._counts.sent_bytes += len(data)
        if _BEGINS.match(data):
            sampled = self._sampled(data)
            dropped = not (sampled and self._spool.append_request(self._number, data))
            if dropped:
                if sampled:
                    self._counts.missed(TOO_SLOW)
                if not self._dropping:
                    # Otherwise the judge's process would take the bytes of a later request for this
                    # exchange's.
                    # exchange.
                    self._append(self._number, Kind.LOST)
            self._dropping = dropped
            self._known = self._known or not dropped
        elif not self._dropping:
            self._dropping = not self._append(self._number, Kind.SENT, data)

    def _sampled(self, data: bytes) -> bool:
        """True if a request is in the sample. Requests for the server's own information always are."""
        counts = self._counts
        if data.startswith(b"GET "):
            return True
        counts.asked += 1
        sampled = counts.asked * _GOLDEN % 1 < self._sample
        counts.unsampled += not sampled
        return sampled

    def buffer(self) -> memoryview:
        """Return a buffer; while dropping, one outside of the spool, where the next record would overwrite
        unsent bytes.
        """
        return self._spool.scratch if self._dropping else self._spool.buffer()

    def received(self, size: int) -> None:
        self._counts.received_bytes += size
        if not self._dropping:
            self._dropping = not self._append_received(self._number, Kind.RECEIVED, size)

    def unsent(self) -> None:
        if self._pinned is None:
            self._pinned = self._spool.pin()

    def resent(self) -> None:
        if self._pinned is not None:
            self._spool.unpin(self._pinned)
            self._pinned = None

    def client_ended(self) -> None:
        if not self._dropping:
            self._append(self._number, Kind.CLIENT_ENDED)

    def target_ended(self) -> None:
        if not self._dropping:
            self._append(self._number, Kind.TARGET_ENDED)

    def closed(self) -> None:
        self.resent()
        # The judge's process has no records of this connection, so it needs no end.
        if self._known:
            self._append(self._number, Kind.CLOSED)
        self._counts.open_connections -= 1


class Watcher:
    """Watches while it is open; an async context manager.

    on_opinion: called with each opinion of the judge. Entering raises OSError if an address is in use.
    """

    def __init__(self, plan: WatchPlan, on_opinion: Callable[[Opinion], None] = lambda _: None) -> None:
        self.plan = plan
        self.counts = Counts()
        self.spool = Spool(plan.most_waiting)
        self.listening = plan.listen
        self._on_opinion = on_opinion
        self._proxy = Proxy(plan.target, self.observe, self._unreachable, tls=plan.tls)
        self._judge: JudgeSupervisor

    async def __aenter__(self) -> Watcher:
        self.listening = await self._proxy.listen(self.plan.listen)
        plan = self.plan
        judging = replace(plan.judging, spool_fd=self.spool.fd, spool_size=self.spool.size)
        self._judge = JudgeSupervisor(
            plan.judge or judge_command(judging),
            self.spool,
            self._count,
            self.counts.missed,
            patience_s=plan.judge_patience_s,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections, let the judge finish within `drain_s`, and stop."""
        self.spool.seal()
        await self._proxy.close()
        await self._judge.close(self.plan.drain_s)
        self.spool.close()

    def observe(self) -> _Observer:
        """Return the observer of a new connection."""
        return _Observer(self.counts.connections, self.spool, self.counts, self.plan.sample)

    @property
    def under_way(self) -> int:
        """The number of exchanges that the judge has not read completely."""
        return self._judge.open

    def _unreachable(self, _: OSError) -> None:
        self.counts.unreachable += 1

    def _count(self, opinion: Opinion) -> None:
        self.counts.add(opinion)
        self._on_opinion(opinion)
