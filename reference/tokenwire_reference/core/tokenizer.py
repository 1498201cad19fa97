"""The interface of a tokenizer for the reference, and the bytes of one token."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Converts text to ids and back. Tokenizers of transformers have this interface."""

    chat_template: str | None
    all_special_ids: list[int]

    def __hash__(self) -> int: ...

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **options: bool) -> str: ...

    def convert_ids_to_tokens(self, token_id: int) -> str: ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _byte_of_letter() -> dict[str, int]:
    """Return the byte that each character represents in byte-level vocabularies.

    Printable Latin-1 characters represent themselves; characters from U+0100 on represent the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the bytes that a token adds to the text, in UTF-8. They may be a part of a character."""
    text = tokenizer.decode([token_id])
    if "\ufffd" not in text:
        return text.encode()
    piece = tokenizer.convert_ids_to_tokens(token_id)
    if found := BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    letters = _byte_of_letter()
    if all(letter in letters for letter in piece):
        return bytes(letters[letter] for letter in piece)
    return text.encode()
