"""Counts the tokens of a call, for the `usage` of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.doors.reader import Emission


@dataclass(frozen=True)
class Consumed:
    """The tokens of some choices: each prompt once, and the output of every choice."""

    prompt: int
    completion: int
    cached: int
    reasoning: int | None = None
    """The number of completion tokens that are reasoning; None if they are not counted separately."""

    @classmethod
    def by(cls, choices: Sequence[Emission], n: int, reasoning: int | None = None) -> Consumed:
        """Count the tokens of choices that are ordered by prompt, with `n` samples for each prompt."""
        firsts = range(0, len(choices), n)
        return cls(
            prompt=sum(len(choices[i].record.prompt_token_ids) for i in firsts),
            completion=sum(choice.completion_tokens for choice in choices),
            cached=sum(max(choice.record.cached_tokens for choice in choices[i : i + n]) for i in firsts),
            reasoning=reasoning,
        )

    @property
    def totals(self) -> dict[str, Any]:
        """The three counts of every server, in the order of SGLang and vLLM."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }

    @property
    def details(self) -> dict[str, int] | None:
        """The details of the completion's count."""
        return None if self.reasoning is None else {"reasoning_tokens": self.reasoning}

    def with_cache(self, *, cache_report: bool) -> dict[str, Any]:
        """Return the counts, with cached prompt tokens if they are reported."""
        return {
            **self.totals,
            "prompt_tokens_details": {"cached_tokens": self.cached} if cache_report else None,
        }
