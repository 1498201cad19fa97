"""Token ids to text, a few at a time, so that the pieces join to exactly what the ids say at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenwire_reference.request import FinishReason, SamplingParams

Decode = Callable[[Sequence[int]], str]

CONTEXT = 5
"""Prompt ids kept before the output, for tokenizers that decode the first token of a text differently."""


class Detokenizer:
    """The text of one request.

    What ends in U+FFFD may be half a character, so it waits for the next ids; everything before it is final.
    The window that is decoded again with each push begins one settled piece back: the cost does not grow with
    the text.
    """

    def __init__(self, decode: Decode, prompt_token_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        context = list(prompt_token_ids[-CONTEXT:])
        before = decode(context) if context else ""
        if before.endswith("\ufffd"):
            # Half a character of the prompt must not swallow the beginning of the output.
            context, before = [], ""
        self._window = context
        """Ids that are decoded together."""
        self._settled = len(context)
        """How many ids of the window have been given as text for good."""
        self._shown = len(before)
        """How many characters of the window's text have been given."""

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and give the text that they complete; it may be empty."""
        self._window += ids
        text = self._decode(self._window)
        final = text.rstrip("\ufffd")
        piece = final[self._shown :]
        self._shown = max(self._shown, len(final))
        if final == text:
            self._settle(bool(piece))
        return piece

    def _settle(self, grew: bool) -> None:
        """Move the window on, now that all its ids have become text."""
        if grew:
            self._window = self._window[self._settled :]
            self._settled = len(self._window)
            self._shown = len(self._decode(self._window))
        elif self._shown:
            # Ids without any text, such as skipped special tokens: they bear on nothing that follows.
            del self._window[self._settled :]

    def flush(self) -> str:
        """Give what waited for ids that will not come."""
        text = self._decode(self._window)
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece


def finish_text(
    detokenizer: Detokenizer, text: str, ids: Sequence[int], finish: FinishReason, sampling: SamplingParams
) -> str:
    """Give the whole text of a request, from the text so far and the ids of its last row.

    A stop id's own text is left out, and the text is cut before the stop string that ended the generation: at
    its first occurrence that the last id completed. An earlier one, which the stop rules did not see, stays.
    A stop pattern's match stays. `no_stop_trim` keeps the stop id's text, and the stop string but nothing
    behind it.
    """
    matched, keep = finish.matched, sampling.no_stop_trim
    text += detokenizer.push(ids[:-1])
    before_last = len(text)
    if isinstance(matched, int) and not keep:
        return text + detokenizer.flush()
    text += detokenizer.push(ids[-1:]) + detokenizer.flush()
    if isinstance(matched, str) and matched in sampling.stop:
        at = text.find(matched, max(0, before_last - len(matched) + 1))
        return text if at < 0 else text[: at + len(matched) * keep]
    return text
