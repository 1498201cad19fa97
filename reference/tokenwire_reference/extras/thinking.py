"""Limits the tokens of reasoning.

When the budget is used up, only the marker that ends the reasoning is permitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto

from tokenwire_reference.core.request import Constraint, Matcher
from tokenwire_reference.core.tokenizer import Tokenizer, token_bytes
from tokenwire_reference.extras.channels.formats import END_THINK, THINK

_OPENS, _CLOSES = THINK.encode(), END_THINK.encode()


@dataclass(frozen=True, eq=False)
class ThinkingBudget:
    """A constraint that limits the length of the reasoning.

    It may contain another constraint, for the text after the reasoning.
    """

    tokens: int
    """The maximum number of reasoning tokens, without the markers."""
    begun: bool
    """True if the prompt has begun the reasoning."""
    tokenizer: Tokenizer
    vocab_size: int
    inner: Constraint | None = None

    def start(self) -> Matcher:
        """Return a matcher for one request."""
        return _Matcher(self, self.inner.start() if self.inner is not None else None)


def constraint_of_text(constraint: Constraint | None) -> Constraint | None:
    """Return the constraint of the text, without the budget of the reasoning; None if there is none."""
    return constraint.inner if isinstance(constraint, ThinkingBudget) else constraint


class _Where(Enum):
    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()


class _Place:
    """The position in an output (before, inside or after the reasoning), and the number of reasoning tokens
    so far.
    """

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._where = _Where.BEFORE
        self._text = b""
        """The text before the reasoning; within the reasoning, only its last bytes, in which the marker is
        searched.
        """
        self._count = 0

    def take(self, token_id: int) -> None:
        """Process the next id."""
        self._text += token_bytes(self._budget.tokenizer, token_id)
        self._count += 1
        if self._where is _Where.BEFORE:
            begun = self._text.lstrip()
            if begun.startswith(_OPENS):
                self._where, self._text = _Where.INSIDE, begun.removeprefix(_OPENS)
                self._count = int(bool(self._text))
            elif not _OPENS.startswith(begun):
                self._where = _Where.INSIDE if self._budget.begun else _Where.BEHIND
        if self._where is _Where.INSIDE:
            if _CLOSES in self._text:
                self._where = _Where.BEHIND
            self._text = self._text[-2 * len(_CLOSES) :]

    @property
    def _counts(self) -> bool:
        """True within reasoning.

        An answer may repeat the marker that begins the reasoning although the prompt ends with it.
        """
        before = self._where is _Where.BEFORE
        return self._where is _Where.INSIDE or (before and self._budget.begun and not self._text.strip())

    @property
    def forced(self) -> int | None:
        """The only id that may follow; None if any id may follow."""
        if not self._counts or self._count < self._budget.tokens:
            return None
        begun = next((n for n in range(len(_CLOSES) - 1, 0, -1) if self._text.endswith(_CLOSES[:n])), 0)
        rest = _CLOSES[begun:].decode()
        return int(self._budget.tokenizer.encode(rest, add_special_tokens=False)[0])


class _Matcher:
    """Follows the output of one request."""

    def __init__(self, budget: ThinkingBudget, inner: Matcher | None) -> None:
        self._budget, self._inner = budget, inner
        self._place = _Place(budget)
        self._read = 0

    def allowed(self, output_ids: Sequence[int], drafts: Sequence[int] = ()) -> bytes:
        """Return a bit for each id that may follow an output and further drafts. Raises SequenceError."""
        size = (self._budget.vocab_size + 31) // 32 * 4
        mask = b"\xff" * size if self._inner is None else self._inner.allowed(output_ids, drafts)
        for token_id in output_ids[self._read :]:
            self._place.take(token_id)
        self._read = len(output_ids)
        place = copy(self._place)
        for token_id in drafts:
            place.take(token_id)
        forced = place.forced
        if forced is None:
            return mask
        only = bytearray(len(mask))
        only[forced // 8] = 1 << forced % 8
        return bytes(only)
