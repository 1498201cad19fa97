"""Storage outside of memory.

Exchanges are read again from their captures by offset. Other values are written to a temporary file.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import finalize

from tokenwire.wire.capture import CaptureChunk, Span
from tokenwire.wire.exchange import Exchange
from tokenwire.wire.json_lines import CaptureError, is_zipped, pieces

Value = TypeVar("Value")


class Offset(NamedTuple):
    """The position of a pickled value in a spill file."""

    start: int
    size: int


class SpillFile:
    """A temporary file of pickled values, which forked processes can read."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the next line
        finalize(self, self._file.close)
        self._end = 0

    def write(self, pickled: bytes) -> Offset:
        """Append a pickled value. Raises OSError if the disk is full."""
        offset = Offset(self._end, len(pickled))
        while pickled:
            written = os.pwrite(self._file.fileno(), pickled, self._end)
            self._end += written
            pickled = pickled[written:]
        return offset

    def read(self, offset: Offset) -> Any:
        """Return a value. Each call unpickles a new object."""
        return pickle.loads(os.pread(self._file.fileno(), offset.size, offset.start))


class CaptureReader:
    """Reads exchanges of captures again. Gzipped captures are unzipped to a temporary file."""

    def __init__(self) -> None:
        self._unzipped = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the next line
        finalize(self, self._unzipped.close)
        self._starts: dict[Path, int] = {}
        """The offset of each unzipped capture in the temporary file."""

    def add(self, path: Path) -> None:
        """Unzip a gzipped capture.

        This method must be called before forking processes that read the capture. Raises CaptureError and
        OSError.
        """
        if is_zipped(path) and path not in self._starts:
            self._starts[path] = self._unzipped.seek(0, os.SEEK_END)
            self._unzipped.writelines(pieces(path))
            self._unzipped.flush()

    def exchange(self, name: str, span: Span) -> Exchange:
        """Return the exchange with this name and span. Raises CaptureError if the capture has changed."""
        try:
            located = next(CaptureChunk(span, self._bytes(span)).located(), None)
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


class RandomCache(Generic[Value]):
    """A cache whose size in bytes is bounded.

    A value that exceeds the bound replaces all other values. Values are evicted at random, because most users
    read all values in order. If all values together exceed the bound, a least-recently-used cache would never
    have a hit.
    """

    def __init__(self, bound: int, on_evict: Callable[[Value], object] = lambda _: None) -> None:
        self._left = bound
        self._on_evict = on_evict
        self._values: dict[Hashable, tuple[Value, int]] = {}
        self._keys: list[Hashable] = []
        self._random = Random(0).randrange  # a fixed seed, because evictions need not be secret

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, size: int, fetch: Callable[[], Value]) -> Value:
        """Return the value of a key.

        A value that is not cached is fetched. `size` is the size of the value in bytes.
        """
        cached = self._values.get(key)
        if cached is not None:
            return cached[0]
        while self._keys and size > self._left:
            self._evict(self._random(len(self._keys)))
        value = fetch()
        self._values[key] = value, size
        self._keys.append(key)
        self._left -= size
        return value

    def _evict(self, index: int) -> None:
        self._keys[index], key = self._keys[-1], self._keys[index]
        self._keys.pop()
        value, size = self._values.pop(key)
        self._left += size
        self._on_evict(value)
