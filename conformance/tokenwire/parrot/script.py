"""Scripts and truths.

A script is a text that a parrot must output. A truth is the one right answer to a request. The right answer
follows from the request alone, so it is the same for a live run and for a capture.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tokenwire.ask import Asked
from tokenwire.parrot.law import Law, Parrot
from tokenwire.parrot.vocabulary import Words

_LONE_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
"""The characters by which Python represents invalid bytes (`surrogateescape`).

They are different from U+FFFD.
"""
ANCHORED = re.compile(r"[\^$]|\\[bBAZ]|\(\?")
"""Matches those parts of a regular expression that depend on text outside of the match."""


@dataclass(frozen=True)
class Script:
    """The ids that a parrot must output. If the token limit does not end the answer, the last id ends it."""

    ids: tuple[int, ...]

    @classmethod
    def of_text(cls, text: str, words: Words) -> Script:
        """Return the script for a text.

        The text is divided from its beginning into the longest pieces of the vocabulary.
        """
        rest, ids = text.encode(), []
        while rest:
            ids.append(words.longest(rest))
            rest = rest[len(words.pieces[ids[-1]]) :]
        return cls(tuple(ids))

    def prompt(self, law: Parrot, filler: int) -> tuple[int, ...]:
        """Return the shortest prompt after which the parrot outputs the script.

        The prompt begins with the script, and its length is a lag. Raises ValueError for a script that is
        longer than the largest lag.
        """
        lag = next((lag for lag in law.lags if lag >= len(self.ids)), None)
        if lag is None:
            raise ValueError(
                f"a script of {len(self.ids)} ids is longer than the parrot's distance, {law.distance} ids"
            )
        return self.ids + (filler,) * (lag - len(self.ids))


@dataclass(frozen=True)
class Truth:
    """The one right answer to a request."""

    law: Law
    ids: tuple[int, ...]
    text: str
    texts: tuple[str, ...]
    """The text after each id, without the end of the text that later ids may change."""
    finish: str
    """The finish reason: `stop` or `length`."""
    endings: Mapping[int | str, str] = field(default_factory=dict)
    """The stop id and the stop strings that the last id completes.

    Each has the right text of an answer that ends at this stop. If several stops are completed, a server may
    choose any of them.
    """
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The stop patterns that the last id completes.

    Each match has its right texts, because a server may remove the match, or only the text after the match,
    or nothing.
    """
    bare: frozenset[str] = frozenset()
    """The right text without the replacement characters (U+FFFD) of an incomplete character at its end."""
    by_runs: tuple[str, ...] = ()
    """The right texts for a vocabulary that decodes a run of bytes at once, so that one invalid byte makes
    the whole run invalid.
    """
    barred: bool = False
    """True if a minimum length excludes some ids.

    Some servers compute logprobs without the excluded ids, so the right logprobs are unknown.
    """

    @property
    def matched(self) -> frozenset[int | str]:
        """The stop ids and stop strings that a server may report as the stop that ended the answer."""
        return frozenset({*self.endings, *self.patterns})

    def texts_of(self, named: Any) -> tuple[str, ...]:
        """Return the right texts of an answer that reports this stop.

        Empty if the answer cannot end at this stop.
        """
        if not isinstance(named, int | str):
            return ()
        by_name = (self.endings[named], *self.by_runs) if named in self.endings else ()
        return (*by_name, *(self.patterns.get(named, ()) if isinstance(named, str) else ()))

    @property
    def legal(self) -> tuple[str, ...]:
        """Return all right texts, the preferred one first."""
        of_patterns = (text for texts in self.patterns.values() for text in texts)
        return tuple(dict.fromkeys((self.text, *self.by_runs, *self.endings.values(), *of_patterns)))

    @property
    def _numbers(self) -> Parrot:
        if not isinstance(self.law, Parrot):
            raise TypeError(f"the logprobs of {self.law} are unknown")
        return self.law

    @property
    def logprobs(self) -> list[float]:
        """Return the logprob of each output id."""
        return [self._numbers.logprob(token, token) for token in self.ids]

    def top(self, count: int) -> list[list[tuple[int, float]]]:
        """Return the `count` likeliest ids with their logprobs at each output id, likeliest first."""
        return [self._numbers.top(token, count) for token in self.ids]

    def chosen(self, tokens: Sequence[int]) -> list[list[float]]:
        """Return the logprobs of `tokens` at each output id."""
        return [[self._numbers.logprob(token, other) for other in tokens] for token in self.ids]


def truth(
    law: Law,
    words: Words,
    prompt: Sequence[int],
    asked: Asked,
    choice: int = 0,
    *,
    head: bytes = b"",
    unheeded: int = 0,
) -> Truth | None:
    """Return the right answer to one prompt.

    Return None if the answer is random, or if it cannot be computed. `head`: the bytes of an incomplete
    character at the end of the prompt, if the output may complete the character. `unheeded`: the number of
    first ids in which the server does not look for stop strings (see `deaf_to_stops`). An aborted answer is
    compared with the answer to a request whose token limit is the length of the aborted answer.
    """
    asked = asked.of(choice)
    budget, least = asked.max_new_tokens, asked.min_new_tokens or 0
    computable = asked.likeliest and not asked.constrained
    if asked.ignore_eos and asked.stop_token_ids:
        computable = False  # with ignore_eos, SGLang also ignores stop_token_ids; vLLM does not
    patterns = [_compiled(pattern) for pattern in asked.stop_regex]
    if not computable or budget is None or budget < 1 or not prompt or None in patterns:
        return None
    ends = frozenset(asked.stop_token_ids) | (frozenset() if asked.ignore_eos else words.ends)
    ids = law.answer(prompt, budget, ends, least)
    if ids is None or (asked.ignore_eos and words.ends.intersection(ids[:least])):
        return None  # servers differ in whether ignore_eos lifts the exclusion of these ids
    known = partial(Truth, law, barred=bool(least and ends))
    pieces = [b"" if _is_hidden(token, words, asked) else words.pieces[token] for token in ids]
    texts = list(_texts(head, pieces))

    def in_runs(count: int, *, stop: str = "") -> tuple[str, ...]:
        if not words.fallback or head:
            return ()
        text = words.text([token for token in ids[:count] if not _is_hidden(token, words, asked)])
        end = text.find(stop) if stop else len(text)
        return (text[: end + len(stop) * asked.no_stop_trim],) if end >= 0 else ()

    unread = len(texts[unheeded - 1]) if 0 < unheeded <= len(texts) else 0
    for place, (token, text) in enumerate(zip(ids, texts, strict=True)):
        endings: dict[int | str, str] = {}
        matches: dict[str, tuple[str, ...]] = {}
        bare: frozenset[str] = frozenset()
        by_runs: tuple[str, ...] = ()
        for stop, start in _found(asked.stop, text, unread) if place >= unheeded else ():
            endings[stop] = text[:start] + (stop if asked.no_stop_trim else "")
            by_runs += in_runs(place + 1, stop=stop)
        for found in (pattern.search(text) for pattern in patterns if pattern is not None):
            if found is not None:
                legal = (text, text[: found.end()], text[: found.start()])
                matches |= {found.re.pattern: legal, found.group(): legal}
        if token in ends:
            whole = head + b"".join(pieces[: place + asked.no_stop_trim])
            endings[token], bare = whole.decode("utf-8", "replace"), _bare(whole)
            by_runs += in_runs(place + asked.no_stop_trim)
        if endings or matches:
            final = next(iter(endings.values()), text)
            return known(
                ids[: place + 1], final, (*texts[:place], final), "stop", endings, matches, bare, by_runs
            )
    whole = head + b"".join(pieces)
    final = whole.decode("utf-8", "replace")
    return known(ids, final, (*texts[:-1], final), "length", bare=_bare(whole), by_runs=in_runs(len(ids)))


def deaf_to_stops(asked: Asked) -> tuple[int, ...]:
    """Return the possible numbers of ids at the beginning in which a server does not look for stop strings.

    If the request has a minimum number of tokens, SGLang looks for stop strings from the first id on, and
    vLLM only after the minimum.
    """
    least = asked.min_new_tokens or 0
    return tuple(dict.fromkeys((0, least - 1, least))) if least and asked.stop else (0,)


def _found(stops: Iterable[str], text: str, unread: int) -> list[tuple[str, int]]:
    """Return the stop strings in a text with their positions.

    They are ordered by position, and at equal positions the longest comes first. Stop strings that end before
    `unread` are skipped.
    """
    places = [(stop, text.find(stop, max(0, unread - len(stop) + 1))) for stop in stops]
    return sorted((place for place in places if place[1] >= 0), key=lambda place: (place[1], -len(place[0])))


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a stop pattern.

    Return None if the pattern depends on text outside of the match, or if Python cannot parse the pattern.
    """
    try:
        return None if ANCHORED.search(pattern) else re.compile(pattern)
    except re.error:
        return None


def _is_hidden(token: int, words: Words, asked: Asked) -> bool:
    return asked.skip_special_tokens and token in words.special


def _texts(head: bytes, pieces: Sequence[bytes]) -> Iterator[str]:
    """Yield the text after each id, without an incomplete character at its end."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    decoder.decode(head)
    for piece in pieces:
        text += decoder.decode(piece)
        # Python waits for the second half of a surrogate pair, but even a complete pair is invalid UTF-8.
        waiting = decoder.getstate()[0]
        yield f"{text}\ufffd\ufffd" if b"\xed\xa0" <= waiting <= b"\xed\xbf" else text


def _bare(whole: bytes) -> frozenset[str]:
    """Return a set whose only member is the text without U+FFFD at its end.

    Return an empty set if the text does not end with U+FFFD.
    """
    told_apart = whole.decode("utf-8", "surrogateescape")
    shown = told_apart.rstrip(_LONE_BYTES)
    if shown == told_apart:
        return frozenset()
    return frozenset({shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace")})
