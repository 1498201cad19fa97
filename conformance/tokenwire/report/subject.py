"""The subject of a report: the target or the captures, and how to repeat the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenwire.dialects.dialect import family_of
from tokenwire.judging.run import Run

EXPLORATION = "exploration"
"""Replaces the scenario of requests that were drawn, not written down."""

ASKED_ANYWAY = frozenset({"preflight", "detokenize"})
"""Names in the place of scenarios, for what every run asks."""


@dataclass(frozen=True)
class Subject:
    """A server at a URL, or some captures, and what was recorded of them."""

    url: str = ""
    captures: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    dialects: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    """The way in which each dialect was detected, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects that were not asked, with the reason in words."""
    remarks: tuple[str, ...] = ()
    """Facts to read before the verdicts: exchanges without a record, unknown endpoints, …"""
    not_asked: Mapping[str, str] = field(default_factory=dict)
    """Exchanges that a dialect cannot express, by name, with the reason."""
    broken_off: str = ""
    """Why the run ended early; empty if it did not."""
    stopped: str = ""
    """The signal that ended the asking; empty if none did."""
    cut_off: str = ""
    """The parts that the limits of a run left out, in words; empty for nothing."""
    recorded: str = ""
    """The recording folder; empty if not recorded."""
    unrecorded: str = ""
    """Why some exchanges are not in it."""
    explored: tuple[str, ...] = ()
    """The options that had requests drawn; empty if none were."""
    asked_with: tuple[str, ...] = ()
    """The options with which another run asks in the same way."""
    judged_with: tuple[str, ...] = ()
    """The options with which another run judges in the same way."""
    again: str = ""
    """The command that gives the verdicts again, where that is neither a check nor a replay."""
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
