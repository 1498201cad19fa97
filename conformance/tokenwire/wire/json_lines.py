"""Reads untrusted JSON Lines: captures and tallies, plain or gzipped.

Memory is bounded before parsing: by the length of a line, the unpacked size of a gzipped file, and the depth
and number of a line's values.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jiter

from tokenwire.usage_error import UsageError
from tokenwire.wire.strict_json import refuse_deep_nesting

LONGEST = 64 << 20
"""The most bytes of a line and of an exchange, equal to the limit of `tokenwire watch`."""
_MOST_UNPACKED = 200
"""The greatest ratio of unpacked to gzipped size, beyond `LONGEST`; recordings reach 40."""
_MOST_VALUES = 2 << 20
"""The most numbers in a line, or other values of the same memory."""
_ROOM_OF_BRACKETS = 8
"""The memory of an object or array, counted in numbers."""
_PIECE = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Matches a string. An unclosed one extends to the end of the line, because otherwise the search
would start again at each quote in it.
"""


class CaptureError(UsageError):
    """A file of lines is invalid; the message names the file and the line."""


def is_zipped(path: Path) -> bool:
    return path.suffix == ".gz"


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a plain or gzipped file, piece by piece; a gzipped file may be truncated.

    Raises CaptureError, OSError.
    """
    yield from unzipped(path) if is_zipped(path) else _read(path)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_PIECE), b"")


def unzipped(path: Path, *, cut_off: bool = True) -> Iterator[bytes]:
    """Yield the content of a gzipped file, piece by piece; with `cut_off`, it may be truncated.

    Raises CaptureError, OSError.
    """
    unzip = zlib.decompressobj(_GZIP)
    packed = unpacked = 0
    for zipped in _read(path):
        packed += len(zipped)
        while zipped:
            if unzip.eof:
                unzip = zlib.decompressobj(_GZIP)
            try:
                data = unzip.decompress(zipped, _PIECE)
            except zlib.error as error:
                raise CaptureError(f"{path} is not a gzipped file: {error}") from error
            unpacked += len(data)
            if unpacked > LONGEST and unpacked > _MOST_UNPACKED * packed:
                raise CaptureError(f"{path} unpacks to more than {_MOST_UNPACKED} times its size")
            yield data
            zipped = unzip.unconsumed_tail or unzip.unused_data  # noqa: PLW2901  # what is left of it
    if not (unzip.eof or cut_off):
        raise CaptureError(f"{path} is not a complete gzipped file")


def lines(path: Path, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines in a file's pieces, without line ends. Raises CaptureError, OSError."""
    number, begun = 1, b""
    for piece in pieces:
        *complete, begun = (begun + piece).split(b"\n")
        yield from complete
        number += len(complete)
        demand_short(path, number, len(begun))
    if begun:
        yield begun


def demand_short(path: Path, number: int, size: int) -> None:
    """Check the length of a line, complete or not. Raises CaptureError if it exceeds `LONGEST`."""
    if size > LONGEST:
        raise CaptureError(f"{path}, line {number}: more than {LONGEST >> 20} MiB in one piece")


def value_of(line: bytes) -> Any:
    """Return the value of a line. NaN and duplicate keys are accepted.

    Raises ValueError for text that is not JSON, too deep, or too large for memory.
    """
    if values_in(line, enough=_MOST_VALUES) > _MOST_VALUES:
        raise ValueError("it holds too many values")
    try:
        # In an array, so that values nested deeper than `MAX_DEPTH` are too deep for this parser, too.
        (value,) = jiter.from_json(b"[%b]" % line)
    except ValueError:  # only the slow parser accepts lone surrogates, which an answer may contain
        refuse_deep_nesting(line.decode("utf-8"))
        return json.loads(line)
    return value


def values_in(line: bytes, enough: int = 0) -> int:
    """Return an upper bound of the values of a line, weighed by their memory. Counting stops at `enough`."""
    count = _brackets_and_commas(line, 0, len(line))
    if count <= enough:
        return count
    return count - sum(_brackets_and_commas(line, *text.span()) for text in _STRING.finditer(line))


def _brackets_and_commas(data: bytes, start: int, end: int) -> int:
    brackets = data.count(b"{", start, end) + data.count(b"[", start, end)
    return data.count(b",", start, end) + _ROOM_OF_BRACKETS * brackets
