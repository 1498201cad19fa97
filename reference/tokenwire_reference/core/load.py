"""The load of an engine, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class EngineLoad:
    """Requests and cache positions at one moment between two steps."""

    running: int
    waiting: int
    used_tokens: int
    """Positions of the KV cache that live requests hold."""
    total_tokens: int
    storage_failures: int = 0
    """Pages that storage could not write or read, since the start."""


def total_load(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Return the load of several engines."""
    return EngineLoad(*map(sum, zip(*map(astuple, loads), strict=True)))


class QueueFullError(ValueError):
    """The queue is full; the client gets status 503 and can retry."""
