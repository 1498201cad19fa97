"""Detects a crashed server, and restarts it.

A request may fail on its own, so a small valid request follows each failure. If that fails too, the server
counts as dead, and gets no requests until it is back. A server that answers 429 or 503 is alive but busy: it
is retried after a pause, and gets no other requests meanwhile.
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
"""The least number of consecutive incomplete responses after which the run gives up a server that is still
alive.
"""
RESTART_WAIT_S = 600.0
"""Default seconds to wait for a restarted server. Loading a model takes minutes."""

_PAUSES_S = (0.0, 0.1, 0.5)
"""Seconds to wait before each liveness probe. If all probes fail, the server is dead."""
_POLL_S = 0.25
ROOM_WAIT_S = 30.0
"""Seconds for which a server may answer 429 or 503 to every request. `--wait` raises it."""
_FIRST_ROOM_PAUSE_S = 0.5
_LONGEST_ROOM_PAUSE_S = 8.0
"""Seconds of the longest pause before a retry, for a busy server without Retry-After.

Pauses double up to it.
"""

_SILENT = (Ending.TIMEOUT, Ending.OUTGROWN)
_OURS = (Ending.CANCELLED, Ending.HUNG_UP)


@dataclass(frozen=True)
class Revival:
    """The way to restart a dead server."""

    command: str = ""
    """A shell command that restarts the server; empty if something else restarts it."""
    wait_s: float = RESTART_WAIT_S
    """The most seconds to wait for the restarted server."""


class _Trouble(NamedTuple):
    """The reason why a server cannot be used."""

    words: str
    """The reason for the report; empty if the server is usable."""
    dead: bool = True
    """True if the server is dead and must be restarted. False if the server is only busy."""


def has_failed(exchange: ExchangeHead) -> bool:
    """True if the exchange ended in a way in which a dead server ends it.

    These are a missing or incomplete response, and a status of 500 or higher except 501.
    """
    if exchange.ending in _OURS:
        return False
    status = exchange.status
    return exchange.ending is not Ending.COMPLETE or status is None or (status >= 500 and status != 501)


def _trouble_of(exchange: ExchangeHead) -> _Trouble:
    """Return the reason that a failed liveness probe shows."""
    silent = exchange.ending in _SILENT  # the server accepts connections, but completes no response
    return _Trouble(f"the target stopped answering ({exchange.ending})" if silent else "the server died")


class VitalSigns:
    """Sends requests while the server lives, and goes on after a restart.

    If the server dies while several requests run, these requests are repeated one at a time. The request that
    kills the server again is the cause; the other requests get their answers.
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
        """Watch the server behind `inner`.

        `small`: a valid request of `dialect` that was answered before; it is the liveness probe. `patience`:
        how many consecutive responses may be incomplete before the run ends. `scout`: sends the probes of a
        restarting server, which are not recorded. `on_wait`: called with a sentence when the run waits for
        the server. `sleep`: waits between probes.
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
        """The reason why no more requests are sent; empty while they are sent."""
        self.stopped = ""
        """The reason why a signal ended the run; empty if no signal ended the run."""
        self.unproved = ""
        """The reason why a failure was not followed by a probe; empty if every failure was followed by a
        probe.
        """
        self.signal = ""
        """The name of the signal that ended the run; empty if no signal ended the run."""
        self.besides: list[Exchange] = []
        """Liveness probes, and exchanges that failed in a crash and were repeated."""

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Send a request, and repeat it if the server died meanwhile.

        Raises NotAsked if the server is dead.
        """
        # While a crash is examined, no new requests are sent: each would be a further possible cause.
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
            # Failures are examined one by one. The result of the first applies to all that failed in the same
            # crash.
            async with self._looking:
                return await self._after_failure(exchange, life, how)
        except asyncio.CancelledError:
            # The run ended while this failure waited to be examined. It is judged unchanged, as in a replay.
            if exchange not in self.besides:
                self.besides.append(exchange)
            raise
        finally:
            self._failing -= 1
            if not self._failing:
                self._calm.set()

    async def _after_failure(self, exchange: Exchange, life: int, how: dict[str, Any]) -> Exchange:
        """Return the failed exchange.

        If the server was restarted, return the repetition of the exchange instead.
        """
        if life == self._life and not self.over:
            await self._check_liveness()
            if life == self._life and not self.over and closed_silently(exchange) and how.get("tap") is None:
                # A living server may drop one connection by accident, but not two.
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
        """Probe the server after a failure. If it is dead, restart it or end the run.

        If a limit prevents the probe, the server is assumed to live.
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
        await self._idle.wait()  # running exchanges end soon, because the server is gone
        self._alone[self._life] = self._failing == 1
        words = trouble.words
        if self._revival is not None:
            words = await self._revive()
        if words:
            self.over = f"{words} before this was asked"
            return
        self._life += 1
        with contextlib.suppress(Spent):  # the scout's request has shown that the server is back
            await self._ask_small(RESTARTED, self._life)

    async def _diagnosis(self) -> _Trouble:
        """Send liveness probes; return the reason why the server is not usable, if they all fail."""
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
        """Retry a busy server after the pauses that it asks for, or after growing pauses, up to a limit."""
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
        """Restart the server and wait for it; return an empty string, or the reason why it is not back."""
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
    """Run the user's shell command; return its process id. Its child processes outlive the suite."""
    nothing = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    )
    files = (*nothing, (os.POSIX_SPAWN_DUP2, complaints, 2))
    return os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, file_actions=files, setsid=True)


def _ended(process: int) -> int | None:
    """Return the exit status of a process; None if the process is still running."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
