"""Scripts: what a parrot is told to say, and the record that must come of it, computed and not asked.

The truth follows from the request alone, so it serves a live run and a capture alike.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.parrot.law import Parrot
from tokenwire.parrot.vocabulary import Words
from tokenwire.record import Asked

_DISTANCES = (1024, 4096, 2048, 512, 256)
"""Those of parrots that are recognised by what they say, the usual one first."""
_LEAST_SAID = 16
_LEAST_KINDS = 4
"""So many different ids at least: a model that repeats one id for ever is no parrot."""


_LAWS = tuple(Parrot(vocab_size=0, distance=distance) for distance in _DISTANCES)


def repeats_its_prompt(prompt: Sequence[int], said: Sequence[Any]) -> bool:
    """Whether an answer is what a parrot says after a prompt, and could hardly come from another model."""
    if not prompt or len(said) < _LEAST_SAID or not all(type(token) is int for token in said):
        return False
    ids, places = (*prompt, *said), range(len(prompt), len(prompt) + len(said))
    repeats = any(all(ids[place] == ids[place - law.lag(place)] for place in places) for law in _LAWS)
    return repeats and len(set(said)) >= _LEAST_KINDS


@dataclass(frozen=True)
class Script:
    """Ids that are to be said. For an answer that ends by itself, an id that ends a text is among them."""

    ids: tuple[int, ...]

    @classmethod
    def of_text(cls, text: str, words: Words) -> Script:
        """A script that says a text, in the longest pieces that there are."""
        rest, ids = text.encode(), []
        while rest:
            ids.append(words.longest(rest))
            rest = rest[len(words.pieces[ids[-1]]) :]
        return cls(tuple(ids))

    def prompt(self, law: Parrot, filler: int) -> tuple[int, ...]:
        """The shortest prompt after which the script is said: as long as a lag, the script at its beginning.

        Raises ValueError for a script that is longer than every lag.
        """
        lag = next((lag for lag in law.lags if lag >= len(self.ids)), None)
        if lag is None:
            raise ValueError(f"a script of {len(self.ids)} ids is longer than the distance {law.distance}")
        return self.ids + (filler,) * (lag - len(self.ids))


@dataclass(frozen=True)
class Truth:
    """The one right record of a request."""

    law: Parrot
    ids: tuple[int, ...]
    text: str
    texts: tuple[str, ...]
    """After each id, the text that no later id can change."""
    finish: str
    """stop or length."""
    endings: Mapping[int | str, str] = field(default_factory=dict)
    """The stop id and the stop strings that its last id meets, each with the text that is right if that one
    ends it. Where there are several, a server may choose any.
    """

    @property
    def matched(self) -> frozenset[int | str]:
        """What may be named as its stop."""
        return frozenset(self.endings)

    def may_read(self, text: str, named: Any = None) -> bool:
        """Whether a text is right for an answer that names this stop; without one, for any."""
        if isinstance(named, int | str) and named in self.endings:
            return text == self.endings[named]
        return text == self.text or text in self.endings.values()

    @property
    def logprobs(self) -> list[float]:
        """That of each id: it is said where it stands."""
        return [self.law.logprob(token, token) for token in self.ids]

    def top(self, count: int) -> list[list[tuple[int, float]]]:
        """At each id the likeliest with their logprobs, likeliest first."""
        return [self.law.top(token, count) for token in self.ids]

    def chosen(self, tokens: Sequence[int]) -> list[list[float]]:
        """At each id the logprobs of some others, in their order."""
        return [[self.law.logprob(token, one) for one in tokens] for token in self.ids]


def truth(law: Parrot, words: Words, prompt: Sequence[int], asked: Asked, choice: int = 0) -> Truth | None:
    """The record of one prompt; None if the request leaves it to chance or asks for what is not computed.

    An answer that is aborted has the ids and the text of a request with so small a budget.
    """
    asked = asked.of(choice)
    budget = asked.max_new_tokens
    told = asked.likeliest and not (asked.min_new_tokens or asked.stop_regex or asked.constrained)
    if asked.ignore_eos and asked.stop_token_ids:
        told = False  # SGLang then ignores them, too; vLLM does not
    if not told or budget is None or budget < 1 or not prompt:
        return None
    ends = frozenset(asked.stop_token_ids) | (frozenset() if asked.ignore_eos else words.ends)
    said = law.answer(prompt, budget)
    texts = list(_texts(said, words, skip=asked.skip_special_tokens))
    for place, (token, text) in enumerate(zip(said, texts, strict=True)):
        ids = said[: place + 1]
        endings: dict[int | str, str] = {}
        for stop in sorted(asked.stop, key=lambda stop: (text.find(stop), -len(stop))):
            if (at := text.find(stop)) >= 0:
                endings[stop] = text[:at] + (stop if asked.no_stop_trim else "")
        if token in ends:
            before = texts[place - 1] if place else ""
            endings[token] = _flushed(ids if asked.no_stop_trim else said[:place], words, asked, before)
        if endings:
            final = next(iter(endings.values()))
            return Truth(law, ids, final, (*texts[:place], final), "stop", endings)
    final = _flushed(said, words, asked, texts[-1])
    return Truth(law, said, final, (*texts[:-1], final), "length")


def _bytes(token: int, words: Words, *, skip: bool) -> bytes:
    return b"" if skip and token in words.special else words.pieces[token]


def _texts(ids: Sequence[int], words: Words, *, skip: bool) -> Iterator[str]:
    """After each id, the text that is final: a character that is not whole yet is not there."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for token in ids:
        text += decoder.decode(_bytes(token, words, skip=skip))
        yield text


def _flushed(ids: Sequence[int], words: Words, asked: Asked, final: str) -> str:
    """The text of all ids, with a replacement character for what is no whole character at the end."""
    whole = b"".join(_bytes(token, words, skip=asked.skip_special_tokens) for token in ids)
    text = whole.decode("utf-8", "replace")
    assert text.startswith(final), "what was final stays"
    return text
