"""A reader that does not keep up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlowReader:
    """How to read so slowly that the server feels it: stop after the first bytes, wait, read the rest."""

    after_bytes: int = 1
    """Stop as soon as so many bytes of the body were read."""
    pause_s: float = 2.0
    window: int = 4096
    """Size of the receive buffer in bytes (the kernel doubles it)."""
