"""The load of an engine, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class EngineLoad:
    """Requests and cache positions between two steps."""

    running: int
    waiting: int
    used_tokens: int
    """Positions of the KV cache in use by live requests."""
    total_tokens: int
    storage_failures: int = 0
    """The number of failed reads and writes of storage, since the start."""


def total_load(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Return the load of several engines."""
    return EngineLoad(*map(sum, zip(*map(astuple, loads), strict=True)))


class QueueFullError(ValueError):
    """The queue is full; the client gets status 503 and can retry."""
