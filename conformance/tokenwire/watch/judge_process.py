"""The process of the judge: it reads the spool batch by batch, and says what it finds in lines of JSON.

It is a process of its own, so that judging takes no time from the traffic, and no fault of it can end there.
A line on its standard input is a batch: `[start, end, position, positions]`; exchanges at the last of these
were reported before, by a process that died since. The end of the input is the end of the watcher. On its
standard output stand, each with its words behind it:

    ["judging", position]                   an exchange is being judged: if nothing follows, that was too much
    ["judged", position, opinion]
    ["missed", position, reason, exchange]  something cannot be judged; whether it was an exchange
    ["read", exchanges]                     the batch is read, and so many exchanges are under way
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from tokenwire.watch.exchange_assembly import Audience, Budget, ConnectionReader
from tokenwire.watch.judging import Bench, Opinion, Violation, single_answer_requirements
from tokenwire.watch.spool import Kind, SpoolReader
from tokenwire.watch.violation_folder import ViolationFolder
from tokenwire.wire.exchange import Exchange


@dataclass(frozen=True)
class JudgePlan:
    """What the process is to do; `WatchPlan` tells what most of it means."""

    spool_fd: int
    spool_size: int
    most_open: int
    largest_exchange: int
    record: str = ""
    """Empty for nowhere."""
    record_cap: int = 0
    profiles: Sequence[str] = ()


def read_opinion(told: dict[str, Any]) -> Opinion:
    """An opinion as it stands in a line. Raises TypeError for what is none."""
    violations = tuple(Violation(**violation) for violation in told["violations"])
    return Opinion(**{**told, "violations": violations, "crashed": tuple(told["crashed"])})


_NICE = 10
"""Where processors are scarce, the traffic goes first."""


class Reporter:
    """Judges exchanges and reports them, but for those that were reported before."""

    def __init__(self, bench: Bench, folder: ViolationFolder | None, out: TextIO) -> None:
        self._bench = bench
        self._folder = folder
        self._out = out
        self.reported: Collection[int] = ()

    def over(self, position: int, exchange: Exchange) -> None:
        if position in self.reported:
            return
        self.say("judging", position)
        request = exchange.request
        opinion = replace(
            self._bench.hear(exchange),
            exchange=exchange.name,
            started=exchange.started,
            method=request.method,
            path=request.path,
        )
        self.say("judged", position, asdict(self._kept(opinion, exchange)))

    def missed(self, position: int, reason: str, *, exchange: bool) -> None:
        if position not in self.reported:
            self.say("missed", position, reason, exchange)

    def say(self, *words: Any) -> None:
        """Write a line."""
        self._out.write(json.dumps(words) + "\n")
        self._out.flush()

    def _kept(self, opinion: Opinion, exchange: Exchange) -> Opinion:
        """The opinion, with what became of the capture."""
        if self._folder is None or not opinion.violations:
            return opinion
        try:
            size = self._folder.keep(opinion.violations[0].requirement, exchange)
        except OSError as error:
            return replace(opinion, unrecorded=f"{type(error).__name__}: {error}")
        return replace(opinion, recorded=size, unrecorded="" if size else "it is larger than the cap")


class Follower:
    """Reads the batches of a spool, and gives an audience the exchanges of all connections."""

    def __init__(self, spool: SpoolReader, audience: Audience, budget: Budget) -> None:
        self._spool = spool
        self._audience = audience
        self.budget = budget
        self._connections: dict[int, ConnectionReader] = {}

    def read(self, start: int, end: int, position: int) -> None:
        """Read a batch."""
        for record in self._spool.records(start, end, position):
            reader = self._connections.get(record.connection)
            if reader is None:
                reader = ConnectionReader(self._audience, self.budget, lost=record.kind is not Kind.OPENED)
                self._connections[record.connection] = reader
            reader.take(record)
            if record.kind is Kind.CLOSED:
                del self._connections[record.connection]

    def end(self) -> None:
        """No more batches come."""
        for reader in self._connections.values():
            reader.end()


def follow(lines: Iterable[bytes], follower: Follower, reporter: Reporter) -> None:
    """Read batches as their lines come."""
    for line in lines:
        start, end, position, reporter.reported = json.loads(line)
        follower.read(start, end, position)
        reporter.say("read", follower.budget.exchanges)
    follower.end()


def main(plan: JudgePlan) -> None:
    os.nice(_NICE)
    out, sys.stdout = sys.stdout, sys.stderr  # nothing but lines may stand there
    folder = ViolationFolder(Path(plan.record), plan.record_cap) if plan.record else None
    reporter = Reporter(Bench(single_answer_requirements(plan.profiles)), folder, out)
    spool = SpoolReader(plan.spool_fd, plan.spool_size)
    follower = Follower(spool, reporter, Budget(plan.most_open, plan.largest_exchange))
    follow(sys.stdin.buffer, follower, reporter)


if __name__ == "__main__":
    main(JudgePlan(**json.loads(sys.argv[1])))
