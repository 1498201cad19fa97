"""Checks that the server still answers, and restarts it.

A request may fail by its own fault, so a small valid request follows each failure. If that fails too, the
server is dead, and gets no more requests until it is back. A server that answers 429 or 503 is alive. It is
retried later, as it says, and gets no other requests meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tokenwire.asking.politeness import Spent, retry_after
from tokenwire.asking.scenario import NotAsked, Sender
from tokenwire.dialects.dialect import Dialect
from tokenwire.judging.run import has_record
from tokenwire.target.death import RESTARTED, VITALS, closed_silently
from tokenwire.wire.exchange import Ending, Exchange, ExchangeHead, HttpRequest, exchange_name

LEAST_PATIENCE = 8
"""The consecutive exchanges without a complete answer after which a living server is given up."""
RESTART_WAIT_S = 600.0
"""The default seconds for a restart, because loading a model takes minutes."""

_PAUSES_S = (0.0, 0.1, 0.5)
"""Pauses in seconds before the small valid requests. If all of them fail, the server is dead."""
_POLL_S = 0.25
ROOM_WAIT_S = 30.0
"""Seconds for which a server may answer 429 or 503 to everything; `--wait` changes it."""
_FIRST_ROOM_PAUSE_S = 0.5
_LONGEST_ROOM_PAUSE_S = 8.0
"""The longest pause in seconds between retries of a busy server that names no time. Pauses double."""

_SILENT = (Ending.TIMEOUT, Ending.OUTGROWN)
_OURS = (Ending.CANCELLED, Ending.HUNG_UP)


@dataclass(frozen=True)
class Revival:
    """The way to restart a dead server."""

    command: str = ""
    """A shell command that restarts it; empty if something else does."""
    wait_s: float = RESTART_WAIT_S
    """The longest restart in seconds."""


class _Trouble(NamedTuple):
    """The reason why a server cannot be used."""

    words: str
    """The reason; empty if the server can be used."""
    dead: bool = True
    """True if it must be restarted; False if it answers, but is busy."""


def has_failed(exchange: ExchangeHead) -> bool:
    """True if the server itself failed at a request, as a dead server does."""
    if exchange.ending in _OURS:
        return False
    status = exchange.status
    return exchange.ending is not Ending.COMPLETE or status is None or (status >= 500 and status != 501)


def _trouble_of(exchange: ExchangeHead) -> _Trouble:
    """Return the trouble that a failed small request shows."""
    silent = exchange.ending in _SILENT  # it still accepts connections, but completes no answer
    return _Trouble(f"the target stopped answering ({exchange.ending})" if silent else "the server died")


class VitalSigns:
    """Sends through another sender while the server lives, and continues when it is restarted.

    Concurrent requests that a death cut are repeated one at a time. The one that kills again is the cause,
    and the others get their answers.
    """

    def __init__(
        self,
        inner: Sender,
        dialect: Dialect,
        small: HttpRequest,
        *,
        patience: int = LEAST_PATIENCE,
        revival: Revival | None = None,
        scout: Sender | None = None,
        on_wait: Callable[[str], object] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Watch over `inner`.

        `small`: a valid request of `dialect` that was answered before. `patience`: the most consecutive
        exchanges without a complete answer, which is the limit of concurrency. `scout`: probes if the server
        is back; its exchanges are not recorded. `on_wait`: called with a sentence when the run waits for the
        server. `sleep`: waits between probes.
        """
        self._sleep = sleep
        self._inner, self._dialect, self._small = inner, dialect, small
        self._patience = max(patience, LEAST_PATIENCE)
        self._revival, self._scout, self._on_wait = revival, scout or inner, on_wait
        self._silent = self._checks = self._life = self._under_way = self._failing = 0
        self._alone: dict[int, bool] = {}
        self._looking = asyncio.Lock()
        self._idle, self._calm = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._calm.set()
        self.over = ""
        """The reason why no requests are sent any more; empty while they are."""
        self.stopped = ""
        """The reason if a signal ended the run; empty otherwise."""
        self.unproved = ""
        """The reason, as a sentence, why it is unknown if the server survived a failure; empty if it is
        known.
        """
        self.signal = ""
        """The signal that ended the run, if any."""
        self.besides: list[Exchange] = []
        """Exchanges of liveness probes, and those cut by a death that were repeated."""

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Send a request, and repeat it if the server died meanwhile. Raises NotAsked if it is dead."""
        # No new requests while a dead server is examined, because each would be another suspect.
        await self._calm.wait()
        if self.over:
            raise NotAsked(self.over)
        life = self._life
        self._under_way += 1
        self._idle.clear()
        try:
            exchange = await self._inner.send(name, scenario, request, **how)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self._silent = self._silent + 1 if exchange.ending in _SILENT else 0
        if not has_failed(exchange) or how.get("aside"):
            return exchange
        self._failing += 1
        try:
            # One failure at a time; its result applies to the others that waited.
            async with self._looking:
                return await self._after_failure(exchange, life, how)
        except asyncio.CancelledError:
            # The run ended while this exchange waited for the server, so it is judged unchanged, as in a
            # replay.
            if exchange not in self.besides:
                self.besides.append(exchange)
            raise
        finally:
            self._failing -= 1
            if not self._failing:
                self._calm.set()

    async def _after_failure(self, exchange: Exchange, life: int, how: dict[str, Any]) -> Exchange:
        """Return a failed exchange, or its repetition after a restart."""
        if life == self._life and not self.over:
            await self._check_liveness()
            if life == self._life and not self.over and closed_silently(exchange) and how.get("tap") is None:
                # A living server may lose one connection by accident, but not two.
                self.besides.append(exchange)
                name = f"{exchange.name}-asked-again"
                return await self._inner.send(name, exchange.scenario, exchange.request, **how)
        if life == self._life or self.over or self._alone[life] or how.get("tap") is not None:
            return exchange
        self.besides.append(exchange)
        name = f"{exchange.name}-after-restart"
        try:
            again = await self._inner.send(name, exchange.scenario, exchange.request, **how)
        except Spent:
            self.besides = [other for other in self.besides if other is not exchange]
            return exchange
        if has_failed(again):
            await self._check_liveness()
        return again

    async def _check_liveness(self) -> None:
        """Check if the server lives. If not, restart it or give it up.

        If a limit forbids the probe, this remains unknown, because nothing shows that the server died.
        """
        try:
            trouble = await self._diagnosis()
        except Spent as reason:
            self.unproved = f"whether the target lived after a failure was not asked: {reason}"
            return
        if not trouble.words:
            if self._silent >= self._patience:
                self.over = (
                    f"the target stopped answering: {self._silent} exchanges in a row got no end of an answer"
                )
            return
        if not trouble.dead:
            self.over = f"{trouble.words} before this was asked"
            return
        self._calm.clear()
        await self._idle.wait()  # running exchanges end by themselves, because their server is gone
        self._alone[self._life] = self._failing == 1
        words = trouble.words
        if self._revival is not None:
            words = await self._revive()
        if words:
            self.over = f"{words} before this was asked"
            return
        self._life += 1
        with contextlib.suppress(Spent):  # the scout has seen that it is back
            await self._ask_small(RESTARTED, self._life)

    async def _diagnosis(self) -> _Trouble:
        """Send small valid requests; return the trouble that they show."""
        trouble = _Trouble("")
        for pause in _PAUSES_S:
            await self._sleep(pause)
            exchange = await self._look()
            if exchange.busy:
                return await self._wait_for_room(exchange)
            if not has_failed(exchange):
                return _Trouble("")
            trouble = _trouble_of(exchange)
            if exchange.ending is Ending.TIMEOUT:
                break
        return trouble

    async def _wait_for_room(self, exchange: Exchange) -> _Trouble:
        """Retry a busy server at the time that it names, or with growing pauses, within a limit."""
        self._calm.clear()
        limit = max(ROOM_WAIT_S, self._revival.wait_s if self._revival is not None else 0.0)
        waited, pause, status = 0.0, _FIRST_ROOM_PAUSE_S, exchange.status
        self._on_wait(
            f"the target answers {status} to a small request; waiting up to {limit:g} s until it has room"
        )
        while exchange.busy:
            if waited >= limit:
                longer = "a larger --wait N" if self._revival is not None else "--wait N"
                return _Trouble(
                    f"the target answered {status} for {limit:g} s ({longer} waits longer)", dead=False
                )
            asked_for = retry_after(exchange, datetime.now(UTC))
            wait = min(limit - waited, pause if asked_for is None else max(asked_for, _FIRST_ROOM_PAUSE_S))
            pause = min(2 * pause, _LONGEST_ROOM_PAUSE_S)
            await self._sleep(wait)
            waited += wait
            exchange = await self._look()
        return _trouble_of(exchange) if has_failed(exchange) else _Trouble("")

    async def _look(self) -> Exchange:
        self._checks += 1
        return await self._ask_small(VITALS, self._checks)

    async def _ask_small(self, scenario: str, nth: int) -> Exchange:
        name = exchange_name(scenario, str(nth), self._dialect.name)
        exchange = await self._inner.send(name, scenario, self._small, aside=True)
        self.besides.append(exchange)
        return exchange

    async def _revive(self) -> str:
        """Restart the server and wait for it; return the reason if it is not back, else an empty text."""
        assert self._revival is not None
        command, wait_s = self._revival.command, self._revival.wait_s
        until = asyncio.get_running_loop().time() + wait_s
        started = f"started again by {command!r}, " if command else ""
        self._on_wait(f"the server died; {started}waiting up to {wait_s:g} s until it answers")
        with tempfile.TemporaryFile("w+") as complaints:
            process = _started(command, complaints.fileno()) if command else None
            while asyncio.get_running_loop().time() < until:
                status = _ended(process) if process is not None else None
                if status:
                    complaints.seek(0)
                    complaint = complaints.read().strip().splitlines()[-1:] or ["it printed nothing"]
                    return f"the server died, and --restart ended with status {status} ({complaint[0]})"
                process = process if status is None else None
                try:
                    answer = await self._scout.send("back", VITALS, self._small)
                except Spent as reason:
                    return f"the server died, and no request checked whether it came back: {reason}"
                if has_record(self._dialect.read(answer)):
                    return ""
                await asyncio.sleep(_POLL_S)
        return f"the server died, and was not back after {wait_s:g} s"


def _started(command: str, complaints: int) -> int:
    """Run a command of the user in a shell; return its process id. What it starts outlives the suite."""
    nothing = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    )
    files = (*nothing, (os.POSIX_SPAWN_DUP2, complaints, 2))
    return os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, file_actions=files, setsid=True)


def _ended(process: int) -> int | None:
    """Return the exit status of a process; None while it runs."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
