"""Escapes for text of strangers: characters that act, or cannot be written."""

from __future__ import annotations


def inert(text: str) -> str:
    """Return the text with everything escaped that a terminal, a log or a page would act on instead of
    showing it.

    Control characters, DEL, bidirectional controls, line separators and lone surrogates become what Python
    writes for them; line breaks and tabs stay. Every report says what a server wrote through this, and every
    name that a capture or an answer chose.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1]
        for character in text
    )
