"""The texts that the ids of a choice allow: the decoded text, cut at the stop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenwire.ask import Asked
from tokenwire.checks.about import finished_choices, was_aborted
from tokenwire.checks.reading.channels import taken_apart
from tokenwire.checks.reading.fields import first_prompt_ids, prompt_of
from tokenwire.dialects.detokenize import Ids
from tokenwire.record import BROKEN, Choice, Stream
from tokenwire.target.tokenizer import Tokenizer

_CONTEXT = 8
"""The number of prompt ids that are decoded before the output. Some tokenizers decode the first token of a
text differently.
"""
_MANGLED = re.compile(r" (?=[.?!,]|n't|'m|'s|'ve|'re|' )")
"""Matches the spaces that some tokenizers remove from a decoded text."""


@dataclass(frozen=True)
class Decoded:
    """A finished choice with ids, and the tokenizer that decodes them."""

    choice: Choice
    ids: Ids
    text: str
    asked: Asked
    prompt: Ids
    tokenizer: Tokenizer

    @property
    def stop(self) -> object:
        """The id or the string that stopped the choice, if the server reports it."""
        finish = self.choice.finish
        return finish.matched if finish is not None and finish.type == "stop" else None

    def decode(self, ids: Ids, *, skip_special_tokens: bool | None = None) -> str | None:
        """Return the text of ids with the options of the request. `skip_special_tokens` overrides the
        request's option.
        """
        skip = self.asked.skip_special_tokens if skip_special_tokens is None else skip_special_tokens
        spaces = self.asked.spaces_between_special_tokens
        return self.tokenizer.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=spaces)

    def readings(self, ids: Ids, *, skip_special_tokens: bool | None = None) -> tuple[str, ...]:
        """Return the possible texts of ids: decoded alone, and decoded after the prompt.

        Empty if the texts are unknown. The two texts differ if the tokenizer drops a space at the beginning
        of a text, or if the prompt ends within a character.
        """
        alone = self.decode(ids, skip_special_tokens=skip_special_tokens)
        context = self.prompt[-_CONTEXT:]
        before = self.decode(context, skip_special_tokens=skip_special_tokens)
        both = self.decode(context + ids, skip_special_tokens=skip_special_tokens)
        if alone is None or before is None or both is None:
            return ()
        if not before:
            return (alone,)
        whole = before.rstrip(BROKEN)
        added = [both[len(start) :] for start in (before, whole) if both.startswith(whole)]
        return tuple(dict.fromkeys([alone, *added]))

    def alike(self, first: str, second: str) -> bool:
        """True if two texts are equal, apart from spaces that the tokenizer may remove."""
        return first == second or self._cleaned(first) == self._cleaned(second)

    def begins(self, text: str, shown: str) -> bool:
        """True if a text begins with another text, apart from spaces that the tokenizer may remove."""
        return text.startswith(shown) or self._cleaned(text).startswith(self._cleaned(shown))

    def size(self, text: str) -> int:
        """Return the number of characters of a text, without the spaces that the tokenizer may remove."""
        return len(self._cleaned(text))

    def _cleaned(self, text: str) -> str:
        return _MANGLED.sub("", text) if self.tokenizer.cleans_up else text


def decoded(stream: Stream, tokenizer: Tokenizer | None) -> Iterator[Decoded]:
    """Yield the choices of an answer whose text their ids determine.

    Skipped are choices that have an echo, were aborted, or were split by a parser.
    """
    if tokenizer is None or stream.asked.echo:
        return
    for choice in finished_choices(stream):
        ids, text = choice.output_ids, choice.text
        if not ids or text is None or was_aborted(choice) or not all(type(token) is int for token in ids):
            continue
        if not taken_apart(stream, choice):
            asked = stream.asked.of(choice.index)
            yield Decoded(choice, tuple(ids), text, asked, _prompt(stream, choice), tokenizer)


def _prompt(stream: Stream, choice: Choice) -> Ids:
    sent = prompt_of(stream, choice.index)
    if sent is not None:
        return tuple(sent)
    _, ids = first_prompt_ids(choice, empty=False) or (None, [])
    return tuple(ids) if all(type(token) is int for token in ids) else ()


def uncut_texts(decoding: Decoded, *, skip_special_tokens: bool | None = None) -> tuple[str, ...]:
    """Return the possible texts of the ids before a stop string is cut off.

    The id that stopped the choice is left out, unless the request keeps it.
    """

    def readings(ids: Ids) -> tuple[str, ...]:
        return decoding.readings(ids, skip_special_tokens=skip_special_tokens)

    finish = decoding.choice.finish
    stopped = finish is not None and finish.type == "stop"
    if not stopped or isinstance(decoding.stop, str):
        return readings(decoding.ids)
    if decoding.stop is None:
        # The stop is unknown. It may be the last id or a string.
        return tuple(dict.fromkeys([*readings(decoding.ids), *readings(decoding.ids[:-1])]))
    is_last = decoding.stop == decoding.ids[-1] and not decoding.asked.no_stop_trim
    return readings(decoding.ids[:-1] if is_last else decoding.ids)


def legal_texts(decoding: Decoded) -> tuple[str, ...]:
    """Return every possible text of a choice with these ids. Empty if they are unknown."""
    texts = uncut_texts(decoding)
    finish = decoding.choice.finish
    if finish is None or finish.type != "stop" or isinstance(decoding.stop, int):
        return texts
    cuts = [cut for text in texts for cut in _cuts(decoding, text)]
    return tuple(dict.fromkeys(cuts if cuts and isinstance(decoding.stop, str) else [*texts, *cuts]))


def _cuts(decoding: Decoded, text: str) -> Iterable[str]:
    """Yield a text cut at each occurrence of the stop, because any of them may have ended the choice."""
    stop, asked = decoding.stop, decoding.asked
    if isinstance(stop, str) and stop in asked.stop_regex:
        yield text
        pattern = compiled(stop)
        for match in pattern.finditer(text) if pattern is not None else ():
            yield text[: match.end()]
            yield text[: match.start()]
        return
    for string in (stop,) if isinstance(stop, str) else asked.stop:
        position = text.find(string) if string else -1
        while position >= 0:
            yield text[: position + len(string) * asked.no_stop_trim]
            position = text.find(string, position + 1)


def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a stop pattern. None if Python cannot parse it, because a server's syntax may differ."""
    try:
        return re.compile(pattern)
    except re.error:
        return None
