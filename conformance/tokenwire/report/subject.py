"""The subject of a report: a server or captures. It includes the options that repeat the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenwire.dialects.dialect import family_of
from tokenwire.judging.run import Run

EXPLORATION = "exploration"
"""The scenario name of the requests that `--explore` generates."""

ANSWER = "{answer}"
"""The placeholder for the name of an answer, in the command that repeats the verdict on this answer."""
ASKED_ANYWAY = frozenset({"preflight", "detokenize"})
"""Names that replace the scenario's name for requests that every run sends."""


class Unanswered(NamedTuple):
    """A dialect without a choice in any answer."""

    why: str
    """The evidence for the dialect, as text."""
    statuses: tuple[int, ...]
    """The statuses of its answers, in order."""

    @property
    def words(self) -> str:
        """Return the reason why the dialect does not count as checked."""
        return f"no answer has a choice; status {', '.join(map(str, self.statuses)) or 'none'}"


@dataclass(frozen=True)
class Subject:
    """A server at a URL or some captures, with the answers that were parsed."""

    url: str = ""
    captures: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    dialects: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    """The evidence for each dialect, as text."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reason for each dialect that was excluded, as text."""
    unanswered: Mapping[str, Unanswered] = field(default_factory=dict)
    """The dialects of a replay without a choice in any answer. `left_out` explains them."""
    remarks: tuple[str, ...] = ()
    """Remarks for readers of the verdicts, for example about exchanges that could not be parsed."""
    rules: tuple[str, ...] = ()
    """Rules that the server was observed to follow, and that are not judged, such as a division by the
    temperature.
    """
    not_asked: Mapping[str, str] = field(default_factory=dict)
    """The reason for each request that a dialect cannot express, by exchange name."""
    broken_off: str = ""
    """The reason why the run ended early. Empty if the run did not end early."""
    stopped: str = ""
    """The name of the signal that stopped the run. Empty if no signal stopped it."""
    cut_off: str = ""
    """A sentence about requests that were not sent because of the limits. Empty if all requests were sent."""
    recorded: str = ""
    """The folder of the recording; empty if the run was not recorded."""
    unrecorded: str = ""
    """The reason why the recording is incomplete. Empty if the recording is complete."""
    explored: tuple[str, ...] = ()
    """The command-line options of an exploration; empty without one."""
    asked_with: tuple[str, ...] = ()
    """The command-line options for another run that sends the same requests."""
    judged_with: tuple[str, ...] = ()
    """The command-line options for another run that judges in the same way."""
    again: tuple[str, ...] = ()
    """The words of the command that repeats a verdict, if the command is neither a check nor a replay.

    The name of the answer replaces `ANSWER`. The server of such a run has ended, so reports do not show
    `curl` commands.
    """
    bodies: str = ""
    """The folder for request bodies that are too long for a command line; empty if there is none."""

    @property
    def families(self) -> frozenset[str]:
        """Return the server families of the answers' dialects.

        Without answers, return the families of the requested dialects.
        """
        answers = (stream for run in self.runs for stream in run.streams)
        spoken = {family_of(stream.dialect) for stream in answers if stream.answered}
        return frozenset(spoken or map(family_of, self.dialects))

    @property
    def title(self) -> str:
        return self.url or ", ".join(self.captures)
