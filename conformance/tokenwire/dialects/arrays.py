"""Per-token arrays other than series: their encodings, and the tokens that have a row."""

from __future__ import annotations

import ast
import base64
import binascii
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tokenwire.wire.json_pointer import Pointer, find

_NPY = b"\x93NUMPY"
_FORMATS = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"} | {
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
"""The format in `struct` of each numpy type."""


class Rows(StrEnum):
    """The kinds of tokens that have a row in an array."""

    RUN = "run"
    """Each token run from a start position on. The last token is not run, because it has no successor."""
    UNCACHED = "uncached"
    """Each token run for this answer. Cached tokens of the prompt have no row."""
    OUTPUT = "output"
    """Each output id."""


class Encoding(StrEnum):
    """Encodings of an array."""

    LISTS = "lists"
    BASE64_INT32 = "base64-int32"
    """The numbers in sequence, little-endian, without a shape."""
    BASE64_NPY = "base64-npy"
    """The bytes that numpy.save writes."""


@dataclass(frozen=True)
class ArrayRule:
    """One array, as the table of a dialect declares it."""

    name: str
    """The detail of an emission that contains it."""
    rows: Rows
    encoding: Encoding
    start: Pointer | None = None
    """The place of the first position in a request; without it, rows of all positions are due."""
    below: int | None = None
    """The exclusive upper bound of its numbers, such as expert ids. It detects two 16-bit numbers read as one
    of 32 bits.
    """

    def due(self, body: Any, prompt_tokens: int, output_ids: int, cached_tokens: int | None) -> int | None:
        """Return the number of rows that a choice must have; None if the request does not enable the array,
        or if the number depends on unknown cached tokens.
        """
        if self.rows is Rows.OUTPUT:
            return output_ids
        if self.rows is Rows.UNCACHED:
            run = None if cached_tokens is None else prompt_tokens - cached_tokens
            return None if run is None else run + max(output_ids - 1, 0)
        stated = find(body, self.start) if self.start is not None else 0
        start = stated if type(stated) is int else 0
        return prompt_tokens + max(output_ids - 1, 0) - start if 0 <= start <= prompt_tokens else None

    def read(self, value: Any) -> Array:
        """Parse an array. Raises ValueError with words for a wrong form."""
        if self.encoding is Encoding.LISTS:
            if not isinstance(value, list):
                raise ValueError(f"it is a {type(value).__name__}, not a list")
            rows = [row for nested in value for row in _rows(nested)] if self.rows is Rows.UNCACHED else value
            return Array(tuple(tuple(_numbers(row)) for row in rows))
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004 - a value from the wire
                f"it is a {type(value).__name__}, not base64"
            )
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"it is not base64: {error}") from error
        if self.encoding is Encoding.BASE64_NPY:
            return _npy(data)
        if len(data) % 4:
            raise ValueError(f"it has {len(data)} bytes, which are not numbers of 4 bytes")
        numbers = struct.unpack(f"<{len(data) // 4}i", data)
        if self.below is not None and (large := [n for n in numbers if n >= self.below]):
            raise ValueError(f"it holds {large[0]}, and its numbers lie below {self.below}")
        return Array((numbers,), shaped=False)


@dataclass(frozen=True)
class Array:
    """The rows of an array; a single row for all numbers if it has no shape."""

    rows: tuple[Sequence[float], ...]
    shaped: bool = True

    def cut(self, count: int) -> Array | None:
        """Return the array with `count` rows, if it has no shape; None if its numbers do not fit
        into them.
        """
        if self.shaped:
            return self
        (numbers,) = self.rows
        width, rest = divmod(len(numbers), count) if count > 0 else (0, 1)
        if rest or (not width and numbers):
            return None
        return Array(tuple(numbers[position * width : (position + 1) * width] for position in range(count)))


def _rows(value: Any) -> list[Any]:
    """Return the rows of a listed array: the array itself, or the rows of the prompt if these form one
    list.
    """
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers of nested lists in order. Raises ValueError for other values."""
    # Without recursion, because a server may nest lists to any depth.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield item
        else:
            raise ValueError(  # noqa: TRY004 - a value from the wire
                f"it holds a {type(item).__name__} among its numbers"
            )


def _npy(data: bytes) -> Array:
    try:
        if not data.startswith(_NPY):
            raise ValueError("it does not begin as a file of numpy")
        # Version 1 of the format has two bytes for the size of its header, later ones four.
        size, position = (
            (struct.unpack("<H", data[8:10])[0], 10)
            if data[6] == 1
            else (*struct.unpack("<I", data[8:12]), 12)
        )
        header = ast.literal_eval(data[position : position + size].decode("latin-1").strip())
        shape, kind = tuple(map(int, header["shape"])), str(header["descr"])
        order, format_ = ("<" if kind[0] in "<|=" else ">"), _FORMATS[kind[1:]]
        count = math.prod(shape)
        numbers = struct.unpack_from(f"{order}{count}{format_}", data, position + size)
        if (
            len(data) != position + size + count * struct.calcsize(format_)
            or header["fortran_order"]
            or not shape
        ):
            raise ValueError(f"it has a shape of {shape} and {len(data) - position - size} bytes of numbers")
    except (struct.error, KeyError, IndexError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        # `literal_eval` raises the last four for hostile headers.
        raise ValueError(f"it is not a file of numpy: {type(error).__name__}: {error}") from error
    width = count // shape[0] if shape[0] else 0
    return Array(tuple(numbers[row * width : (row + 1) * width] for row in range(shape[0])))
