"""Text that arrives in pieces, joined as a client joins it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def join_text(pieces: Iterable[str]) -> str:
    """Join pieces of text. Two surrogates become the character that they are in JSON.

    A piece may end within a pair, because a JSON string may contain half of one. JavaScript joins the halves
    to the character. Python keeps them apart, but writes the same JSON for both.
    """
    text = "".join(pieces)
    if text.isascii() or _PAIR.search(text) is None:
        return text
    return _PAIR.sub(_character, text)


def _character(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")
