"""Escapes untrusted text: characters with an effect, and characters that cannot be written."""

from __future__ import annotations


def inert(text: str) -> str:
    """Return the text with escapes for everything that a terminal, a log or a page would interpret.

    Control characters, DEL, bidirectional controls, line separators and lone surrogates become Python
    escapes; line breaks and tabs stay. Reports pass all text from servers through it, and all names from
    captures or answers.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1]
        for character in text
    )
