"""What a report is about: the target or the captures, and how to come back to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenwire.dialects.dialect import family_of
from tokenwire.judging.run import Run

EXPLORATION = "exploration"
"""Stands for the scenario of requests that were drawn, not written down."""

ASKED_ANYWAY = frozenset({"preflight", "detokenize"})
"""Stand for a scenario where something is asked whatever scenarios a run was cut down to."""


@dataclass(frozen=True)
class Subject:
    """A server at a URL, or some captures, and what was recorded of them."""

    url: str = ""
    captures: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    dialects: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    """How each dialect was detected, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects that were not asked, with the reason in words."""
    remarks: tuple[str, ...] = ()
    """What the reader should know before the verdicts: exchanges without a record, unknown endpoints, …"""
    not_asked: Mapping[str, str] = field(default_factory=dict)
    """Exchanges that a dialect has no words for, by name, with its reason."""
    broken_off: str = ""
    """Why the asking ended before its end, in words; empty if it did not."""
    cut_off: str = ""
    """What the limits of a run left out, in words; empty for nothing."""
    recorded: str = ""
    """The folder that all exchanges were written to; empty if they were not."""
    unrecorded: str = ""
    """Why some of them were not, though they were to be."""
    explored: tuple[str, ...] = ()
    """The words of the command line that had requests drawn; empty if none were."""
    asked_with: tuple[str, ...] = ()
    """The words of the command line that another run needs to ask in the same way."""
    judged_with: tuple[str, ...] = ()
    """And those that it needs to judge in the same way."""
    bodies: str = ""
    """The folder for bodies of requests that are too long for a command line; empty if there is none."""

    @property
    def families(self) -> frozenset[str]:
        """The families whose dialects the answers speak; where none are at hand, those that were asked."""
        answers = (stream for run in self.runs for stream in run.streams)
        spoken = {family_of(stream.dialect) for stream in answers if stream.answered}
        return frozenset(spoken or map(family_of, self.dialects))

    @property
    def title(self) -> str:
        return self.url or ", ".join(self.captures)
