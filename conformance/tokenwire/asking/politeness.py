"""Politeness towards a shared server: limits on concurrency, rate, tokens and cost, and a few retries if it
is busy.

`Metered` charges every request to the limits, including retries, liveness probes and the preflight. The
report lists the requests that the limits prevented.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

from tokenwire.asking.scenario import NotAsked, Sender
from tokenwire.dialects.dialect import Dialect
from tokenwire.report.wording import first_few
from tokenwire.target.death import nobody_listened
from tokenwire.wire.exchange import Exchange, HttpRequest

_MOST_TRIES = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Price:
    """The price of a million prompt tokens and of a million output tokens."""

    prompt: float
    output: float

    def of(self, prompt_tokens: int, output_tokens: int) -> float:
        """Return the cost of some tokens."""
        return (prompt_tokens * self.prompt + output_tokens * self.output) / 1e6

    @classmethod
    def parse(cls, words: str) -> Price:
        """Parse `IN,OUT`. Raises ValueError."""
        prompt, output = map(float, words.split(","))
        if not (0 <= prompt < math.inf and 0 <= output < math.inf):
            raise ValueError(f"{words}: prices must be finite and not negative")
        return cls(prompt, output)


@dataclass(frozen=True)
class Limits:
    """The user's limits of a run."""

    max_concurrency: int = 16
    """Concurrent requests."""
    max_tokens: int | None = None
    """Total output tokens; None for no limit."""
    rate: float | None = None
    """Requests per second; None for no limit."""
    max_requests: int | None = None
    """Total requests; None for no limit."""
    max_cost: float | None = None
    """The most that the run may cost by `price`; None for no limit."""
    price: Price | None = None


@dataclass
class Pace:
    """A token bucket of one token, refilled `rate` times a second. Each request takes a token."""

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _free_at: float = field(default=0.0, init=False)

    async def wait(self) -> None:
        """Wait for the next token."""
        if self.rate is None:
            return
        now = self.clock()
        due = max(self._free_at, now)
        self._free_at = due + 1 / self.rate
        if due > now:
            await self.sleep(due - now)


class Spent(NotAsked):
    """A request would exceed one of the user's limits."""


@dataclass
class Purse:
    """Counts requests, tokens and cost, and compares them with the limits. All senders of a run share it."""

    limits: Limits
    targets: int = 1
    """The number of targets. Each target gets an equal part of the limits."""
    pace: Pace = field(default_factory=lambda: Pace(None))
    spent: int = field(default=0, init=False)
    """Output tokens that were charged so far."""
    requests: int = field(default=0, init=False)
    cost: float = field(default=0.0, init=False)

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return a new purse. Its pace is the rate limit."""
        return cls(limits, pace=Pace(limits.rate))

    def split(self, targets: int) -> Purse:
        """Return a new purse for one of several targets, with an equal part of the limits.

        The pace is shared.
        """
        return Purse(self.limits, targets, self.pace)

    def affords(self, requests: int) -> bool:
        """True if the limits allow this many more requests."""
        most = self.limits.max_requests
        return most is None or self.requests + requests <= most // self.targets

    def spend(self, tokens: int, cost: float) -> None:
        """Charge one more request. Raises Spent if it exceeds a limit."""
        limits = self.limits
        if limits.max_tokens is not None and self.spent + tokens > limits.max_tokens // self.targets:
            spent = self._used(self.spent, "--max-tokens", limits.max_tokens)
            raise Spent(f"it requests {tokens} output tokens, and {spent} are used")
        if not self.affords(1):
            raise Spent(f"{self._used(self.requests, '--max-requests', limits.max_requests)} are sent")
        if limits.max_cost is not None and self.cost + cost > limits.max_cost / self.targets:
            spent = self._used(f"{self.cost:.4f}", "--max-cost", limits.max_cost)
            raise Spent(f"it may cost {cost:.4f}, and {spent} are spent")
        self.spent += tokens
        self.requests += 1
        self.cost += cost

    def give_back(self, tokens: int, cost: float, requests: int = 0) -> None:
        """Refund the unused part of a charge."""
        self.spent -= tokens
        self.cost -= cost
        self.requests -= requests

    def _used(self, used: float | str, option: str, limit: float | None) -> str:
        """Describe how much of a limit was used, for example "12 of --max-requests 20"."""
        return f"{used} of {option} {limit}{f' for {self.targets} targets' * (self.targets > 1)}"

    def words(self) -> str:
        """Describe how much of each limit was used."""
        limits = self.limits
        words = [
            f"{self._used(used, option, limit)} are {gone}"
            for used, option, limit, gone in (
                (self.spent, "--max-tokens", limits.max_tokens, "spent"),
                (self.requests, "--max-requests", limits.max_requests, "sent"),
                (f"{self.cost:.4f}", "--max-cost", limits.max_cost, "spent"),
            )
            if limit is not None
        ]
        return ", ".join(words)


def prompt_tokens(request: HttpRequest, dialects: Iterable[Dialect]) -> int:
    """Return an upper bound of the tokens in the prompts of a request.

    A text has at most one token for each byte.
    """
    asked = [dialect.read_asked(request) for dialect in dialects if request in dialect.endpoint]
    counts = (
        len(fields.prompt_key.encode()) if fields.input_ids is None else sum(map(len, fields.input_ids))
        for fields in asked
    )
    return max(counts, default=0)


def tokens_asked(request: HttpRequest, dialects: Iterable[Dialect], at_most: int) -> int:
    """Return an upper bound of the output tokens of a request.

    `at_most`: the bound for each choice if the request does not limit its tokens.
    """
    sampled = (dialect for dialect in dialects if not dialect.gives_results)
    asked = [dialect.read_asked(request) for dialect in sampled if request in dialect.endpoint]
    return max(
        (
            fields.prompts * fields.n * (at_most if fields.max_new_tokens is None else fields.max_new_tokens)
            for fields in asked
        ),
        default=0,
    )


def retry_after(exchange: Exchange, now: datetime) -> float | None:
    """Return the seconds to wait before a retry, from the Retry-After header (RFC 9110, 10.2.3); None without
    it.
    """
    value = (exchange.header("retry-after") or "").strip()
    if value.isdecimal():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())


class Metered:
    """Charges each request to the limits, then sends it."""

    def __init__(
        self,
        inner: Sender,
        purse: Purse,
        *,
        dialects: Iterable[Dialect] = (),
        context_length: int = 0,
        pace: Pace | None = None,
    ) -> None:
        """Charge requests to `purse`.

        `dialects`: used to find the token limit of a request. `context_length`: charged for a choice without
        a token limit. `pace`: replaces the pace of the purse.
        """
        self._inner, self._purse = inner, purse
        self._dialects = tuple(dialects)
        self._context_length = context_length
        self._pace = pace or purse.pace

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Charge and send one request, without retries. Raises Spent if it would exceed a limit."""
        limits = self._purse.limits
        counted = limits.max_tokens is not None or limits.price is not None
        tokens = tokens_asked(request, self._dialects, self._context_length) if counted else 0
        price = limits.price
        cost = price.of(prompt_tokens(request, self._dialects), tokens) if price is not None else 0.0
        self._purse.spend(tokens, cost)
        await self._pace.wait()
        exchange = await self._inner.send(name, scenario, request, **how)
        if nobody_listened(exchange):
            self._purse.give_back(tokens, cost, requests=1)
        elif exchange.status is not None and exchange.status != 200:
            # A refused request produced no tokens, so only the request is charged.
            self._purse.give_back(tokens, cost)
        return exchange


class PoliteSender:
    """Sends requests with a limit on concurrency, and retries a few times while the server is busy."""

    def __init__(
        self, inner: Sender, purse: Purse, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._inner = inner
        self._purse = purse
        self._slots = asyncio.Semaphore(purse.limits.max_concurrency)
        self._sleep = sleep
        self._not_asked: list[str] = []
        self._given_up: list[str] = []
        self._unpaid: list[str] = []
        self.turned_away: list[Exchange] = []
        """Attempts that the busy server refused and that were retried, in order."""

    def to(self, inner: Sender) -> Self:
        """Return a sender through `inner` with the same concurrency limit and the same remarks."""
        other = copy.copy(self)
        other._inner = inner
        return other

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        """Send a request, and retry it while the server is busy; return the last exchange.

        The first retry is named `<name>-retry-1`. Raises NotAsked if a limit prevents the first attempt.
        """
        try:
            if how.get("aside"):  # an abort of a running request must not wait in the queue
                return await self._inner.send(name, scenario, request, **how)
            async with self._slots:
                return await self._insist(name, scenario, request, how)
        except Spent:
            self._not_asked.append(name)
            raise

    async def _insist(self, name: str, scenario: str, request: HttpRequest, how: dict[str, Any]) -> Exchange:
        exchange = await self._inner.send(name, scenario, request, **how)
        for retry in range(1, _MOST_TRIES):
            if not exchange.busy:
                return exchange
            asked_for = retry_after(exchange, datetime.now(UTC))
            wait = _FIRST_WAIT_S * 2 ** (retry - 1) if asked_for is None else asked_for
            if wait > _LONGEST_WAIT_S:
                break
            await self._sleep(wait)
            try:
                again = await self._inner.send(f"{name}-retry-{retry}", scenario, request, **how)
            except Spent:
                self._unpaid.append(name)
                return exchange
            self.turned_away.append(exchange)
            exchange = again
        if exchange.busy:
            self._given_up.append(name)
        return exchange

    def remarks(self) -> Iterator[str]:
        """Yield remarks on retried requests for the report."""
        if self.turned_away:
            yield (
                f"the target was busy: {len(self.turned_away)} requests were sent again after status "
                f"{first_few(sorted({str(exchange.status) for exchange in self.turned_away}), _MOST_NAMED)} "
                f"({first_few([exchange.name for exchange in self.turned_away], _MOST_NAMED)})"
            )
        if self._given_up:
            yield f"still busy, and not asked again: {first_few(self._given_up, _MOST_NAMED)}"
        if self._unpaid:
            yield (
                f"still busy, and not asked again because {self._purse.words()}: "
                f"{first_few(self._unpaid, _MOST_NAMED)}"
            )

    @property
    def cut_off(self) -> str:
        """Describe how many requests the limits prevented; empty if none."""
        number = len(self._not_asked)
        exchanges = "1 exchange was" if number == 1 else f"{number} exchanges were"
        return f"{exchanges} not asked: {self._purse.words()}" if number else ""
