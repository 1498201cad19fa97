"""Counts of what a server did, for `/metrics`. Lives on the event loop, beside the request manager."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every histogram."""


@dataclass
class Histogram:
    """How often a time fell into each bucket; the last bucket has no bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a time; several equal ones at once."""
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times


@dataclass
class Meters:
    """Everything that is counted. Tokens count when they are emitted, prompts when their request ended."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)

    def emitted(self, tokens: int, before: int, since_start: float, since_last: float) -> None:
        """Count a row of `tokens` new tokens after `before` others; the times are in seconds."""
        if tokens == 0:
            return
        self.generation_tokens += tokens
        if before == 0:
            self.first_token.observe(since_start)
        else:
            self.between_tokens.observe(since_last / tokens, tokens)

    def ended(self, *, prompt_tokens: int, cached_tokens: int, seconds: float, aborted: bool) -> None:
        """Count a request that ended."""
        self.requests += 1
        self.aborted += aborted
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.end_to_end.observe(seconds)
