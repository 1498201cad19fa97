"""When a request is done. No torch.

Checked after every sampled token, in this order: stop string, stop pattern, stop token or end of sequence,
budget. So a stop that completes exactly at the budget is reported as a stop (upstream: sgl-project/sglang
`Req`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import re2

from tokenwire_reference.request import FinishReason, SamplingParams

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens spelled out."""


@cache
def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


def compiled(patterns: Sequence[str]) -> tuple[Any, ...]:
    """Patterns, ready to search with. Raises ValueError for one that is no regular expression of RE2.

    RE2 has no backtracking, so no look-around and no back-references either: the time of a search is linear
    in the text, whatever the pattern. It runs on the engine's thread, where every other request waits for it.
    """
    found = []
    for pattern in patterns:
        try:
            found.append(re2.compile(pattern, options=_quiet()))
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(
                f"stop_regex {pattern!r} is not a regular expression of RE2 (no look-around, no "
                f"back-references): {error.args[0].decode() if isinstance(error, re2.error) else error}"
            ) from error
    return tuple(found)


class StopRules:
    """The stop conditions of one request.

    `max_new_tokens` is the resolved budget. `decode` is needed for stop strings and patterns only; ValueError
    when they are asked for without it, or when a pattern is not a regular expression.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        eos_token_ids: frozenset[int],
        max_new_tokens: int,
        decode: Decode | None,
    ) -> None:
        if decode is None and (sampling.stop or sampling.stop_regex):
            raise ValueError(
                "stop and stop_regex need a tokenizer, and this server runs without one; use stop_token_ids"
            )
        self.max_new_tokens = max_new_tokens
        self.stop_ids = eos_token_ids.union(sampling.stop_token_ids)
        if sampling.ignore_eos:
            self.stop_ids = frozenset(sampling.stop_token_ids if sampling.vllm_stops else ())
        self._strings = sampling.stop
        self._no_strings_within = sampling.min_new_tokens if sampling.vllm_stops else 0
        # Every id spells at least one byte, so a stop string spans at most as many ids as it has bytes. Three
        # more let the character in which the tail begins be whole.
        self._tail = max((len(string.encode()) for string in self._strings), default=0) + 3
        self._patterns = compiled(sampling.stop_regex)
        self._decode = decode

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        """The reason to end after the last of `output_ids`, or None."""
        if self._decode is not None and output_ids:
            if self._strings and len(output_ids) > self._no_strings_within:
                tail = self._decode(output_ids[-self._tail :])
                before = 0
                if self._no_strings_within:
                    # What was completed too early does not count later: the last id must complete it.
                    before = len(self._decode(output_ids[-self._tail : -1]).rstrip("\ufffd"))
                ends = {
                    string: at + len(string)
                    for string in self._strings
                    if (at := tail.find(string, max(0, before - len(string) + 1))) >= 0
                }
                if ends:
                    # The one that was complete first: the text before any other would still show it.
                    return FinishReason("stop", matched=min(ends, key=ends.__getitem__))
            if self._patterns:
                text = self._decode(output_ids)
                for pattern in self._patterns:
                    if pattern.search(text):
                        return FinishReason("stop", matched=pattern.pattern)
        if output_ids and output_ids[-1] in self.stop_ids:
            return FinishReason("stop", matched=output_ids[-1])
        if len(output_ids) >= self.max_new_tokens:
            return FinishReason("length", length=self.max_new_tokens)
        return None
