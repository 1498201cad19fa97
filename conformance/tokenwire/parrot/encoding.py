"""Tokenizes texts and chats with the vocabulary of a parrot, as a server does before it answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tokenwire.dialects.markup import as_object
from tokenwire.parrot.vocabulary import Vocabulary, byte_letters, tokenizer_files

Encode = Callable[[str], tuple[int, ...]]

_WORDS = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-zé0]?[A-Za-zé]+|0"
    r"| ?[^ \r\nA-Za-zé0]+[\r\n]*|[ \r\n]*[\r\n]+|[ \r\n]+(?![^ \r\n])|[ \r\n]+"
)
"""Matches the words into which Qwen2 splits a text.

The text must be prepared: each character is replaced by a representative of its character class.
"""


@cache
def encoder(kind: Vocabulary) -> Encode:
    """Return the tokenizer of a vocabulary as a function. Special tokens in a text become their ids."""
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
    """Return the prompt that our chat template makes of messages.

    Return None for messages that the template does not support. Return None also for messages with reasoning,
    because some servers do not pass reasoning to a template.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return None
    rendered = [_message_text(message) for message in messages]
    texts = [text for text in rendered if text is not None]
    return "".join(texts) + _ANSWER if len(texts) == len(rendered) else None


def last_text(messages: object) -> str | None:
    """Return the text that our chat template makes of the last message and of the beginning of the answer.

    The message may have the form of any endpoint. Return None if the text cannot be computed.
    """
    last = messages[-1] if isinstance(messages, list) and messages else None
    match last:
        case {"type": "function_call_output", "output": str(output)}:
            last = {"role": "tool", "content": output}
        case {"role": "user", "content": [*_, {"type": "tool_result", "content": str(output)}]}:
            last = {"role": "tool", "content": output}
    text = _message_text(last)
    return None if text is None else text + _ANSWER


def most_tokens(messages: object, encode: Encode) -> int:
    """Return an upper bound of the number of tokens of messages.

    The bound holds for every form in which a server passes the messages to our template.
    """
    texts = list(texts_within(messages))
    return sum(len(encode(text)) for text in texts) + _AROUND * (1 + len(texts))


def texts_within(value: object) -> Iterator[str]:
    """Yield all strings of a JSON value except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_within(inner)


_AROUND = 5
"""The most tokens that a chat template adds around a text, such as a marker, a role and a line break."""
_ANSWER = "<|im_start|>assistant\n"
_KNOWN_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def _message_text(message: object) -> str | None:
    if not isinstance(message, Mapping) or not message.keys() <= _KNOWN_KEYS:
        return None
    role, content = message.get("role"), message.get("content")
    calls = _calls_text(message.get("tool_calls") or ())
    if calls and content is None:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str) or calls is None:
        return None
    return f"<|im_start|>{role}\n{content}{calls}<|im_end|>\n"


def _calls_text(calls: object) -> str | None:
    """Return the text of the tool calls in a message; None for calls that servers may format differently."""
    texts = []
    for call in calls if isinstance(calls, list | tuple) else (None,):
        match call:
            case {"function": {"name": str(name), "arguments": str(arguments)}}:
                given = as_object(arguments)
            case _:
                return None
        if given is None or not {type(value) for value in given.values()} <= {str, int}:
            return None
        pairs = "".join(f" {key}={value}" for key, value in given.items())
        texts.append(f"<tool_call>{name}{pairs}</tool_call>")
    return "".join(texts)


def _letters(text: str, _known: Mapping[str, int]) -> Iterable[list[str]]:
    """Yield the words of a text. Each word is a list of characters, and each character represents a byte."""
    letters, text = byte_letters(), unicodedata.normalize("NFC", text)
    for found in _WORDS.finditer("".join(map(_class_of, text))):
        yield [letters[byte] for byte in text[found.start() : found.end()].encode()]


def _class_of(letter: str) -> str:
    """Return the representative of a character's class for `_WORDS`."""
    if letter.isascii() and (
        letter.isalpha() or letter in " \r\n" or not (letter.isdigit() or letter.isspace())
    ):
        return letter
    kind = unicodedata.category(letter)[0]
    if kind in "LN":
        return "é" if kind == "L" else "0"
    return " " if letter.isspace() else "."


def _pieces(text: str, known: Mapping[str, int]) -> Iterable[list[str]]:
    """Yield one list for the whole text.

    The list has each character of the text. A character that is not in the vocabulary is replaced by its
    bytes.
    """
    pieces: list[str] = []
    for letter in text.replace(" ", "▁"):
        pieces += [letter] if letter in known else [f"<0x{byte:02X}>" for byte in letter.encode()]
    yield pieces


def _merged(pieces: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the pieces of a word after byte-pair merging. `ranks`: the order of the merges."""
    while found := [rank for pair in pairwise(pieces) if (rank := ranks.get(pair)) is not None]:
        least, merged = min(found), [pieces[0]]
        for piece in pieces[1:]:
            if ranks.get((merged[-1], piece)) == least:
                merged[-1] += piece
            else:
                merged.append(piece)
        pieces = merged
    return pieces
