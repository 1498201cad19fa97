"""Encodes texts and chats by the vocabularies of a parrot, as a server does before it answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tokenwire.parrot.vocabulary import Vocabulary, byte_letters, tokenizer_files

Encode = Callable[[str], tuple[int, ...]]

_WORDS = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-zé0]?[A-Za-zé]+|0"
    r"| ?[^ \r\nA-Za-zé0]+[\r\n]*|[ \r\n]*[\r\n]+|[ \r\n]+(?![^ \r\n])|[ \r\n]+"
)
"""Matches the words of Qwen2 in a text whose characters are replaced by representatives of their classes."""


@cache
def encoder(kind: Vocabulary) -> Encode:
    """Return the encoder of one of our vocabularies. Special tokens in a text become their ids."""
    document: Mapping[str, Any] = tokenizer_files(kind, 0).files["tokenizer.json"]
    model = document["model"]
    known: Mapping[str, int] = model["vocab"]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
    added = {token["content"]: token["id"] for token in document["added_tokens"]}
    apart = re.compile("(" + "|".join(map(re.escape, added)) + ")")
    split = _pieces if kind is Vocabulary.SENTENCEPIECE else _letters

    def encode(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in apart.split(text):
            if part in added:
                ids.append(added[part])
            else:
                for word in split(part, known):
                    ids += (known[piece] for piece in _merged(word, ranks))
        return tuple(ids)

    return encode


def chat_text(messages: object) -> str | None:
    """Return the text that our chat template makes of messages; None if they do not fit it."""
    if not isinstance(messages, Sequence) or not messages:
        return None
    rendered = []
    for message in messages:
        if not isinstance(message, Mapping) or not message.keys() <= {"role", "content"}:
            return None
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        rendered.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
    return "".join(rendered) + "<|im_start|>assistant\n"


def _letters(text: str, _known: Mapping[str, int]) -> Iterable[list[str]]:
    """Yield the words of a text, each as the letters that represent its bytes."""
    letters, text = byte_letters(), unicodedata.normalize("NFC", text)
    for found in _WORDS.finditer("".join(map(_class_of, text))):
        yield [letters[byte] for byte in text[found.start() : found.end()].encode()]


def _class_of(letter: str) -> str:
    """Return a character that represents a character's class in `_WORDS`."""
    if letter.isascii() and (
        letter.isalpha() or letter in " \r\n" or not (letter.isdigit() or letter.isspace())
    ):
        return letter
    kind = unicodedata.category(letter)[0]
    if kind in "LN":
        return "é" if kind == "L" else "0"
    return " " if letter.isspace() else "."


def _pieces(text: str, known: Mapping[str, int]) -> Iterable[list[str]]:
    """Yield a text as one word of its characters, or of their bytes if a character has no piece."""
    pieces: list[str] = []
    for letter in text.replace(" ", "▁"):
        pieces += [letter] if letter in known else [f"<0x{byte:02X}>" for byte in letter.encode()]
    yield pieces


def _merged(pieces: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the pieces of a word, merged in the order of the merges."""
    while found := [rank for pair in pairwise(pieces) if (rank := ranks.get(pair)) is not None]:
        least, merged = min(found), [pieces[0]]
        for piece in pieces[1:]:
            if ranks.get((merged[-1], piece)) == least:
                merged[-1] += piece
            else:
                merged.append(piece)
        pieces = merged
    return pieces
