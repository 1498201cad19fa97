"""The load of an engine, and the error for a full queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class EngineLoad:
    """The number of requests and of used cache positions, counted between two steps."""

    running: int
    waiting: int
    used_tokens: int
    """The number of KV cache positions that live requests use."""
    total_tokens: int
    storage_failures: int = 0
    """The number of reads and writes of storage that have failed since the start."""


def total_load(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Return the sum of the loads of several engines."""
    return EngineLoad(*map(sum, zip(*map(astuple, loads), strict=True)))


class QueueFullError(ValueError):
    """The queue is full; the client gets status 503 and can retry."""
