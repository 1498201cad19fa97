"""Several tokens in one step: somebody drafts what may come next, the model checks all of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class SequenceError(Exception):
    """One sequence cannot go on; the others can."""


@dataclass
class DraftCounts:
    """How a sequence's drafts fared."""

    proposed: int = 0
    right: list[int] = field(default_factory=list)
    """For each step that decoded or checked drafts: how many of them became tokens."""

    def checked(self, proposed: int, right: int) -> None:
        """Count a step. It gave one token more than drafts that were right."""
        self.proposed += proposed
        self.right.append(right)


class Drafter(Protocol):
    """Drafts for one sequence."""

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """At most `room` ids that may follow `token_ids` (the prompt and all output so far).

        A wrong draft costs time and changes nothing. Raises SequenceError to end the sequence.
        """
