"""Writes prompts that make a parrot output a script: ids, text or messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenwire.ask import Ask
from tokenwire.dialects.dialect import Dialect
from tokenwire.parrot.encoding import Encode, most_tokens
from tokenwire.parrot.law import Law, Parrot
from tokenwire.parrot.vocabulary import Words

_SHORTEST = 16
"""The least length of a prompt, in tokens.

In a shorter prompt, each token repeats the token directly before it.
"""
_FILLER = "~"
MESSAGE_BEGINS, MESSAGE_ENDS = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
"""The text that a parrot's chat template adds before and after a user's message."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Speaker:
    """A parrot, with all data that is necessary to write prompts for it."""

    law: Law
    words: Words
    encode: Encode
    templated: bool = True
    """True if the server uses the parrot's own chat template.

    With another template, messages cannot be scripts.
    """

    @cached_property
    def end(self) -> int:
        """An id that ends an answer."""
        return min(self.words.ends)

    def bytes(self, text: str | bytes) -> Ids:
        """Return the ids of a text or of bytes, one id for each byte."""
        spelled = text.encode() if isinstance(text, str) else text
        return tuple(self.words.longest(bytes([byte])) for byte in spelled)

    def special(self) -> int | None:
        """Return a special id that does not end an answer. None if the vocabulary has no such id."""
        return next((token for token in sorted(self.words.special - self.words.ends, reverse=True)), None)

    def ask(self, dialect: Dialect, script: Sequence[int], ending: Sequence[int] = ()) -> Ask | None:
        """Return a request whose prompt makes the parrot output a script.

        None if the endpoint cannot express this prompt. `ending`: the ids at the end of the prompt.
        """
        plain = dialect.takes_ids or not dialect.chat
        around = ("", "") if plain else (MESSAGE_BEGINS, MESSAGE_ENDS)
        head, tail = map(self.encode, around)
        for lag in self.law.lags if isinstance(self.law, Parrot) else (self.law.distance,):
            room = lag - len(script) - len(ending) - len(tail)
            length = lag + len(head)
            places = (length, length + len(script) - 1)
            if lag < _SHORTEST or room < 0 or any(self.law.lag(place) != lag for place in places):
                continue
            filler = self.words.longest(_FILLER.encode())
            padded = (*script, *(filler,) * room, *ending)
            if dialect.takes_ids:
                return Ask(input_ids=(padded,))
            text = self._as_text(padded, around) if self.templated or not dialect.chat else None
            if text is None:
                return None
            return Ask(messages=({"role": "user", "content": text},)) if dialect.chat else Ask(text=(text,))
        return None

    def reply(self, script: Sequence[int], role: str, behind: object) -> str | None:
        """Return the text of a message after which the parrot outputs a script, however the server formats
        the earlier messages.

        `role`: the role of the message. `behind`: the earlier messages. Return None if no text achieves this.
        """
        around = (MESSAGE_BEGINS.replace("user", role), MESSAGE_ENDS)
        head, tail = map(self.encode, around)
        before, filler = most_tokens(behind, self.encode), self.words.longest(_FILLER.encode())
        for lag in self.law.lags if isinstance(self.law, Parrot) and self.templated else ():
            room = lag - len(script) - len(tail)
            places = (lag + len(head), before + lag + len(head) + len(script) - 1)
            if lag >= _SHORTEST and room >= 0 and all(self.law.lag(place) == lag for place in places):
                return self._as_text((*script, *(filler,) * room), around)
        return None

    def _as_text(self, script: Ids, around: tuple[str, str]) -> str | None:
        """Return the text that is tokenized to these ids if it is placed between the two texts of `around`.

        None if there is no such text.
        """
        try:
            text = b"".join(self.words.pieces[token] for token in script).decode()
        except UnicodeDecodeError:
            return None
        head, tail = map(self.encode, around)
        return text if self.encode(text.join(around)) == (*head, *script, *tail) else None
