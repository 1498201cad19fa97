"""The judge's process: reads the spool batch by batch, and writes its opinions as lines of JSON.

As a separate process, it takes no time from the traffic, and its crashes do not end the proxy. A line of
standard input is a batch, `[start, end, position, positions]`. A process that crashed since has reported the
exchanges at `positions`. The input ends with the watcher. The lines on standard output:

    ["judging", position]                   an exchange is being judged; if nothing follows, that crashed
    ["judged", position, opinion]
    ["missed", position, reason, exchange]  traffic cannot be judged; whether it was an exchange
    ["read", exchanges]                     the batch is read, and this many exchanges are open
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from tokenwire.wire.exchange import Exchange
from tokenwire_live.watch.exchange_assembly import Budget, ConnectionReader, Receiver
from tokenwire_live.watch.judging import ExchangeJudge, Opinion, Violation, single_answer_requirements
from tokenwire_live.watch.latency import Histogram, Latencies
from tokenwire_live.watch.spool import Kind, SpoolReader
from tokenwire_live.watch.violation_folder import ViolationFolder


@dataclass(frozen=True)
class JudgePlan:
    """The exchanges to judge and to record: the arguments of the process."""

    spool_fd: int = -1
    spool_size: int = 0
    """Bytes of the spool, set by the watcher."""
    most_open: int = 256 << 20
    """The most bytes of open exchanges; beyond that, exchanges are not judged."""
    largest_exchange: int = 64 << 20
    """The most bytes of bodies; a larger exchange is not judged."""
    record: str = ""
    """The folder for violating exchanges; empty for no recording."""
    record_cap: int = 256 << 20
    """The most bytes of that folder."""
    profiles: Sequence[str] = ()
    """Profiles whose requirements are judged; if empty, all that a single answer can violate."""


def read_opinion(fields: dict[str, Any]) -> Opinion:
    """Return the opinion in a line. Raises TypeError, KeyError."""
    times = fields["latencies"]
    read = {
        "violations": tuple(Violation(**violation) for violation in fields["violations"]),
        "crashed": tuple(fields["crashed"]),
        "latencies": times and Latencies(**{name: Histogram(**held) for name, held in times.items()}),
    }
    return Opinion(**{**fields, **read})


_NICE = 10
"""The priority (niceness), because traffic takes precedence over judging."""


class Reporter:
    """Judges exchanges and writes the opinions, except those reported before."""

    def __init__(self, bench: ExchangeJudge, folder: ViolationFolder | None, out: TextIO) -> None:
        self._bench = bench
        self._folder = folder
        self._out = out
        self.reported: Collection[int] = ()

    def finished(self, position: int, exchange: Exchange) -> None:
        if position in self.reported:
            return
        self.write("judging", position)
        request = exchange.request
        opinion = replace(
            self._bench.judge(exchange),
            exchange=exchange.name,
            started=exchange.started,
            method=request.method,
            path=request.path,
        )
        self.write("judged", position, asdict(self._recorded(opinion, exchange)))

    def missed(self, position: int, reason: str, *, exchange: bool) -> None:
        if position not in self.reported:
            self.write("missed", position, reason, exchange)

    def write(self, *words: Any) -> None:
        """Write a line."""
        self._out.write(json.dumps(words) + "\n")
        self._out.flush()

    def _recorded(self, opinion: Opinion, exchange: Exchange) -> Opinion:
        """Return the opinion, with the path of its recording, or the reason why there is none."""
        if self._folder is None or not opinion.violations:
            return opinion
        try:
            path = self._folder.keep(opinion.violations[0].requirement, exchange)
        except OSError as error:
            return replace(opinion, unrecorded=f"{type(error).__name__}: {error}")
        return replace(opinion, recorded=path, unrecorded="" if path else "it is larger than the cap")


class Follower:
    """Reads batches of the spool, and passes on the exchanges of all connections."""

    def __init__(self, spool: SpoolReader, receiver: Receiver, budget: Budget) -> None:
        self._spool = spool
        self._receiver = receiver
        self.budget = budget
        self._connections: dict[int, ConnectionReader] = {}

    def read(self, start: int, end: int, position: int) -> None:
        """Read a batch."""
        for record in self._spool.records(start, end, position):
            reader = self._connections.get(record.connection)
            if reader is None:
                reader = ConnectionReader(self._receiver, self.budget, lost=record.kind is not Kind.OPENED)
                self._connections[record.connection] = reader
            reader.take(record)
            if record.kind is Kind.CLOSED:
                del self._connections[record.connection]

    def end(self) -> None:
        """End the connections, because there are no more batches."""
        for reader in self._connections.values():
            reader.end()


def follow(lines: Iterable[bytes], follower: Follower, reporter: Reporter) -> None:
    """Read batches as their lines arrive, until the watcher ends."""
    for line in lines:
        start, end, position, reporter.reported = json.loads(line)
        follower.read(start, end, position)
        reporter.write("read", follower.budget.exchanges)
    follower.end()


def main(plan: JudgePlan) -> None:
    os.nice(_NICE)
    out, sys.stdout = sys.stdout, sys.stderr  # a stray print must not break the protocol
    folder = ViolationFolder(Path(plan.record), plan.record_cap) if plan.record else None
    reporter = Reporter(ExchangeJudge(single_answer_requirements(plan.profiles)), folder, out)
    spool = SpoolReader(plan.spool_fd, plan.spool_size)
    follower = Follower(spool, reporter, Budget(plan.most_open, plan.largest_exchange))
    follow(sys.stdin.buffer, follower, reporter)


if __name__ == "__main__":
    main(JudgePlan(**json.loads(sys.argv[1])))
