"""The judge in a process of its own, which may be slow or die.

Exchanges wait in a bounded queue. One that is not judged is a gap with a reason; the traffic never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tokenwire.watch.exchange_assembly import ObservedExchange
from tokenwire.watch.judge_process import frame, read_opinion
from tokenwire.watch.judging import Opinion
from tokenwire.watch.room import Room
from tokenwire.wire.exchange import Exchange

_LONGEST_LINE = 16 << 20
TOO_SLOW, CRASHED, UNFINISHED = "judge-too-slow", "judge-crashed", "watch-ended"


def judge_command(folder: Path | None, cap: int, profiles: Sequence[str] = ()) -> list[str]:
    """The command line of the judge's process."""
    return [sys.executable, "-m", "tokenwire.watch.judge_process", str(folder or ""), str(cap), *profiles]


class DistantJudge:
    """Sends exchanges to the judge's process, one at a time, and starts it again when it dies.

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
        heard.body.give_back()

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
            heard = self._line[0]
            try:
                opinion = await asyncio.wait_for(self._ask(heard), self._patience_s)
            except TimeoutError:
                self._missed(TOO_SLOW)
                await self._end_process()
            except (OSError, EOFError, ValueError, TypeError):
                self._missed(CRASHED)
                await self._end_process()
            else:
                asked = replace(heard.exchange.request, path=opinion.path, headers=(), raw_body=None)
                self._heard(replace(heard.exchange, request=asked, headers=()), opinion)
            self._done(self._line.popleft())

    async def _ask(self, heard: ObservedExchange) -> Opinion:
        """Raises OSError, EOFError, ValueError or TypeError where the process is none that answers."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,
                pass_fds=(self._room.fd,),
            )
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(frame(heard, self._room))
        await to.drain()
        line = await answers.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return read_opinion(line)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            process.kill()
        await process.communicate()
