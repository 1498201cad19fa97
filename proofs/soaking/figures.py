"""Measured values of a soak, and their limits that are not kept."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

Sample = tuple[float, str, float]
"""Seconds since the start, the part of the soak, and the megabytes of the server."""


@dataclass
class Figures:
    """Measured values, and their limits that are not kept."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """The subject, the limit and the measured value of each row."""
    broken: list[str] = field(default_factory=list)
    memory: list[Sample] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """The sorted latencies of fast readers in seconds, by the speed of the other readers."""

    def demand(self, what: str, demanded: str, measured: str, *, holds: bool) -> None:
        self.rows.append((what, demanded, measured))
        print(
            f"{what}: {measured} ({demanded}){'' if holds else '  DOES NOT HOLD'}",
            file=sys.stderr,
            flush=True,
        )
        if not holds:
            self.broken.append(what)
