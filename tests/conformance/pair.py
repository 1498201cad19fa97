"""What a check has to tell apart: two answers, or groups of them, that differ in one thing."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenwire.checks.check import Target
from tokenwire.record import Stream
from tokenwire.target.determinism import Comparison

Subject = Stream | Comparison | tuple[Stream, ...]


@dataclass(frozen=True)
class Pair:
    """A legal and an illegal subject, and where the first violated observation must point."""

    requirement: str
    good: Subject
    bad: Subject
    event: int | None = None
    pointer: str = ""
    target: Target = field(default_factory=Target)
    bad_target: Target | None = None
    """The target of the illegal one, where what differs is what was asked beside the streams."""
    why: str = ""
    """What the pair shows, where a requirement has several."""
