"""Connects the proxy, the spool, the judging process and the counts."""

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
    """The settings of the proxy, and its limits."""

    listen: Address
    target: Address
    judging: JudgePlan = field(default_factory=JudgePlan)
    sample: float = 1.0
    """The share of exchanges that are judged."""
    most_waiting: int = 128 << 20
    """The size of the spool in bytes.

    If more than half of the spool is in use, new exchanges are not judged.
    """
    judge_patience_s: float = DEFAULT_LIMIT_S
    """Seconds in which one exchange must be judged."""
    drain_s: float = 10.0
    """Seconds that the judging process gets to finish at the end."""
    judge: Sequence[str] = field(default_factory=tuple)
    """Another command line for the judging process, for tests; empty for the usual one."""
    tls: ssl.SSLContext | None = None
    """The TLS context for the target; None for the system's default."""


_BEGINS = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]\r\n")
"""Matches the first line of an HTTP request."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio.

The fractional parts of its multiples are spread evenly, so the sample does not follow a pattern in the
traffic.
"""


class _Observer:
    """Counts the bytes of one connection, and appends them to the spool."""

    def __init__(self, number: int, spool: Spool, counts: Counts, sample: float) -> None:
        self._number = number
        self._sample = sample
        self._spool = spool
        self._append = spool.append
        self._append_received = spool.append_received
        self._pinned: int | None = None
        """The segment whose bytes are still to be sent; None if no bytes are pending."""
        self._counts = counts
        counts.connections += 1
        counts.open_connections += 1
        self._dropping = not spool.append(number, Kind.OPENED)
        """True if records are dropped until the next request."""
        self._known = not self._dropping
        """True if the spool contains any record of the connection."""

    def sent(self, data: bytes) -> None:
        self._counts.sent_bytes += len(data)
        if _BEGINS.match(data):
            sampled = self._sampled(data)
            dropped = not (sampled and self._spool.append_request(self._number, data))
            if dropped:
                if sampled:
                    self._counts.missed(TOO_SLOW)
                if not self._dropping:
                    # Without this record, the judging process would assign the bytes of a later request to
                    # this exchange.
                    self._append(self._number, Kind.LOST)
            self._dropping = dropped
            self._known = self._known or not dropped
        elif not self._dropping:
            self._dropping = not self._append(self._number, Kind.SENT, data)

    def _sampled(self, data: bytes) -> bool:
        """True if a request belongs to the sample.

        Requests for information about the server are always in the sample.
        """
        counts = self._counts
        if data.startswith(b"GET "):
            return True
        counts.asked += 1
        sampled = counts.asked * _GOLDEN % 1 < self._sample
        counts.unsampled += not sampled
        return sampled

    def buffer(self) -> memoryview:
        """Return a buffer for bytes from the target.

        While records are dropped, return a buffer outside of the spool, because a buffer in the spool could
        overwrite bytes that are still to be sent.
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
        # If the spool has no record of this connection, its end is not recorded either.
        if self._known:
            self._append(self._number, Kind.CLOSED)
        self._counts.open_connections -= 1


class Watcher:
    """Runs the proxy and the judging process while the (async) context is open.

    on_opinion: called with each result of judging. Entering the context raises OSError if an address is in
    use.
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
        """Close all connections, wait up to `drain_s` for the judging process, and stop it."""
        self.spool.seal()
        await self._proxy.close()
        await self._judge.close(self.plan.drain_s)
        self.spool.close()

    def observe(self) -> _Observer:
        """Return an observer for a new connection."""
        return _Observer(self.counts.connections, self.spool, self.counts, self.plan.sample)

    @property
    def under_way(self) -> int:
        """The number of exchanges that the judging process has begun to read and that are not complete."""
        return self._judge.open

    def _unreachable(self, _: OSError) -> None:
        self.counts.unreachable += 1

    def _count(self, opinion: Opinion) -> None:
        self.counts.add(opinion)
        self._on_opinion(opinion)
