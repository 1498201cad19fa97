"""Strict JSON (RFC 8259), limited to documents that all parsers understand in the same way."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final, NoReturn

import jiter

MAX_DEPTH = 200
"""The maximum nesting of arrays and objects. Responses need less, and a call stack allows much more."""

LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**64 - 1
"""The range of 64-bit integers, signed or unsigned."""
_MOST_DIGITS = len(str(LEAST_INTEGER))
_AHEAD = b","
_ALIKE = bytes.maketrans(b"E123456789[:- \t\n\r", b"e000000000" + 7 * _AHEAD)
"""Maps all digits to zero, and all characters that may precede a number to a comma.

After this translation, one search finds a pattern of digits.
"""
_LONG_INTEGER, _LARGE_EXPONENT = _AHEAD + b"0" * 19, b"0e000"
_LONGEST_NUMBER = 64
"""The maximum number of bytes that are searched before an exponent. A longer number counts as possibly too
large.
"""
_UNSURE: Final = object()

_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
"""Matches a string or a bracket.

An unclosed string matches up to the end of the text. Otherwise the search would start again at each quotation
mark in the unclosed string.
"""


class StrictJsonError(ValueError):
    """A text is not strict JSON. The message is the reason, as a clause."""


def _refuse_constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not JSON")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise StrictJsonError(f"the key {repeated!r} occurs twice in one object")
    return members


def refuse_deep_nesting(text: str) -> None:
    """Check the nesting of a text. Raises StrictJsonError if the nesting is deeper than `MAX_DEPTH`."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise StrictJsonError(f"arrays and objects are nested more than {MAX_DEPTH} deep")
        elif token in "]}":
            depth -= 1


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise StrictJsonError(f"the number {text[:40]} is too large: parsers read it as infinity")
    return value


def _integer(text: str) -> int:
    """Parse an integer that fits into 64 bits. Raises StrictJsonError for a larger integer."""
    # The length is checked first, because Python refuses to parse integers with thousands of digits.
    value = int(text) if len(text) <= _MOST_DIGITS else None
    if value is None or not LEAST_INTEGER <= value <= MOST_INTEGER:
        raise StrictJsonError(f"the integer {text[:40]} does not fit into 64 bits: parsers may change it")
    return value


_decoder = json.JSONDecoder(
    object_pairs_hook=_object_without_repeats,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_integer,
)


def loads(text: str) -> Any:
    """Return the value of a strict JSON text.

    Integers become int. Numbers with a fraction or an exponent become float, so that 1.0 is not mistaken for
    a token id. Escaped lone surrogates are accepted, because JSON allows them. Raises StrictJsonError for
    NaN, infinities and numbers that overflow to infinity. StrictJsonError is also raised for integers beyond
    64 bits, duplicate keys, nesting beyond `MAX_DEPTH`, a BOM, and invalid JSON.
    """
    value = _read_fast(text)
    return _read_carefully(text) if value is _UNSURE else value


def _read_fast(text: str) -> Any:
    """Return the value of a text that is certainly strict JSON, otherwise `_UNSURE`.

    The fast parser takes a third of the time of the careful parser.
    """
    try:
        written = text.encode()
        if _holds_large_number(written):
            return _UNSURE
        # An array around the text makes this parser's own depth limit equal to `MAX_DEPTH`.
        values = jiter.from_json(b"[%b]" % written, allow_inf_nan=False, catch_duplicate_keys=True)
    # jiter also rejects lone surrogates and words its errors differently, so the strict parser decides.
    except ValueError:
        return _UNSURE
    # The text `1,2` is not valid JSON, but within the added array it becomes two values.
    return values[0] if len(values) == 1 else _UNSURE


def _holds_large_number(written: bytes) -> bool:
    """True if a text may contain a number beyond 64 bits or beyond the range of a float.

    The function searches for a long run of digits and for a large exponent, which is cheap. Hexadecimal ids
    also contain such exponents, so an exponent counts only after a number.
    """
    digits = written.translate(_ALIKE, b"+")
    # Searched from the end, because the forward search is slow for frequent characters.
    if digits.rfind(_LONG_INTEGER) >= 0 or digits.startswith(_LONG_INTEGER[1:]):
        return True
    position = digits.find(_LARGE_EXPONENT) if b"e" in digits else -1
    while position >= 0:
        before = digits[max(0, position + 1 - _LONGEST_NUMBER) : position + 1]
        ahead = before.rstrip(b"0.")
        if not ahead or ahead.endswith(_AHEAD):
            return True
        position = digits.find(_LARGE_EXPONENT, position + len(_LARGE_EXPONENT))
    return False


def _read_carefully(text: str) -> Any:
    refuse_deep_nesting(text)
    try:
        return _decoder.decode(text)
    except StrictJsonError:
        raise
    except json.JSONDecodeError as error:
        words = error.msg.removesuffix(" at")
        raise StrictJsonError(f"{words} at character {error.pos}") from error
    except ValueError as error:
        raise StrictJsonError(f"a number has too many digits: {error}") from error
