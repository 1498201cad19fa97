"""Code that the protocols of vLLM and SGLang share: the check of the release, the trace of messages, and the
errors of requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

Releases = Mapping[str, Sequence[str]]
"""The fields of an output in each known release, by version."""


class UnknownVersionError(ValueError):
    """The protocol of the front end's release is unknown.

    The message says what differs, and what the user can do.
    """


class UncomputedError(ValueError):
    """A request needs something that this engine does not compute."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"this engine does not compute {subject}")


def refusal(error: Exception) -> tuple[str, HTTPStatus]:
    """Return the message and the HTTP status for a request that failed with this exception."""
    if isinstance(error, ValueError):
        return str(error), HTTPStatus.BAD_REQUEST
    return f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR


def newest(known: Releases) -> str:
    """Return the newest of the given versions."""
    return max(known, key=lambda version: tuple(map(int, re.findall(r"\d+", version))))


def demand_known(
    server: str, known: Releases, version: str, fields: Sequence[str] | None = None, as_version: str = ""
) -> None:
    """Check that a release is known, and that its outputs have the known fields.

    `fields`: the fields of the installed release; None if they cannot be determined. `as_version`: a known
    release; its protocol is used for the installed release. Raises UnknownVersionError.
    """
    like = as_version or version
    compared = like if like in known else newest(known)
    new = [name for name in fields or () if name not in known[compared]]
    gone = [name for name in known[compared] if name not in (known[compared] if fields is None else fields)]
    if like in known and not (new or gone):
        return
    change = f"; compared with {compared}, its outputs add {new or 'nothing'} and lack {gone or 'nothing'}"
    raise UnknownVersionError(
        f"{server} {version} is unknown to this engine (known: {', '.join(known)})"
        f"{'' if fields is None else change}; --front-end-version {newest(known)} uses that protocol"
    )


def waiting(read: Callable[..., T]) -> Iterator[T]:
    """Yield the messages that have arrived at a socket. `read`: reads one message, given flags."""
    import zmq

    while True:
        try:
            yield read(flags=zmq.NOBLOCK)
        except zmq.Again:
            return


class Trace:
    """A file that records every message as JSON Lines."""

    def __init__(self, path: str | Path | None) -> None:
        """Open the file. Without a path, nothing is recorded."""
        # The file stays open as long as the process runs.
        self._file = Path(path).open("a", encoding="utf-8", buffering=1) if path else None  # noqa: SIM115

    def note(self, way: str, content: object) -> None:
        """Record a message. `way`: `in` or `out`."""
        if self._file is not None:
            self._file.write(json.dumps({way: content}, default=repr) + "\n")
