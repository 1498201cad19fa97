"""Writes requests that script a parrot, with a prompt of ids, of text or of messages."""

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
"""The least length of a prompt, because a shorter one has the lag of a single id."""
_FILLER = "~"
MESSAGE_BEGINS, MESSAGE_ENDS = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
"""The template of a parrot around a user's message, and before the answer."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Speaker:
    """A target that is a parrot, and the form of its prompts."""

    law: Law
    words: Words
    encode: Encode
    templated: bool = True
    """True if its chat template is the parrot's; otherwise messages cannot script it."""

    @cached_property
    def end(self) -> int:
        """The id that ends an answer."""
        return min(self.words.ends)

    def bytes(self, text: str | bytes) -> Ids:
        """Return a text or bytes as ids, one for each byte."""
        spelled = text.encode() if isinstance(text, str) else text
        return tuple(self.words.longest(bytes([byte])) for byte in spelled)

    def special(self) -> int | None:
        """Return a special id that does not end an answer; None without one."""
        return next((token for token in sorted(self.words.special - self.words.ends, reverse=True)), None)

    def ask(self, dialect: Dialect, script: Sequence[int], ending: Sequence[int] = ()) -> Ask | None:
        """Return a prompt for a script in an endpoint's form; None if the form cannot express it.

        `ending` are the last ids of the prompt.
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
        """Return the text of a message of a role that a parrot answers with a script, wherever the message is
        behind these others; None if there is none.
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
        """Return the text that becomes these ids between two others; None if none does."""
        try:
            text = b"".join(self.words.pieces[token] for token in script).decode()
        except UnicodeDecodeError:
            return None
        head, tail = map(self.encode, around)
        return text if self.encode(text.join(around)) == (*head, *script, *tail) else None
