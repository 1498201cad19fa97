"""What was probably meant, where a name is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that comes closest, as a clause; `otherwise` where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise
