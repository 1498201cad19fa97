"""The common ground of the protocols: which releases are known, and a trace of the messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

Releases = Mapping[str, Sequence[str]]
"""The fields of the outputs of each known release."""


class UnknownVersionError(ValueError):
    """A front end of a release whose protocol is not known. The message says what differs, and what to do."""


def newest(known: Releases) -> str:
    """Return the newest of some releases."""
    return max(known, key=lambda version: tuple(map(int, re.findall(r"\d+", version))))


def demand_known(
    server: str, known: Releases, version: str, fields: Sequence[str] | None = None, as_version: str = ""
) -> None:
    """Check that a release is known, and that its outputs have the known fields.

    `fields` are those of the installed one, or None if they are not available. `as_version` treats it as a
    known release. Raises UnknownVersionError.
    """
    like = as_version or version
    compared = like if like in known else newest(known)
    new = [name for name in fields or () if name not in known[compared]]
    gone = [name for name in known[compared] if name not in (known[compared] if fields is None else fields)]
    if like in known and not (new or gone):
        return
    change = f"; beside {compared} its outputs add {new or 'nothing'} and lack {gone or 'nothing'}"
    raise UnknownVersionError(
        f"{server} {version} is not known to this engine (known: {', '.join(known)})"
        f"{'' if fields is None else change}; --front-end-version {newest(known)} speaks to it as to that one"
    )


class Trace:
    """A file for every message, as JSON Lines."""

    def __init__(self, path: str | Path | None) -> None:
        """Open the file; None or an empty path keeps nothing."""
        # Open as long as the process lives.
        self._file = Path(path).open("a", encoding="utf-8", buffering=1) if path else None  # noqa: SIM115

    def note(self, way: str, content: object) -> None:
        """Write a message that went `way`: in or out."""
        if self._file is not None:
            self._file.write(json.dumps({way: content}, default=repr) + "\n")
