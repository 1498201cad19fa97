"""The watcher's end of the judge's process, which may be slow or die: the traffic never waits for it.

Batches of the spool are given to it a few at a time. One that is not read is given to the next process, less
what was reported of it; what no process will judge is a gap with a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice

from tokenwire.watch.exchange_assembly import ENDED, TOO_SLOW
from tokenwire.watch.judge_process import JudgePlan, read_opinion
from tokenwire.watch.judging import Opinion
from tokenwire.watch.spool import Spool

TICK_S = 0.5
"""How often batches are given and reports are read. Were it ten times as often, the judge would read memory
that is still in the cache of the proxy's processor: that took a quarter of its throughput for large events.
"""
_LAST_TICK_S = 0.02
_MOST_GIVEN = 256
"""Batches that the process may have at once: their lines fit into a pipe, so writing them never waits."""
_MOST_REPORTED = 1000
"""Positions that are given to the next process, for the same reason: a batch with more of them is lost."""
_PIECE = 64 << 10
_LONGEST_LINE = 16 << 20
CRASHED = "judge-crashed"


def judge_command(plan: JudgePlan) -> list[str]:
    """The command line of the judge's process."""
    return [sys.executable, "-m", "tokenwire.watch.judge_process", json.dumps(asdict(plan))]


class JudgeSupervisor:
    """Gives batches to the judge's process, and starts it again when it dies.

    heard: called with each opinion. missed: called with the reason of gaps, and how many exchanges they are.
    patience_s: how long the process may say nothing while it has something to read; it is killed then.
    """

    def __init__(
        self,
        command: Sequence[str],
        spool: Spool,
        heard: Callable[[Opinion], None],
        missed: Callable[[str, int], None],
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._command = command
        self._spool = spool
        self._heard = heard
        self._missed = missed
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        """The beginning of a line."""
        self._last_said = 0.0
        """When it said something, or was given something to read while it had nothing."""
        self._given = 0
        """How many batches the process has."""
        self._judging: int | None = None
        """The position of the exchange that is being judged."""
        self._reported: set[int] = set()
        """Positions of what was reported since a batch was read to its end."""
        self.open = 0
        """How many exchanges were under way then."""
        self._start()  # it takes a second or two until it reads
        self._work = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.step()

    async def close(self, patience_s: float) -> None:
        """Have what was appended judged, as long as that takes no longer than this; then end the process."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        deadline = time.monotonic() + patience_s
        self.step()
        while time.monotonic() < deadline and (self._spool.batches or self.open):
            if self._process is not None and self._given == len(self._spool.batches):
                assert self._process.stdin is not None
                self._process.stdin.close()
            await asyncio.sleep(_LAST_TICK_S)
            self.step()
        self._lose(ENDED, all_batches=True)

    def step(self) -> None:
        """Do what can be done at once: hear the process, start it, and give it what was appended."""
        self._spool.publish()
        if self._process is not None:
            self._hear()
        if self._spool.batches and self._process is None:
            self._start()
        self._give()
        if self._given and time.monotonic() - self._last_said > self._patience_s:
            self._lose(TOO_SLOW)

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(self._spool.fd,),
            )
        except OSError:
            self._lose(CRASHED)
        else:
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def _give(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        if not self._given:
            self._last_said = time.monotonic()
        for batch in islice(self._spool.batches, self._given, _MOST_GIVEN):
            reported = [] if self._given else sorted(self._reported)
            line = json.dumps([batch.start, batch.end, batch.position, reported]).encode() + b"\n"
            with contextlib.suppress(BrokenPipeError):  # its output ends too
                self._process.stdin.write(line)
            self._given += 1

    def _hear(self) -> None:
        """Read all that the process has said."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while (said := self._process.stdout.read(_PIECE)) is not None:
                if not said:
                    self._lose(CRASHED)
                    return
                self._last_said = time.monotonic()
                *lines, self._said = (self._said + said).split(b"\n")
                for line in lines:
                    self._hear_line(line)
                if len(self._said) > _LONGEST_LINE:
                    self._lose(CRASHED)
                    return
        except (ValueError, TypeError, KeyError, IndexError):
            self._lose(CRASHED)

    def _hear_line(self, line: bytes) -> None:
        """Raises ValueError, TypeError, KeyError or IndexError for a line that no judge says."""
        match json.loads(line):
            case ["judging", int(position)]:
                self._judging = position
            case ["judged", int(position), told]:
                opinion = read_opinion(told)
                self._judging = None
                self._reported.add(position)
                self._heard(opinion)
            case ["missed", int(position), str(reason), bool(exchange)]:
                self._reported.add(position)
                self._missed(reason, int(exchange))
            case ["read", int(exchanges)]:
                self._spool.release()
                self._given -= 1
                self._reported.clear()
                self.open = exchanges
            case _:
                raise ValueError(f"the judge says {line[:100]!r}")

    def _lose(self, reason: str, *, all_batches: bool = False) -> None:
        """End the process. What it had read is lost, and the exchange that it was judging, or else the batch.

        all_batches: all that was appended is lost.
        """
        self._end_process()
        batches = self._spool.batches
        begin = batches[0].position if batches else sys.maxsize
        lost = self.open - sum(position < begin for position in self._reported)
        if self._judging is not None and not all_batches and len(self._reported) < _MOST_REPORTED:
            lost += self._judging >= begin
            self._reported = {position for position in (*self._reported, self._judging) if position >= begin}
        else:
            while batches:
                lost += self._spool.release().requests
                if not all_batches:
                    break
            lost -= sum(position >= begin for position in self._reported)
            self._reported.clear()
        self._judging, self.open = None, 0
        if lost > 0:
            self._missed(reason, lost)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self._given, self._said = 0, b""
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        process.wait()
