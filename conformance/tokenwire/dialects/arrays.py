"""Per-token arrays with an encoding of their own, such as routed experts: their encodings, and the number of
rows.
"""

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
"""The `struct` format character of each numpy type."""


class Rows(StrEnum):
    """The tokens for which an array has a row."""

    RUN = "run"
    """Each token that the model ran, from a start position on. The last output token was not run."""
    UNCACHED = "uncached"
    """Each token that the model ran for this answer. Prompt tokens from the prefix cache have no row."""
    OUTPUT = "output"
    """Each output id."""


class Encoding(StrEnum):
    """The encodings of an array in JSON."""

    LISTS = "lists"
    BASE64_INT32 = "base64-int32"
    """Little-endian int32 numbers in base64, without a shape."""
    BASE64_NPY = "base64-npy"
    """A file as `numpy.save` writes it, in base64."""


@dataclass(frozen=True)
class ArrayRule:
    """The properties of one array, as the table of a dialect declares them."""

    name: str
    """The name of the array in `Emission.details`."""
    rows: Rows
    encoding: Encoding
    start: Pointer | None = None
    """The request field with the first position that has a row; None if all positions have one."""
    below: int | None = None
    """Exclusive upper bound of the numbers, such as the number of experts.

    It detects 16-bit numbers that were sent in pairs as 32-bit numbers.
    """

    def due(self, body: Any, prompt_tokens: int, output_ids: int, cached_tokens: int | None) -> int | None:
        """Return the number of rows that a choice must have.

        Return None if the request does not enable the array, or if the number depends on an unknown number of
        cached tokens.
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
        """Parse an array. Raises ValueError with an explanation if it is malformed."""
        if self.encoding is Encoding.LISTS:
            if not isinstance(value, list):
                raise ValueError(f"it is a {type(value).__name__}, not a list")
            rows = [row for nested in value for row in _rows(nested)] if self.rows is Rows.UNCACHED else value
            return Array(tuple(tuple(_numbers(row)) for row in rows))
        if self.encoding is Encoding.BASE64_NPY:
            return read_npy(value)
        data = _bytes_of(value)
        if len(data) % 4:
            raise ValueError(f"it has {len(data)} bytes, which is not a multiple of 4")
        numbers = struct.unpack(f"<{len(data) // 4}i", data)
        if self.below is not None and (large := [n for n in numbers if n >= self.below]):
            raise ValueError(f"it contains {large[0]}, but its numbers must be below {self.below}")
        return Array((numbers,), shaped=False)


@dataclass(frozen=True)
class Array:
    """The parsed rows of an array. An array without a shape is a single row with all numbers."""

    rows: tuple[Sequence[float], ...]
    shaped: bool = True

    def cut(self, count: int) -> Array | None:
        """Divide an array without a shape into `count` rows of equal length; None if that is impossible."""
        if self.shaped:
            return self
        (numbers,) = self.rows
        width, rest = divmod(len(numbers), count) if count > 0 else (0, 1)
        if rest or (not width and numbers):
            return None
        return Array(tuple(numbers[position * width : (position + 1) * width] for position in range(count)))


def _rows(value: Any) -> list[Any]:
    """Return the rows in a value: the value itself if it is one row, or its items if it is a list of rows."""
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in nested lists, in order. Raises ValueError for values that are not numbers."""
    # Not recursive, because a server may nest lists to any depth.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield item
        else:
            raise ValueError(  # noqa: TRY004 - a value from the wire
                f"it contains a {type(item).__name__} among its numbers"
            )


def _bytes_of(value: Any) -> bytes:
    """Decode base64. Raises ValueError with an explanation."""
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - a value from the wire
            f"it is a {type(value).__name__}, not base64"
        )
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"it is not base64: {error}") from error


def read_npy(value: Any) -> Array:
    """Parse a numpy file in base64. Raises ValueError with an explanation if it is malformed."""
    return _npy(_bytes_of(value))


def _npy(data: bytes) -> Array:
    try:
        if not data.startswith(_NPY):
            raise ValueError("it does not begin like a numpy file")
        # In version 1 of the format, the header size has two bytes; in later versions, four.
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
        # `literal_eval` raises the last four for malicious headers.
        raise ValueError(f"it is not a numpy file: {type(error).__name__}: {error}") from error
    width = count // shape[0] if shape[0] else 0
    return Array(tuple(numbers[row * width : (row + 1) * width] for row in range(shape[0])))
