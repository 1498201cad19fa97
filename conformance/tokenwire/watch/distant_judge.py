"""The judge in a process of its own, which may be slow or die.

Exchanges wait in a bounded queue. One that is not judged is a gap with a reason; the traffic never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from tokenwire.watch.exchange_assembly import SCENARIO, ObservedExchange
from tokenwire.watch.judge_process import frame, read_opinion
from tokenwire.watch.judging import Opinion
from tokenwire.watch.room import Room
from tokenwire.wire.exchange import Exchange, HttpRequest

_LONGEST_LINE = 16 << 20
_MOST_TOGETHER = 32
_MUCH = 64 << 10
"""Bytes."""
_MEANWHILE_S = 0.5
TOO_SLOW, CRASHED, UNFINISHED = "judge-too-slow", "judge-crashed", "watch-ended"


def judge_command(folder: Path | None, cap: int, profiles: Sequence[str] = ()) -> list[str]:
    """The command line of the judge's process."""
    return [sys.executable, "-m", "tokenwire.watch.judge_process", str(folder or ""), str(cap), *profiles]


class DistantJudge:
    """Sends exchanges to the judge's process, a few at a time, and starts it again when it dies.

    heard: told each opinion, with its exchange less headers and bodies. missed: told the reason of each gap.
    room: where the bodies lie. patience_s: for one exchange; a judge that takes longer is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        room: Room,
        heard: Callable[[Exchange, Opinion], None],
        missed: Callable[[str], None],
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._command = command
        self._room = room
        self._heard = heard
        self._missed = missed
        self._patience_s = patience_s
        self._process: Process | None = None
        self._answers: int
        """Where it answers, as long as there is one."""
        self._line: deque[ObservedExchange] = deque()
        """Who waits; the first is being judged."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting = 0
        """Bytes that wait."""
        self._work = asyncio.create_task(self._judge_all())

    def submit(self, heard: ObservedExchange) -> None:
        """Have an exchange judged; what lies in the room for it is given back once it was."""
        self.waiting += heard.size
        self._line.append(heard)
        self._idle.clear()
        self._changed.set()

    def _done(self, heard: ObservedExchange) -> None:
        self.waiting -= heard.size
        heard.kept.give_back()

    async def close(self, patience_s: float) -> None:
        """Let those in line be judged, as long as that takes no longer than this; then end the process."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience_s)
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        for heard in self._line:
            self._missed(UNFINISHED)
            self._done(heard)
        self._line.clear()
        await self._end_process()

    async def _judge_all(self) -> None:
        while True:
            while not self._line:
                self._idle.set()
                self._changed.clear()
                await self._changed.wait()
            try:
                await self._ask(self._next_together())
            except TimeoutError:
                reason = TOO_SLOW
            except (OSError, EOFError, ValueError, TypeError):
                reason = CRASHED
            else:
                continue
            await self._end_process()
            self._missed(reason)  # those behind it are given to the next process
            self._done(self._line.popleft())

    def _next_together(self) -> list[ObservedExchange]:
        """The first in line, and as many behind it as make no large message."""
        together, size = [self._line[0]], 0
        for heard in islice(self._line, 1, _MOST_TOGETHER):
            size += heard.told_size
            if size > _MUCH:
                break
            together.append(heard)
        return together

    async def _ask(self, together: Sequence[ObservedExchange]) -> None:
        """Hear an opinion on each. Raises TimeoutError for a process that takes too long, and OSError,
        EOFError, ValueError or TypeError for one that does not answer as it should.
        """
        if self._process is None:
            self._process = await self._started()
        to = self._process.stdin
        assert to is not None
        left, data = len(together), b""
        async with asyncio.timeout(self._patience_s) as limit:
            to.write(frame(together, self._room))
            await to.drain()
            while left:
                data += await self._said()
                *lines, data = data.split(b"\n")
                for line in lines:
                    self._hear(read_opinion(line))
                left -= len(lines)
                if left < 0 or len(data) > _LONGEST_LINE:
                    raise ValueError
                if lines and left:  # to be woken for each of them takes longer than to hear them
                    now = asyncio.get_running_loop().time()
                    limit.reschedule(now + _MEANWHILE_S + self._patience_s)
                    await asyncio.sleep(_MEANWHILE_S)

    async def _started(self) -> Process:
        self._answers, theirs = os.pipe()
        os.set_blocking(self._answers, False)
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=theirs,
                start_new_session=True,
                pass_fds=(self._room.fd,),
            )
        except OSError:
            os.close(self._answers)
            raise
        finally:
            os.close(theirs)

    async def _said(self) -> bytes:
        """What the process says next. Raises EOFError where it says nothing more."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(BlockingIOError):
                if said := os.read(self._answers, _MUCH):
                    return said
                raise EOFError
            ready = loop.create_future()
            loop.add_reader(self._answers, ready.set_result, None)
            try:
                await ready
            finally:
                loop.remove_reader(self._answers)

    def _hear(self, opinion: Opinion) -> None:
        heard = self._line.popleft()
        passed = heard.passed
        method = passed.request[: passed.request.index(b" ")].decode("latin-1")
        asked = HttpRequest(method, opinion.path)
        self._heard(
            Exchange(passed.name, asked, SCENARIO, None, (), (), passed.ending, started=passed.started),
            opinion,
        )
        self._done(heard)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            process.kill()
        os.close(self._answers)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
