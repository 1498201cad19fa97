"""Counts of the watcher, and the latest violations."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from tokenwire.watch.judging import Opinion, Violation

_LATEST = 50


@dataclass
class Counts:
    """Counts since the watcher began."""

    connections: int = 0
    open_connections: int = 0
    exchanges: int = 0
    """That ended, judged or not."""
    judged: int = 0
    conforming: int = 0
    """Judged, and no MUST or SHOULD was violated."""
    not_spoken: int = 0
    """Exchanges with endpoints that no dialect knows, such as `/health`."""
    unreachable: int = 0
    """Connections that the target refused."""
    sent_bytes: int = 0
    received_bytes: int = 0
    recorded: int = 0
    unrecorded: int = 0
    """Violating exchanges that could not be written."""
    gaps: Counter[str] = field(default_factory=Counter)
    """Traffic that could not be judged, by reason."""
    violations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Violating exchanges, by requirement and level."""
    seen: dict[tuple[str, str], tuple[str, Opinion]] = field(default_factory=dict)
    """Of each of them, when it was seen first, and the last exchange."""
    crashed: Counter[str] = field(default_factory=Counter)
    """Crashes of checks, by requirement."""
    latest: deque[tuple[Opinion, Violation]] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def add(self, opinion: Opinion) -> None:
        """Count an exchange by its opinion."""
        self.exchanges += 1
        if opinion.gap:
            self.gaps[opinion.gap] += 1
            return
        if not opinion.judged:
            self.not_spoken += 1
            return
        self.judged += 1
        self.conforming += not opinion.violations
        self.recorded += bool(opinion.recorded)
        self.unrecorded += bool(opinion.unrecorded)
        for requirement in opinion.crashed:
            self.crashed[requirement] += 1
        for violation in opinion.violations:
            key = violation.requirement, violation.level
            self.violations[key] += 1
            self.seen[key] = self.seen.get(key, (opinion.started,))[0], opinion
            self.latest.appendleft((opinion, violation))

    def missed(self, reason: str, exchanges: int = 1) -> None:
        """Count a gap of so many exchanges; of 0 if none could be seen in it."""
        self.exchanges += exchanges
        self.gaps[reason] += exchanges or 1
