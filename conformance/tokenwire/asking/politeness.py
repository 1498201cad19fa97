"""Politeness towards a server that others use too: so many requests at a time, so many a second, so many
tokens in all; and a busy server is asked again later, a few times, and never in secret.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

from tokenwire.asking.scenario import NotAsked, Sender
from tokenwire.dialects.dialect import Dialect
from tokenwire.wire.exchange import Exchange, HttpRequest

_MOST_TRIES = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Limits:
    """What a run may ask of a server."""

    max_concurrency: int = 16
    """Requests at a time."""
    max_tokens: int | None = None
    """Output tokens in all; None for no limit."""
    rate: float | None = None
    """Requests in a second; None for no limit."""


@dataclass
class Pace:
    """A token bucket that holds one token and gets `rate` a second: a request goes out when one is there."""

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _free_at: float = field(default=0.0, init=False)

    async def wait(self) -> None:
        """Wait for the next token."""
        if self.rate is None:
            return
        now = self.clock()
        at = max(self._free_at, now)
        self._free_at = at + 1 / self.rate
        if at > now:
            await self.sleep(at - now)


@dataclass
class Purse:
    """The output tokens that the run may still ask for."""

    max_tokens: int | None
    spent: int = 0

    def spend(self, tokens: int) -> None:
        """Raises NotAsked where fewer are left."""
        if self.max_tokens is not None and self.spent + tokens > self.max_tokens:
            raise NotAsked(
                f"it asks for {tokens} output tokens, and {self.spent} of --max-tokens {self.max_tokens} "
                "are spent"
            )
        self.spent += tokens

    def give_back(self, tokens: int) -> None:
        self.spent -= tokens


def _tokens_asked(request: HttpRequest, dialects: Iterable[Dialect], at_most: int) -> int:
    """How many output tokens a request may be answered with; `at_most` to a choice where it does not say."""
    asked = [dialect.read_asked(request) for dialect in dialects if request in dialect.endpoint]
    return max(
        (
            one.prompts * one.n * (at_most if one.max_new_tokens is None else one.max_new_tokens)
            for one in asked
        ),
        default=0,
    )


def retry_after(exchange: Exchange, now: datetime) -> float | None:
    """The seconds that a busy server asks for (RFC 9110, 10.2.3); None where it names none."""
    said = (exchange.header("retry-after") or "").strip()
    if said.isdecimal():
        return float(said)
    try:
        at = parsedate_to_datetime(said)
    except ValueError:
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


class PoliteSender:
    """Sends through another sender, within limits; asks a busy server again, later and a few times."""

    def __init__(
        self,
        inner: Sender,
        limits: Limits,
        *,
        dialects: Iterable[Dialect] = (),
        context_length: int = 0,
        pace: Pace | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`dialects`: in whose requests output tokens are counted; without any, nothing is charged.
        `context_length`: what a choice is charged whose request names no budget.
        """
        self._inner = inner
        self._dialects = tuple(dialects)
        self._context_length = context_length
        self._slots = asyncio.Semaphore(limits.max_concurrency)
        self._pace = pace or Pace(limits.rate)
        self._purse = Purse(limits.max_tokens)
        self._sleep = sleep
        self._not_asked: list[str] = []
        self._given_up: list[str] = []
        self.turned_away: list[Exchange] = []
        """The attempts that met a busy server and were followed by another, in order."""

    def to(self, inner: Sender, dialects: Iterable[Dialect] = (), context_length: int = 0) -> Self:
        """The same politeness through another sender: they share what is limited, and what is told of it."""
        other = copy.copy(self)
        other._inner, other._dialects, other._context_length = inner, tuple(dialects), context_length
        return other

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Send a request, again where the server is busy; the last of the exchanges.

        The second attempt is named `<name>-retry-1`. Raises NotAsked where the tokens left do not pay for it.
        """
        tokens = _tokens_asked(request, self._dialects, self._context_length)
        try:
            self._purse.spend(tokens)
        except NotAsked:
            self._not_asked.append(name)
            raise
        if how.get("aside"):  # what acts on a request under way must not queue behind it
            await self._pace.wait()
            return await self._inner.send(name, scenario, request, **how)
        async with self._slots:
            exchange = await self._insist(name, scenario, request, how)
        if exchange.status is not None and exchange.status != 200:
            self._purse.give_back(tokens)
        return exchange

    async def _insist(self, name: str, scenario: str, request: HttpRequest, how: dict[str, Any]) -> Exchange:
        for attempt in range(_MOST_TRIES):
            await self._pace.wait()
            attempted = f"{name}-retry-{attempt}" if attempt else name
            exchange = await self._inner.send(attempted, scenario, request, **how)
            if not exchange.busy:
                return exchange
            said = retry_after(exchange, datetime.now(UTC))
            wait = _FIRST_WAIT_S * 2**attempt if said is None else said
            if attempt + 1 == _MOST_TRIES or wait > _LONGEST_WAIT_S:
                self._given_up.append(name)
                break
            self.turned_away.append(exchange)
            await self._sleep(wait)
        return exchange

    def remarks(self) -> Iterator[str]:
        """What a reader of the verdicts should know: requests that were sent again, and those not sent."""
        if self.turned_away:
            yield (
                f"the target was busy: {len(self.turned_away)} requests were sent again after status "
                f"{_named(sorted({str(each.status) for each in self.turned_away}))} "
                f"({_named([each.name for each in self.turned_away])})"
            )
        if self._given_up:
            yield f"still busy, and not asked again: {_named(self._given_up)}"
        if self._not_asked:
            yield (
                f"{len(self._not_asked)} exchanges were not asked: {self._purse.spent} of --max-tokens "
                f"{self._purse.max_tokens} are spent; -v tells which"
            )


def _named(names: list[str]) -> str:
    return ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])
