"""Counts of the tokens that a call consumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire_reference.doors.reader import Emission


@dataclass(frozen=True)
class Consumed:
    """Tokens of some choices: each prompt once, the output of every choice."""

    prompt: int
    completion: int
    cached: int
    reasoning: int | None = None
    """Of the completion; None where nothing tells it apart."""

    @classmethod
    def by(cls, choices: Sequence[Emission], n: int, reasoning: int | None = None) -> Consumed:
        """Count choices that are ordered by prompt, `n` samples each."""
        firsts = range(0, len(choices), n)
        return cls(
            prompt=sum(len(choices[i].record.prompt_token_ids) for i in firsts),
            completion=sum(choice.completion_tokens for choice in choices),
            cached=sum(max(choice.record.cached_tokens for choice in choices[i : i + n]) for i in firsts),
            reasoning=reasoning,
        )

    @property
    def totals(self) -> dict[str, Any]:
        """The three numbers that every server gives, in the order of SGLang and vLLM."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }

    @property
    def details(self) -> dict[str, int] | None:
        """The details of the completion beside its number."""
        return None if self.reasoning is None else {"reasoning_tokens": self.reasoning}

    def with_cache(self, *, cache_report: bool) -> dict[str, Any]:
        """Return the numbers, and what of the prompt came from the cache, if that is reported."""
        return {
            **self.totals,
            "prompt_tokens_details": {"cached_tokens": self.cached} if cache_report else None,
        }
