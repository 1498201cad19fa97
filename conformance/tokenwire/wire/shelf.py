"""A shelf: values that there are too many of to be held, in a file that goes with the process.

Only what this process put there is read again: nothing that came from elsewhere is ever unpickled.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

_FAST = 1
"""The level of zlib: higher ones take several times as long for a tenth less."""

Value = TypeVar("Value")


class Slip(NamedTuple):
    """Where a value lies."""

    offset: int
    size: int
    compressed: bool


class Packed(NamedTuple):
    """A value as it is put down."""

    data: bytes
    compressed: bool


def packed(value: object, *, compressed: bool = False) -> Packed:
    """What takes long of putting a value down; it may be done elsewhere."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return Packed(zlib.compress(data, _FAST) if compressed else data, compressed)


class Shelf:
    """Puts values down, and fetches them here and in processes that were forked off."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the next line
        finalize(self, self._file.close)
        self._end = 0

    def put(self, value: Packed) -> Slip:
        """Raises OSError where the disk is full."""
        data = value.data
        slip = Slip(self._end, len(data), value.compressed)
        while data:
            written = os.pwrite(self._file.fileno(), data, self._end)
            self._end += written
            data = data[written:]
        return slip

    def fetch(self, slip: Slip) -> Any:
        """A value as it was put down, made anew."""
        data = os.pread(self._file.fileno(), slip.size, slip.offset)
        return pickle.loads(zlib.decompress(data) if slip.compressed else data)


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
        self._values: dict[Slip, tuple[Any, int]] = {}
        self._keys: list[Slip] = []
        self._draw = Random(0).randrange  # it is no secret

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Slip, size: int, fetch: Callable[[], Value]) -> Value:
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
