"""Drafts by n-grams.

If the last few tokens have occurred earlier, the draft is the tokens that followed them there.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4
"""The maximum number of tokens in an n-gram.

Longer n-grams are tried first, because their drafts are right more often.
"""


class NgramDrafter:
    """Drafts the tokens that followed the latest occurrence of an n-gram. The sequence must only grow."""

    takes_time = False

    def __init__(self, num_draft_tokens: int) -> None:
        self._count = num_draft_tokens
        self._followed: dict[tuple[int, ...], int] = {}
        """The position after each n-gram's last occurrence."""
        self._seen = 0

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """Return the ids that followed an earlier occurrence of the longest possible n-gram at the end of
        `token_ids`; empty if there is no such occurrence.
        """
        # The n-grams at the very end have no follower yet, so they are not in the index.
        for end in range(self._seen + 1, len(token_ids)):
            for n in range(1, min(LONGEST, end) + 1):
                self._followed[tuple(token_ids[end - n : end])] = end
        self._seen = max(self._seen, len(token_ids) - 1)
        for n in range(min(LONGEST, len(token_ids)), 0, -1):
            begin = self._followed.get(tuple(token_ids[-n:]))
            if begin is not None:
                wanted = min(self._count, room)
                draft = list(token_ids[begin : begin + wanted])
                while len(draft) < wanted:
                    # A repetition with a short period is copied from the draft itself.
                    draft += draft[: wanted - len(draft)]
                return draft
        return ()
