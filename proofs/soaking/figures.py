"""Figures of a soak, and the demands that they do not meet."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

Sample = tuple[float, str, float]
"""Seconds since the start, what ran, and the megabytes of the server."""


@dataclass
class Figures:
    """Measured figures, and the demands that they do not meet."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """The subject, the demand and the measured value of each row."""
    broken: list[str] = field(default_factory=list)
    memory: list[Sample] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """In seconds, sorted: of fast readers beside others that read at once, and slowly."""

    def demand(self, what: str, demanded: str, measured: str, *, holds: bool) -> None:
        self.rows.append((what, demanded, measured))
        print(
            f"{what}: {measured} ({demanded}){'' if holds else '  DOES NOT HOLD'}",
            file=sys.stderr,
            flush=True,
        )
        if not holds:
            self.broken.append(what)
