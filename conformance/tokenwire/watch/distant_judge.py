"""The judge as the watcher sees it: somewhere else, perhaps slow, perhaps dead.

Exchanges wait in line up to a bound. Whatever is not judged is a gap with a reason; nothing here ever holds
the traffic up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tokenwire.watch.judge_process import frame, read_opinion
from tokenwire.watch.judging import Opinion
from tokenwire.watch.overheard import Overheard
from tokenwire.wire.exchange import Exchange

_LONGEST_LINE = 16 << 20
_LARGE = 32 << 10
TOO_SLOW, CRASHED, UNFINISHED = "judge-too-slow", "judge-crashed", "watch-ended"


def judge_command(folder: Path | None, cap: int, profiles: Sequence[str] = ()) -> list[str]:
    """The command line of the judge's process."""
    return [sys.executable, "-m", "tokenwire.watch.judge_process", str(folder or ""), str(cap), *profiles]


def _in_large_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes: what is small is put together, and what is large is not copied."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        small.append(piece)
        size += len(piece)
        if size >= _LARGE:
            yield b"".join(small) if len(small) > 1 else piece
            small.clear()
            size = 0
    if small:
        yield b"".join(small)


class DistantJudge:
    """Sends exchanges to the judge's process, one at a time, and starts it again when it dies.

    heard: told each opinion, with its exchange less headers and bodies. missed: told the reason of each gap.
    most_waiting: bytes of exchanges that may wait, those under way among them. patience_s: for one exchange;
    a judge that takes longer is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        heard: Callable[[Exchange, Opinion], None],
        missed: Callable[[str], None],
        *,
        most_waiting: int = 256 << 20,
        patience_s: float = 60.0,
    ) -> None:
        self._command = command
        self._heard = heard
        self._missed = missed
        self._most_waiting = most_waiting
        self._patience_s = patience_s
        self._process: Process | None = None
        self._to: socket.socket | None = None
        self._line: deque[Overheard] = deque()
        """Who waits; the first is being judged."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting = 0
        """Bytes that wait."""
        self.lent = 0
        """Bytes that are kept for exchanges under way."""
        self._work = asyncio.create_task(self._judge_all())

    def lend(self, size: int) -> bool:
        """Room for more of an exchange that is under way, where there is any; below 0, it is given back."""
        if size > 0 and self.lent + self.waiting + size > self._most_waiting:
            return False
        self.lent += size
        return True

    def submit(self, heard: Overheard) -> None:
        """Have an exchange judged, if there is room in line."""
        if self._line and self.waiting + heard.size > self._most_waiting:
            self._missed(TOO_SLOW)
            return
        self.waiting += heard.size
        self._line.append(heard)
        self._idle.clear()
        self._changed.set()

    async def close(self, patience_s: float) -> None:
        """Let those in line be judged, as long as that takes no longer than this; then end the process."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience_s)
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        for _ in self._line:
            self._missed(UNFINISHED)
        self._line.clear()
        self.waiting = 0
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
            self._line.popleft()
            self.waiting -= heard.size

    async def _ask(self, heard: Overheard) -> Opinion:
        """Raises OSError, EOFError, ValueError or TypeError where the process is none that answers."""
        if self._process is None:
            self._to, theirs = socket.socketpair()
            self._to.setblocking(False)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=theirs, stdout=PIPE, limit=_LONGEST_LINE, start_new_session=True
                )
        to, answers, loop = self._to, self._process.stdout, asyncio.get_running_loop()
        assert to is not None
        assert answers is not None
        for data in _in_large_pieces(frame(heard)):
            await loop.sock_sendall(to, data)
        line = await answers.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return read_opinion(line)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if self._to is not None:
            self._to.close()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            process.kill()
        await process.communicate()
