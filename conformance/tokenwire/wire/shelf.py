"""What is too much to be held: exchanges are read from their captures again, other values from a shelf.

A shelf is a file that goes with the process. Only what this process put there is unpickled.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

from tokenwire.wire.capture import CaptureError, Parcel, Span, is_zipped, pieces
from tokenwire.wire.exchange import Exchange

Value = TypeVar("Value")


class Slip(NamedTuple):
    """Where a value lies."""

    offset: int
    size: int


def packed(value: object) -> bytes:
    """A value as it is put down: what takes long of that may be done in another process."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class Shelf:
    """Puts values down, and fetches them here and in processes that were forked off."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the next line
        finalize(self, self._file.close)
        self._end = 0

    def put(self, data: bytes) -> Slip:
        """Put down a value that was packed. Raises OSError where the disk is full."""
        slip = Slip(self._end, len(data))
        while data:
            written = os.pwrite(self._file.fileno(), data, self._end)
            self._end += written
            data = data[written:]
        return slip

    def fetch(self, slip: Slip) -> Any:
        """A value as it was put down, made anew."""
        data = os.pread(self._file.fileno(), slip.size, slip.offset)
        return pickle.loads(data)


class Captures:
    """Reads exchanges of captures again; those that are gzipped it unzips to a temporary file."""

    def __init__(self) -> None:
        self._unzipped = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the next line
        finalize(self, self._unzipped.close)
        self._starts: dict[Path, int] = {}
        """Where each gzipped capture begins in the temporary file."""

    def add(self, path: Path) -> None:
        """Make a capture known, before any of it is read and before processes are forked off that read it.

        Raises CaptureError and OSError.
        """
        if is_zipped(path) and path not in self._starts:
            self._starts[path] = self._unzipped.seek(0, os.SEEK_END)
            self._unzipped.writelines(pieces(path))
            self._unzipped.flush()

    def exchange(self, name: str, span: Span) -> Exchange:
        """The exchange of this name, which was read from there before.

        Raises CaptureError where the capture has changed since.
        """
        try:
            located = next(Parcel(span, self._bytes(span)).located(), None)
        except OSError as error:
            raise CaptureError(f"{span.path} cannot be read again: {error.strerror or error}") from error
        if located is None or located.span != span or located.exchange.name != name:
            raise CaptureError(f"{span.path} has changed since it was read; replay a copy of it")
        return located.exchange

    def _bytes(self, span: Span) -> bytes:
        if is_zipped(span.path):
            return os.pread(self._unzipped.fileno(), span.size, self._starts[span.path] + span.offset)
        with span.path.open("rb") as file:
            file.seek(span.offset)
            return file.read(span.size)


class AtHand:
    """Values that were used before, as many as have room together; of one too large, that alone.

    Which one has to go is drawn: most passes look at all values in their order, and where these are too many,
    those that were used last would always be the wrong ones.
    """

    def __init__(self, room: int, let_go: Callable[[Any], object] = lambda _: None) -> None:
        """`let_go` is told what has to go."""
        self._room = room
        self._let_go = let_go
        self._taken = 0
        self._values: dict[Slip | Span, tuple[Any, int]] = {}
        self._keys: list[Slip | Span] = []
        self._draw = Random(0).randrange  # it is no secret

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Slip | Span, size: int, fetch: Callable[[], Value]) -> Value:
        """The value of a key; it is fetched where it is not at hand, and takes so much room."""
        known = self._values.get(key)
        if known is not None:
            value: Value = known[0]
            return value
        while self._keys and self._taken + size > self._room:
            at = self._draw(len(self._keys))
            self._keys[at], last = self._keys[-1], self._keys[at]
            self._keys.pop()
            gone, freed = self._values.pop(last)
            self._taken -= freed
            self._let_go(gone)
        value = fetch()
        self._values[key] = value, size
        self._keys.append(key)
        self._taken += size
        return value
