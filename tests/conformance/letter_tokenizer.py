"""A tokenizer for tests: one letter for each id, two halves of a character, and special tokens."""

from __future__ import annotations

from collections.abc import Sequence

FIRST = 11
"""The id of `a`; so the ids of hand-made streams spell their text."""
HALF, OTHER_HALF = 50, 51
"""Together `é`; alone no character."""
SPECIAL = 90
"""The token `<s>`."""


class LetterTokenizer:
    cleans_up = False

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str | None:
        del spaces_between_special_tokens
        if any(token > SPECIAL for token in ids):
            return None
        shown = [token for token in ids if token != SPECIAL or not skip_special_tokens]
        return b"".join(map(_spelled, shown)).decode(errors="replace")


def _spelled(token: int) -> bytes:
    odd = {HALF: "é".encode()[:1], OTHER_HALF: "é".encode()[1:], SPECIAL: b"<s>"}
    return odd.get(token, bytes([97 + (token - FIRST) % 26]))
