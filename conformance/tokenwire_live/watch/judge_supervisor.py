"""Supervises the judging process. The process may be slow or crash without delaying the traffic.

The process gets a few batches of the spool at a time. After a crash, a new process gets the same batches
again, but skips the exchanges that were already reported. Exchanges that are not judged are counted as gaps,
with the reason.
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

from tokenwire_live.watch.exchange_assembly import ENDED, TOO_SLOW
from tokenwire_live.watch.judge_process import JudgePlan, read_opinion
from tokenwire_live.watch.judging import Opinion
from tokenwire_live.watch.spool import Spool

TICK_S = 0.5
"""Seconds between two rounds of sending batches and reading results.

With a tenth of this interval, the throughput of large events was a quarter lower, because the judging process
then reads memory that is still in the processor cache of the proxy.
"""
_LAST_TICK_S = 0.02
_MOST_SENT = 256
"""The maximum number of batches that the process has at a time.

The lines of these batches fit into a pipe, so that writing never blocks.
"""
_MOST_REPORTED = 1000
"""The maximum number of positions of reported exchanges that a new process gets.

A batch with more reported exchanges is lost.
"""
_PIECE = 64 << 10
_LONGEST_LINE = 16 << 20
CRASHED = "judge-crashed"


def judge_command(plan: JudgePlan) -> list[str]:
    """Return the command line of the judging process.

    With -P it does not import modules from the working directory, which may be a checkout of others.
    """
    return [sys.executable, "-P", "-m", "tokenwire_live.watch.judge_process", json.dumps(asdict(plan))]


class JudgeSupervisor:
    """Sends batches to the judging process, and restarts it after a crash.

    on_opinion: called with each result. on_missed: called for each gap, with the reason and the number of
    exchanges. patience_s: the process is killed if it has a batch and prints nothing for this time.
    """

    def __init__(
        self,
        command: Sequence[str],
        spool: Spool,
        on_opinion: Callable[[Opinion], None],
        on_missed: Callable[[str, int], None],
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._command = command
        self._spool = spool
        self._on_opinion = on_opinion
        self._on_missed = on_missed
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._partial_line = b""
        """The beginning of a line that is not complete yet."""
        self._last_output = 0.0
        """The time of the latest output; for an idle process, the time at which it got its first batch."""
        self._sent = 0
        """The number of batches that were sent to the process and are not finished."""
        self._judging: int | None = None
        """The position of the exchange that is being judged; None if no exchange is being judged."""
        self._reported: set[int] = set()
        """The positions of exchanges that were reported since the latest batch was finished."""
        self.open = 0
        """The number of exchanges in progress when the latest batch was finished."""
        self._start()  # The process is started now, because loading takes a second or two.
        self._work = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.step()

    async def close(self, patience_s: float) -> None:
        """Wait up to `patience_s` until all published exchanges are judged; then stop the process."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        deadline = time.monotonic() + patience_s
        self.step()
        while time.monotonic() < deadline and (self._spool.batches or self.open):
            # When its input ends, the process reports the exchanges that are still in progress.
            if self._process is not None and self._sent == len(self._spool.batches):
                assert self._process.stdin is not None
                self._process.stdin.close()
            await asyncio.sleep(_LAST_TICK_S)
            self.step()
        self._abandon(ENDED, all_batches=True)

    def step(self) -> None:
        """Read results, restart the process if it has ended, and send new batches. Never blocks."""
        self._spool.publish()
        if self._process is not None:
            self._read_output()
        if self._spool.batches and self._process is None:
            self._start()
        self._send_batches()
        if self._sent and time.monotonic() - self._last_output > self._patience_s:
            self._abandon(TOO_SLOW)

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
            self._abandon(CRASHED)
        else:
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def _send_batches(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        if not self._sent:
            self._last_output = time.monotonic()
        for batch in islice(self._spool.batches, self._sent, _MOST_SENT):
            reported = [] if self._sent else sorted(self._reported)
            line = json.dumps([batch.start, batch.end, batch.position, reported]).encode() + b"\n"
            # If the process has ended, this is detected when its output is read next.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line)
            self._sent += 1

    def _read_output(self) -> None:
        """Read and process the output of the process."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while (chunk := self._process.stdout.read(_PIECE)) is not None:
                if not chunk:
                    self._abandon(CRASHED)
                    return
                self._last_output = time.monotonic()
                *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
                for line in lines:
                    self._read_line(line)
                if len(self._partial_line) > _LONGEST_LINE:
                    self._abandon(CRASHED)
                    return
        except (ValueError, TypeError, KeyError, IndexError):
            self._abandon(CRASHED)

    def _read_line(self, line: bytes) -> None:
        """Process a line of output.

        Raises ValueError, TypeError, KeyError or IndexError if the line is invalid.
        """
        match json.loads(line):
            case ["judging", int(position)]:
                self._judging = position
            case ["judged", int(position), fields]:
                opinion = read_opinion(fields)
                self._judging = None
                self._reported.add(position)
                self._on_opinion(opinion)
            case ["missed", int(position), str(reason), bool(exchange)]:
                self._reported.add(position)
                self._on_missed(reason, int(exchange))
            case ["read", int(exchanges)]:
                self._spool.release()
                self._sent -= 1
                self._reported.clear()
                self.open = exchanges
            case _:
                raise ValueError(f"the judging process wrote an invalid line: {line[:100]!r}")

    def _abandon(self, reason: str, *, all_batches: bool = False) -> None:
        """Kill the process, and count the exchanges that are lost with it.

        The lost exchanges are the exchanges in progress, and the exchange or the batch that the process was
        processing. all_batches: True to count all published batches as lost.
        """
        self._end_process()
        batches = self._spool.batches
        begin = batches[0].position if batches else sys.maxsize
        # Exchanges that began before the oldest unread batch are lost, unless they were reported.
        lost = self.open - sum(position < begin for position in self._reported)
        if self._judging is not None and not all_batches and len(self._reported) < _MOST_REPORTED:
            # Only the exchange that was being judged is lost. The new process processes the rest of its
            # batch.
            lost += self._judging >= begin
            self._reported = {position for position in (*self._reported, self._judging) if position >= begin}
        else:
            # It is unknown which exchange caused the crash, so the whole batch is lost. Otherwise the new
            # process would crash too.
            while batches:
                lost += self._spool.release().requests
                if not all_batches:
                    break
            lost -= sum(position >= begin for position in self._reported)
            self._reported.clear()
        self._judging, self.open = None, 0
        if lost > 0:
            self._on_missed(reason, lost)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self._sent, self._partial_line = 0, b""
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        process.wait()
