"""The subject of a report: the target or the captures, and the options to repeat the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenwire.dialects.dialect import family_of
from tokenwire.judging.run import Run

EXPLORATION = "exploration"
"""The scenario name of generated requests."""

ANSWER = "{answer}"
"""The name of an answer in the command that repeats its verdict."""
ASKED_ANYWAY = frozenset({"preflight", "detokenize"})
"""Names used as scenarios for requests that every run sends."""


@dataclass(frozen=True)
class Subject:
    """A server at a URL, or some captures, and the recorded exchanges."""

    url: str = ""
    captures: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    dialects: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    """The evidence for each dialect, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects that were skipped, with the reason in words."""
    remarks: tuple[str, ...] = ()
    """Facts to read before the verdicts: exchanges without a record, unknown endpoints, …"""
    rules: tuple[str, ...] = ()
    """Observed rules of the server that are no matter of a verdict, such as a division by the temperature."""
    not_asked: Mapping[str, str] = field(default_factory=dict)
    """Requests that a dialect cannot express, by name, with the reason."""
    broken_off: str = ""
    """The reason why the run ended early; empty if it did not."""
    stopped: str = ""
    """The signal that stopped the run; empty without one."""
    cut_off: str = ""
    """A description of requests skipped by limits; empty without any."""
    recorded: str = ""
    """The recording folder; empty without a recording."""
    unrecorded: str = ""
    """The reason why some exchanges are not in the recording."""
    explored: tuple[str, ...] = ()
    """The options that generated requests; empty without any."""
    asked_with: tuple[str, ...] = ()
    """The options to send the same requests in another run."""
    judged_with: tuple[str, ...] = ()
    """The options to judge in the same way in another run."""
    again: tuple[str, ...] = ()
    """The words of the command that repeats a verdict, if that is neither a check nor a replay.

    `ANSWER` is the name of the answer. The server of such a run has ended, so `curl` has nothing to ask.
    """
    bodies: str = ""
    """The folder for request bodies that are too long for a command line; empty without one."""

    @property
    def families(self) -> frozenset[str]:
        """Return the families of the answers' dialects; without answers, those of the requested dialects."""
        answers = (stream for run in self.runs for stream in run.streams)
        spoken = {family_of(stream.dialect) for stream in answers if stream.answered}
        return frozenset(spoken or map(family_of, self.dialects))

    @property
    def title(self) -> str:
        return self.url or ", ".join(self.captures)
