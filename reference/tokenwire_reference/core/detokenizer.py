"""Converts token ids to text incrementally. The joined pieces equal the text of all ids at once."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import dropwhile, groupby, islice

from tokenwire_reference.core.request import SamplingParams
from tokenwire_reference.core.tokenizer import BYTE_PIECE, Tokenizer, token_bytes

CONTEXT = 5
"""The number of ids kept before pending text, because decoders treat the first token of a text
differently.
"""
HALF = "\ufffd"
"""The text of an incomplete character: U+FFFD."""
MOST_BYTES = 4
"""The largest number of bytes of a character in UTF-8."""


class Kind(Enum):
    """Kinds of ids for a decoder."""

    WORD = "word"
    """An id whose text does not depend on other ids, except for half a character at its end."""
    BYTE = "byte"
    """A single byte of a vocabulary with byte fallback, such as `<0x0A>`."""
    SILENT = "silent"
    """An id without text, such as a skipped special token.

    The ids around a silent id are decoded as if they were adjacent.
    """


class Spelling:
    """A tokenizer's conversion of ids to text."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        name_of: Callable[[int], str | None] = lambda _: None,
        bytes_of: Callable[[int], bytes] | None = None,
        *,
        joins_bytes: bool = False,
    ) -> None:
        """Initialize with a decoder, the names of the ids (which identify byte tokens), and the bytes of the
        ids.

        `joins_bytes`: the bytes of an id do not depend on its neighbours, so that whole characters may be
        decoded separately.
        """
        alone = cache(lambda token_id: decode([token_id]))

        def kind(token_id: int) -> Kind:
            if BYTE_PIECE.fullmatch(name_of(token_id) or ""):
                return Kind.BYTE
            # The id is decoded twice, because decoders strip a space at the beginning of a text.
            return Kind.WORD if decode([token_id, token_id]) else Kind.SILENT

        def apart(token_id: int) -> str | None:
            text = alone(token_id) if joins_bytes and self.kind(token_id) is Kind.WORD else HALF
            return None if text.endswith(HALF) else text

        self.decode: Callable[[Sequence[int]], str] = lambda ids: (
            alone(ids[0]) if len(ids) == 1 else decode(ids)
        )
        self.joins_bytes = joins_bytes
        self.kind = cache(kind)
        self.apart = cache(apart)
        """Returns the text of an id if it does not depend on its neighbours; None otherwise."""
        self._bytes_of = bytes_of and cache(bytes_of)

    def is_open(self, ids: Sequence[int]) -> bool:
        """True if a text that ends in U+FFFD may end in an incomplete character, which later ids may
        complete.
        """
        if self._bytes_of is None:
            return True
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(map(self._bytes_of, ids)))
        waiting = decoder.getstate()[0]
        # A lone surrogate is not a character.
        return bool(waiting) and not b"\xed\xa0" <= waiting <= b"\xed\xbf"


@lru_cache(maxsize=8)
def spelling(
    tokenizer: Tokenizer, *, skip_special_tokens: bool, spaces_between_special_tokens: bool = True
) -> Spelling:
    """Return the conversion of ids to text for these settings of special tokens."""

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(
            ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )

    joins_bytes = type(getattr(tokenizer, "decoder", None)).__name__ == "ByteLevel"
    return Spelling(
        decode, tokenizer.convert_ids_to_tokens, partial(token_bytes, tokenizer), joins_bytes=joins_bytes
    )


class Detokenizer:
    """The text of one sequence. Returned text is final: later ids do not change it.

    Decoders examine more than one id, so two kinds of text have to wait:

    - U+FFFD at the end, if it is half a character of a byte-level vocabulary. The text before it is final,
    because an incomplete character is written as one U+FFFD. - A run of byte tokens (`<0x..>`). A run is
    decoded as a whole: one byte that is not UTF-8 turns the whole run into U+FFFD. So a run of any length
    waits for the next token.

    Only a few final ids are decoded again as context, so the cost of an id does not grow with the text.
    """

    def __init__(self, spelling: Spelling, prompt_token_ids: Sequence[int] = ()) -> None:
        self.spelling = spelling
        spoken = (i for i in reversed(prompt_token_ids) if spelling.kind(i) is not Kind.SILENT)
        # If the prompt ends in half a character, the first output ids must not be decoded as its other half.
        whole = dropwhile(
            lambda i: spelling.kind(i) is Kind.BYTE or spelling.decode([i]).endswith(HALF), spoken
        )
        self._context = [] if spelling.joins_bytes else list(islice(whole, CONTEXT))[::-1]
        """Final ids that precede the next ones in decoding."""
        self._before = len(spelling.decode(self._context)) if self._context else 0
        self._open: list[int] = []
        """The ids whose text is not final yet.

        The last id is a byte token only within a run of byte tokens.
        """
        self._given = 0
        """The number of characters in the text of the open ids that were already returned."""
        self._unread: list[int] = []
        """The byte tokens at the end of a run that do not form a complete character."""
        self.tail = ""
        """The complete characters of an open run of byte tokens.

        A later wrong byte replaces these characters by U+FFFD.
        """
        self.waiting = 0
        """The number of ids in the open run of byte tokens."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, sampling: SamplingParams, prompt: Sequence[int]) -> Detokenizer:
        """Return the detokenizer for an output, with the settings of its request."""
        spelled = spelling(
            tokenizer,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        return cls(spelled, prompt)

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that becomes final, which may be empty."""
        if len(ids) == 1 and not self._open and (text := self.spelling.apart(ids[0])) is not None:
            return text  # usually no text waits before or after these ids
        pieces = []
        for kind, group in groupby(ids, key=self.spelling.kind):
            match kind:
                case Kind.WORD:
                    pieces.append(self._push_words(list(group)))
                case Kind.BYTE:
                    pieces.append(self._push_bytes(list(group)))
                case Kind.SILENT if self.waiting:
                    self.waiting += len(list(group))
        return "".join(pieces)

    def _push_words(self, ids: Sequence[int]) -> str:
        self._open += ids
        self._unread, self.tail, self.waiting = [], "", 0
        text = self._text(self._open)
        waits = text.endswith(HALF) and self.spelling.is_open(self._open)
        final = text.removesuffix(HALF) if waits else text
        piece = final[self._given :]
        self._given = len(final)
        if final == text:
            self._settle(len(self._open), text, apart=self.spelling.joins_bytes)
        elif final.startswith(but_last := self._text(self._open[:-1])):
            # Later ids affect only the last open id, so the others are final.
            self._settle(len(self._open) - 1, but_last)
        return piece

    def _push_bytes(self, ids: Sequence[int]) -> str:
        piece = ""
        if not self.waiting:
            # A byte token cannot complete a character that began in a token of another kind.
            piece = self.flush()
            self._settle(len(self._open), self._text(self._open))
        self._open += ids
        self.waiting += len(ids)
        for token_id in ids:
            if len(self._unread) == MOST_BYTES:
                break  # These bytes are not a character, so the whole run is broken.
            self._unread.append(token_id)
            text = self._text(self._unread)
            if text != HALF * len(self._unread):
                self.tail += text
                self._unread = []
        return piece

    def _settle(self, count: int, text: str, *, apart: bool = False) -> None:
        """Make `count` open ids final, with the text `text`.

        `apart`: later text may be decoded without these ids.
        """
        self._context = [] if apart else [*self._context, *self._open[:count]][-CONTEXT:]
        self._before = len(self.spelling.decode(self._context)) if self._context else 0
        self._given = max(0, self._given - len(text))
        del self._open[:count]

    def _text(self, ids: Sequence[int]) -> str:
        return self.spelling.decode([*self._context, *ids])[self._before :]

    def flush(self) -> str:
        """Return the text that waited for further ids, because the output has ended."""
        return self._text(self._open)[self._given :]
