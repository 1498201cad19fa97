"""Escape untrusted text: characters with an effect on a terminal or page, and characters that cannot be
encoded.
"""

from __future__ import annotations


def inert(text: str) -> str:
    """Return the text with escapes for all characters that a terminal, a log or a page would interpret.

    Control characters, DEL, bidirectional controls, line separators and lone surrogates become Python
    escapes. Line breaks and tabs remain. Reports escape all text from servers, and all names from captures or
    answers.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1]
        for character in text
    )
