"""Decides when a request is done. No torch.

Checked after every sampled token, in this order: stop string, stop pattern, stop token or end of sequence,
budget. So if a stop string is completed by the last token of the budget, the reason is `stop` (as in `Req` of
sgl-project/sglang).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import re2

from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.request import FinishReason, SamplingParams

LONGEST_MATCH = 4096
"""The maximum length of a stop pattern's match, in bytes of UTF-8. Longer matches may be missed."""
MOST_STEPS = LONGEST_MATCH
"""The maximum number of steps of RE2's programs for all patterns of a request.

A step matches at most one byte, so every permitted pattern has a match of at most `LONGEST_MATCH` bytes.
"""
_NEAR = 64
"""The number of characters that a few ids usually add at most."""


@cache
def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False
    # RE2 defaults to 8 MB; a compiled pattern keeps the states of all searched texts
    options.max_mem = 1 << 20
    return options


class StopPattern:
    """A regular expression of RE2, searched in a growing text. Raises ValueError if it is invalid.

    RE2 does not backtrack, and supports neither look-around nor back-references. So the time of a search is
    linear in the text for every pattern. This matters because the search runs on the engine's thread, and
    delays all other requests.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self._anywhere = re2.compile(pattern, options=_quiet())
            # RE2 searches backwards for an expression that is anchored at the end, and only as far as a match
            # can reach.
            self._near_the_end = re2.compile(rf"(?:{pattern})(?s:.{{0,{_NEAR}}})\z", options=_quiet())
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(
                f"stop_regex {pattern!r} is not a regular expression of RE2 (no look-around, no "
                f"back-references): {error.args[0].decode() if isinstance(error, re2.error) else error}"
            ) from error
        self.steps: int = self._anywhere.programsize

    def ends_in(self, text: bytes, start: int, new: int) -> bool:
        """True if a match from `start` on ends in the last `new` characters of a text, or right before them.

        The text before these characters had no match, so no match ends earlier. Assertions, such as word
        boundaries, also see the text before `start`.
        """
        return bool((self._near_the_end if new <= _NEAR else self._anywhere).search(text, start))


@lru_cache(maxsize=4)
def stop_patterns(patterns: tuple[str, ...]) -> tuple[StopPattern, ...]:
    """Return the compiled patterns of one request.

    All samples of the request share the patterns. Raises ValueError if a pattern is invalid, or if the
    patterns together are too large to be searched after every token.
    """
    compiled = tuple(map(StopPattern, patterns))
    if (steps := sum(pattern.steps for pattern in compiled)) > MOST_STEPS:
        raise ValueError(
            f"stop_regex compiles to {steps} steps of RE2; at most {MOST_STEPS} are allowed; use fewer "
            "patterns, repetitions and character classes"
        )
    return compiled


class StopRules:
    """The stop conditions of one request.

    `max_new_tokens` is the resolved budget. `detokenizer` has the settings of the request, and is needed only
    for stop strings and patterns. Raises ValueError if the detokenizer is needed and missing, or if a pattern
    is invalid.
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
        # In SGLang, ignore_eos also ignores the stop ids of a request. In vLLM, ignore_eos ignores only the
        # end of sequence. vLLM searches for stop strings only after the first min_tokens tokens.
        eos = frozenset[int]() if sampling.ignore_eos else eos_token_ids
        self.stop_ids = eos if sampling.ignore_stop_token_ids else eos.union(sampling.stop_token_ids)
        self._strings = sampling.stop
        self._no_strings_within = sampling.min_tokens_before_stop
        self._patterns = stop_patterns(sampling.stop_regex)
        self._text: _RunningText | None = None
        self._longest = max(map(len, self._strings), default=0)
        if detokenizer is not None and (self._strings or self._patterns):
            # More text is kept than a search needs, so that old text is dropped only seldom.
            keep = 4 * self._longest + 256
            self._text = _RunningText(detokenizer, max(keep, LONGEST_MATCH + 1) if self._patterns else keep)

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        """Return the finish after the last of `output_ids`; None to continue."""
        if self._text is not None and output_ids:
            text, before = self._text.of(output_ids, self._longest)
            if len(output_ids) > self._no_strings_within:
                ends = {
                    string: begin + len(string)
                    for string in self._strings
                    # The last id must complete the stop string, because an earlier completion does not count.
                    if (begin := text.find(string, max(0, before - len(string) + 1))) >= 0
                }
                if ends:
                    # The stop string that was completed first wins; otherwise it would stay in the text.
                    return FinishReason("stop", matched=min(ends, key=ends.__getitem__))
            if self._patterns:
                recent = self._text.recent()
                for pattern in self._patterns:
                    if pattern.ends_in(*recent):
                        return FinishReason("stop", matched=pattern.pattern)
        if output_ids and output_ids[-1] in self.stop_ids:
            return FinishReason("stop", matched=output_ids[-1])
        if len(output_ids) >= self.max_new_tokens:
            return FinishReason("length", length=self.max_new_tokens)
        return None

    def hold_back(self, output_ids: Sequence[int]) -> bool:
        """True if the text of `output_ids` may end in the beginning of a stop string, so that it must not be
        sent yet.
        """
        if self._text is None or not self._strings:
            return False
        # Every id has at least one byte of text, so no stop string began before these ids.
        reach = max(len(stop.encode()) for stop in self._strings) + 4
        return may_become_stop(self._text.final(output_ids, reach), self._strings)


class _RunningText:
    """The text of a growing list of ids, with its length after each id.

    `keep` is the minimum number of characters to remember before the text of the last id.
    """

    def __init__(self, detokenizer: Detokenizer, keep: int) -> None:
        self._detokenizer = detokenizer
        self._keep = keep
        self._final = ""
        self._forgotten = 0
        """The number of characters before `_final`."""
        self._ends = [0]
        """The end of the text after each number of ids."""
        self._known = 0
        """The number of characters that have not changed since the last call of `recent`."""

    def recent(self) -> tuple[bytes, int, int]:
        """Return the end of the text in UTF-8, the earliest start of a match, and the number of new
        characters. New characters are the characters added since the last call, and the replaced characters
        of byte tokens that a wrong byte has invalidated.
        """
        new, self._known = self._ends[-1] - self._known, self._ends[-1]
        text = self._last(1 + LONGEST_MATCH + new)
        is_whole = len(text) == self._ends[-1]
        return _encoded(text), 0 if is_whole else len(_encoded(text[0])), new

    def of(self, ids: Sequence[int], reach: int) -> tuple[str, int]:
        """Return the text of ids from `reach` characters before the last id on, and the position of the last
        id's text in it.
        """
        self._read(ids)
        before, end = self._ends[len(ids) - 1 : len(ids) + 1]
        text = self._last(self._ends[-1] - before + reach)
        start = self._ends[-1] - len(text)
        return text[: end - start], max(0, before - start)

    def final(self, ids: Sequence[int], last: int) -> str:
        """Return the final part of the text of the `last` ids."""
        self._read(ids)
        return self._final[max(0, self._ends[max(0, len(ids) - last)] - self._forgotten) :]

    def _last(self, count: int) -> str:
        """Return the last `count` characters of the text; fewer if the others are no longer stored."""
        tail = self._detokenizer.tail[-count:]
        return self._final[max(0, len(self._final) + len(tail) - count) :] + tail

    def _read(self, ids: Sequence[int]) -> None:
        for token_id in ids[len(self._ends) - 1 :]:
            shown = self._detokenizer.tail
            piece = self._detokenizer.push([token_id])
            if not piece.startswith(shown) and not self._detokenizer.tail:
                self._known = min(self._known, self._forgotten + len(self._final))
            if len(self._final) > 2 * self._keep:
                self._forgotten += len(self._final) - self._keep
                self._final = self._final[-self._keep :]
            self._final += piece
            self._ends.append(self._forgotten + len(self._final) + len(self._detokenizer.tail))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def may_become_stop(text: str, stops: Sequence[str]) -> bool:
    """True if a text contains a stop string, or ends in a proper prefix of one."""
    return any(stop in text or _begins_at_the_end_of(text, stop) for stop in stops)


def _begins_at_the_end_of(text: str, stop: str) -> bool:
    # A stop string that begins earlier would be complete, and the caller has excluded complete stop strings.
    begin = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while begin >= 0 and not stop.startswith(text[begin:]):
        begin = text.find(stop[0], begin + 1)
    return begin >= 0
