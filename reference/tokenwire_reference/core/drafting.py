"""Several tokens in one step: a drafter proposes the next ids, the model checks all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Drafts for one sequence."""

    @property
    def takes_time(self) -> bool:
        """Whether drafting may make a step wait."""

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """At most `room` ids that may follow `token_ids` (the prompt and all output so far).

        A wrong draft costs time and changes nothing. Raises SequenceError to end the sequence.
        """
