"""Read untrusted JSON Lines files: captures and tallies, plain or gzipped.

Limits are checked before a line is parsed, so that memory is bounded. There are limits for the length of a
line, the unpacked size of a gzipped file, and the depth and number of values in a line.
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
"""The maximum size in bytes of a line and of an exchange. `tokenwire watch` has the same limit."""
_MOST_UNPACKED = 200
"""The maximum ratio of unpacked to gzipped size for files that unpack to more than `LONGEST`. Recordings
reach 40.
"""
_MOST_VALUES = 2 << 20
"""The maximum number of values in a line, weighted by memory.

A number counts as 1, and larger values count more.
"""
_ROOM_OF_BRACKETS = 8
"""The memory of an object or array, as a multiple of the memory of a number."""
_PIECE = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Matches a string.

An unclosed string matches up to the end of the line. Otherwise the search would start again at each quotation
mark in the unclosed string.
"""


class CaptureError(UsageError):
    """A file is invalid. The message names the file and the line."""


def is_zipped(path: Path) -> bool:
    return path.suffix == ".gz"


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a plain or gzipped file in pieces. A gzipped file may be cut off.

    Raises CaptureError and OSError.
    """
    yield from unzipped(path) if is_zipped(path) else _read(path)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_PIECE), b"")


def unzipped(path: Path, *, cut_off: bool = True) -> Iterator[bytes]:
    """Yield the content of a gzipped file in pieces. `cut_off`: True if the file may be cut off.

    Raises CaptureError and OSError.
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
            zipped = unzip.unconsumed_tail or unzip.unused_data  # noqa: PLW2901  # the rest of the input
    if not (unzip.eof or cut_off):
        raise CaptureError(f"{path} is not a complete gzipped file")


def lines(path: Path, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines in the pieces of a file, without line ends. Raises CaptureError and OSError."""
    number, begun = 1, b""
    for piece in pieces:
        *complete, begun = (begun + piece).split(b"\n")
        yield from complete
        number += len(complete)
        demand_short(path, number, len(begun))
    if begun:
        yield begun


def demand_short(path: Path, number: int, size: int) -> None:
    """Check the length of a line, which may be incomplete.

    Raises CaptureError if the length exceeds `LONGEST`.
    """
    if size > LONGEST:
        raise CaptureError(f"{path}, line {number}: the line is longer than the limit of {LONGEST >> 20} MiB")


def value_of(line: bytes) -> Any:
    """Return the JSON value of a line. NaN and duplicate keys are accepted.

    Raises ValueError for text that is not JSON, is nested too deeply, or needs too much memory.
    """
    if values_in(line, enough=_MOST_VALUES) > _MOST_VALUES:
        raise ValueError(f"the line contains more than {_MOST_VALUES} values")
    try:
        # An array around the text makes this parser's own depth limit equal to `MAX_DEPTH`.
        (value,) = jiter.from_json(b"[%b]" % line)
    except ValueError:  # the slower parser accepts lone surrogates, which answers may contain
        refuse_deep_nesting(line.decode("utf-8"))
        return json.loads(line)
    return value


def values_in(line: bytes, enough: int = 0) -> int:
    """Return an upper bound of the number of values in a line, weighted by memory.

    The exact count is skipped if a rough bound is at most `enough`.
    """
    count = _brackets_and_commas(line, 0, len(line))
    if count <= enough:
        return count
    return count - sum(_brackets_and_commas(line, *text.span()) for text in _STRING.finditer(line))


def _brackets_and_commas(data: bytes, start: int, end: int) -> int:
    brackets = data.count(b"{", start, end) + data.count(b"[", start, end)
    return data.count(b",", start, end) + _ROOM_OF_BRACKETS * brackets
