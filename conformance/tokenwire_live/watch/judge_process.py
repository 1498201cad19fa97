"""The judging process: reads the spool batch by batch, and writes its results as lines of JSON.

It is a separate process, so that judging does not slow the traffic down, and a crash does not end the proxy.
A line of standard input is a batch: `[start, end, position, positions]`. The exchanges at `positions` were
reported before the previous process crashed, so they are skipped. The input ends when the proxy stops. The
lines of standard output:

    ["judging", position]                   judging begins; if nothing follows, this exchange caused a crash
    ["judged", position, opinion]           the result
    ["missed", position, reason, exchange]  traffic that cannot be judged; `exchange`: it was an exchange
    ["read", exchanges]                     the batch was read; `exchanges`: how many are in progress
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
    """Settings for judging and recording, which the judging process gets as its argument."""

    spool_fd: int = -1
    spool_size: int = 0
    """The size of the spool in bytes. The main process sets it."""
    most_open: int = 256 << 20
    """The maximum memory in bytes for exchanges in progress. Exchanges beyond this limit are not judged."""
    largest_exchange: int = 64 << 20
    """The maximum number of bytes of an exchange's bodies. Larger exchanges are not judged."""
    record: str = ""
    """The folder for violating exchanges; empty to store none."""
    record_cap: int = 256 << 20
    """The maximum number of bytes in the folder for violating exchanges."""
    profiles: Sequence[str] = ()
    """The profiles whose requirements are judged; empty for all requirements about a single answer."""


def read_opinion(fields: dict[str, Any]) -> Opinion:
    """Parse an opinion (the result of judging an exchange). Raises TypeError and KeyError."""
    times = fields["latencies"]
    read = {
        "violations": tuple(Violation(**violation) for violation in fields["violations"]),
        "crashed": tuple(fields["crashed"]),
        "latencies": times and Latencies(**{name: Histogram(**held) for name, held in times.items()}),
    }
    return Opinion(**{**fields, **read})


_NICE = 10
"""The niceness of the process: traffic has priority over judging."""


class Reporter:
    """Judges exchanges and writes the results. Exchanges that were already reported are skipped."""

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
        """Write a value as a line of JSON."""
        self._out.write(json.dumps(words) + "\n")
        self._out.flush()

    def _recorded(self, opinion: Opinion, exchange: Exchange) -> Opinion:
        """Record the exchange of an opinion if necessary.

        Return the opinion with the path, or with the reason of a failure.
        """
        if self._folder is None or not opinion.violations:
            return opinion
        try:
            path = self._folder.keep(opinion.violations[0].requirement, exchange)
        except OSError as error:
            return replace(opinion, unrecorded=f"{type(error).__name__}: {error}")
        return replace(opinion, recorded=path, unrecorded="" if path else "it is larger than the cap")


class Follower:
    """Parses batches of the spool into exchanges, for all connections."""

    def __init__(self, spool: SpoolReader, receiver: Receiver, budget: Budget) -> None:
        self._spool = spool
        self._receiver = receiver
        self.budget = budget
        self._connections: dict[int, ConnectionReader] = {}

    def read(self, start: int, end: int, position: int) -> None:
        """Parse a batch."""
        for record in self._spool.records(start, end, position):
            reader = self._connections.get(record.connection)
            if reader is None:
                reader = ConnectionReader(self._receiver, self.budget, lost=record.kind is not Kind.OPENED)
                self._connections[record.connection] = reader
            reader.take(record)
            if record.kind is Kind.CLOSED:
                del self._connections[record.connection]

    def end(self) -> None:
        """End all connections, because there are no more batches."""
        for reader in self._connections.values():
            reader.end()


def follow(lines: Iterable[bytes], follower: Follower, reporter: Reporter) -> None:
    """Process batches until the standard input ends."""
    for line in lines:
        start, end, position, reporter.reported = json.loads(line)
        follower.read(start, end, position)
        reporter.write("read", follower.budget.exchanges)
    follower.end()


def main(plan: JudgePlan) -> None:
    os.nice(_NICE)
    out, sys.stdout = sys.stdout, sys.stderr  # an accidental print must not disturb the protocol
    folder = ViolationFolder(Path(plan.record), plan.record_cap) if plan.record else None
    reporter = Reporter(ExchangeJudge(single_answer_requirements(plan.profiles)), folder, out)
    spool = SpoolReader(plan.spool_fd, plan.spool_size)
    follower = Follower(spool, reporter, Budget(plan.most_open, plan.largest_exchange))
    follow(sys.stdin.buffer, follower, reporter)


if __name__ == "__main__":
    main(JudgePlan(**json.loads(sys.argv[1])))
