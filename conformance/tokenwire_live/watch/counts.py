"""The counts of the proxy, and the latest violations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tokenwire.judging.failure_kind import lasting_words
from tokenwire_live.watch.judging import Opinion, Violation
from tokenwire_live.watch.latency import Latencies

_MOST_FINDINGS = 50
"""The maximum number of findings that are stored.

The finding that was seen least recently is dropped first.
"""
_MOST_SERVED = 50
"""The maximum number of models that are counted separately.

Clients may send any model name, so further models are counted together.
"""
_OTHERS = "(others)"


@dataclass
class Served:
    """The counts for one model in one dialect."""

    judged: int = 0
    conforming: int = 0
    """The number of exchanges without a violated MUST or SHOULD."""
    violations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of violating exchanges, by requirement and level."""
    latencies: Latencies = field(default_factory=Latencies)

    def add(self, opinion: Opinion) -> None:
        self.judged += 1
        self.conforming += not opinion.violations
        self.violations.update((violation.requirement, violation.level) for violation in opinion.violations)
        if opinion.latencies is not None:
            self.latencies.merge(opinion.latencies)


@dataclass(frozen=True)
class Finding:
    """Violations at one endpoint whose messages differ only in numbers and quoted texts."""

    number: int
    last: Opinion
    violation: Violation
    """The latest of these violations."""


@dataclass
class Counts:
    """All counts since the start."""

    connections: int = 0
    open_connections: int = 0
    exchanges: int = 0
    """The number of exchanges that have ended, judged or not."""
    total: Served = field(default_factory=Served)
    served: dict[tuple[str, str], Served] = field(default_factory=dict)
    """The counts by dialect and model."""
    asked: int = 0
    """The number of requests other than GET."""
    unsampled: int = 0
    """The number of exchanges that were not in the sample."""
    not_spoken: int = 0
    """The number of exchanges with endpoints that no dialect has, such as `/health`."""
    unreachable: int = 0
    """The number of connections that the target refused."""
    sent_bytes: int = 0
    received_bytes: int = 0
    recorded: int = 0
    unrecorded: int = 0
    """The number of violating exchanges that could not be written to disk."""
    gaps: Counter[str] = field(default_factory=Counter)
    """The amount of traffic that could not be judged, by reason."""
    seen: dict[tuple[str, str], tuple[str, Opinion]] = field(default_factory=dict)
    """For each violated requirement and level: the time of the first violation, and the latest violating
    exchange.
    """
    crashed: Counter[str] = field(default_factory=Counter)
    """The number of crashed checks, by requirement."""
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    """Violations of one kind at one endpoint, the latest last."""

    def add(self, opinion: Opinion) -> None:
        """Count a judged exchange."""
        self.exchanges += 1
        if opinion.gap:
            self.gaps[opinion.gap] += 1
            return
        if not opinion.judged:
            self.not_spoken += 1
            return
        known = opinion.dialect, opinion.model
        if known not in self.served and len(self.served) >= _MOST_SERVED:
            known = opinion.dialect, _OTHERS
        for served in (self.total, self.served.setdefault(known, Served())):
            served.add(opinion)
        self.recorded += bool(opinion.recorded)
        self.unrecorded += bool(opinion.unrecorded)
        for requirement in opinion.crashed:
            self.crashed[requirement] += 1
        for violation in opinion.violations:
            key = violation.requirement, violation.level
            self.seen[key] = self.seen.get(key, (opinion.started,))[0], opinion
            self._find(opinion, violation)

    def _find(self, opinion: Opinion, violation: Violation) -> None:
        words = lasting_words(violation.message)
        key = violation.requirement, violation.level, opinion.method, opinion.path, words
        known = self.findings.pop(key, None)
        self.findings[key] = Finding(1 + (known.number if known else 0), opinion, violation)
        if len(self.findings) > _MOST_FINDINGS:
            del self.findings[next(iter(self.findings))]

    def missed(self, reason: str, exchanges: int = 1) -> None:
        """Count traffic that could not be judged. `exchanges`: the number of exchanges; 0 if unknown."""
        self.exchanges += exchanges
        self.gaps[reason] += exchanges or 1
