"""When a request is done. No torch.

Checked after every sampled token, in this order: stop string, stop pattern, stop token or end of sequence,
budget. So a stop that completes exactly at the budget is reported as a stop (upstream: sgl-project/sglang
`Req`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import re2

from tokenwire_reference.request import FinishReason, SamplingParams
from tokenwire_reference.text.detokenizer import Detokenizer


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

    `max_new_tokens` is the resolved budget. `detokenizer` spells as the request wants, and is needed for stop
    strings and patterns only; ValueError when they are asked for without it, or when a pattern is not a
    regular expression.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        eos_token_ids: frozenset[int],
        max_new_tokens: int,
        detokenizer: Detokenizer | None,
    ) -> None:
        if detokenizer is None and (sampling.stop or sampling.stop_regex):
            raise ValueError(
                "stop and stop_regex need a tokenizer, and this server runs without one; use stop_token_ids"
            )
        self.max_new_tokens = max_new_tokens
        self.stop_ids = eos_token_ids.union(sampling.stop_token_ids)
        if sampling.ignore_eos:
            self.stop_ids = frozenset(sampling.stop_token_ids if sampling.vllm_stops else ())
        self._strings = sampling.stop
        self._no_strings_within = sampling.min_new_tokens if sampling.vllm_stops else 0
        self._patterns = compiled(sampling.stop_regex)
        self._text: _RunningText | None = None
        if detokenizer is not None and (self._strings or self._patterns):
            longest = max(map(len, self._strings), default=0)
            self._text = _RunningText(detokenizer, None if self._patterns else 4 * longest + 256)

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        """The reason to end after the last of `output_ids`, or None."""
        if self._text is not None and output_ids:
            text, before = self._text.of(output_ids)
            if len(output_ids) > self._no_strings_within:
                ends = {
                    string: at + len(string)
                    for string in self._strings
                    # The last id must complete it: what was completed too early does not count later.
                    if (at := text.find(string, max(0, before - len(string) + 1))) >= 0
                }
                if ends:
                    # The one that was complete first: the text before any other would still show it.
                    return FinishReason("stop", matched=min(ends, key=ends.__getitem__))
            for pattern in self._patterns:
                if pattern.search(text):
                    return FinishReason("stop", matched=pattern.pattern)
        if output_ids and output_ids[-1] in self.stop_ids:
            return FinishReason("stop", matched=output_ids[-1])
        if len(output_ids) >= self.max_new_tokens:
            return FinishReason("length", length=self.max_new_tokens)
        return None

    def hold_back(self, output_ids: Sequence[int]) -> bool:
        """Whether the text of `output_ids` may be turning into a stop string, and is not to be shown yet."""
        if self._text is None or not self._strings:
            return False
        # Every id spells at least one byte, so no stop string began before these.
        reach = max(len(stop.encode()) for stop in self._strings) + 4
        return may_become_stop(self._text.final(output_ids, reach), self._strings)


class _RunningText:
    """What a growing list of ids says, and how far each of them has brought it.

    `keep` is how many characters are remembered at least; None for all.
    """

    def __init__(self, detokenizer: Detokenizer, keep: int | None) -> None:
        self._detokenizer = detokenizer
        self._keep = keep
        self._final = ""
        self._forgotten = 0
        """How many characters there were before `_final`."""
        self._ends = [0]
        """Where the text ended after so many ids."""

    def of(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of ids, and where it ended before the last of them."""
        self._read(ids)
        before, end = (max(0, end - self._forgotten) for end in self._ends[len(ids) - 1 : len(ids) + 1])
        return (self._final + self._detokenizer.tail)[:end], before

    def final(self, ids: Sequence[int], last: int) -> str:
        """As much of the text of the `last` ids as no id to come changes."""
        self._read(ids)
        return self._final[max(0, self._ends[max(0, len(ids) - last)] - self._forgotten) :]

    def _read(self, ids: Sequence[int]) -> None:
        for token_id in ids[len(self._ends) - 1 :]:
            self._final += self._detokenizer.push([token_id])
            if self._keep is not None and len(self._final) > 2 * self._keep:
                self._forgotten += len(self._final) - self._keep
                self._final = self._final[-self._keep :]
            self._ends.append(self._forgotten + len(self._final) + len(self._detokenizer.tail))


def may_become_stop(text: str, stops: Sequence[str]) -> bool:
    """Whether a text contains a stop string, or ends in a proper prefix of one."""
    return any(stop in text or _begins_at_the_end_of(text, stop) for stop in stops)


def _begins_at_the_end_of(text: str, stop: str) -> bool:
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at >= 0
