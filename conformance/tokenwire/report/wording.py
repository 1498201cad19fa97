"""Formats values and places from responses as readable text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenwire.checks.evidence import Observation
    from tokenwire.record import Place

_LONGEST_VALUE = 200
_BLANKS = re.compile("^ +| +$| {2,}")
"""Matches spaces that a reader cannot see: spaces at the ends of a text, and several spaces in a row."""


def cut(text: str, longest: int) -> str:
    """Return a text in one line. If it is too long, its middle is replaced by an ellipsis."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    kept = (longest - 3) // 2
    return f"{text[:kept]} … {text[-kept:]}"


def first_few(names: Sequence[str], most: int) -> str:
    """Join the first few names with commas, and add an ellipsis if there are more."""
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def value(thing: Any) -> str:  # the value may come from a server
    """Return any value as a text of limited length."""
    if isinstance(thing, str) and not thing.startswith(("{", "[")) and thing.isprintable() and thing:
        return cut(_BLANKS.sub(lambda found: "␠" * len(found[0]), thing), _LONGEST_VALUE)
    if isinstance(thing, list) and all(isinstance(entry, str) for entry in thing):
        return cut(f"[{', '.join(map(_quoted, thing))}]", _LONGEST_VALUE)
    words = _quoted(thing) if isinstance(thing, str) else json.dumps(thing, ensure_ascii=False, default=str)
    return cut(words, _LONGEST_VALUE)


def _quoted(text: str) -> str:
    """Return a text as JSON.

    If single quotes make escapes of its double quotes unnecessary, use single quotes instead.
    """
    plain = '"' in text and not set("'\\") & set(text) and text.isprintable()
    return f"'{text}'" if plain else json.dumps(text, ensure_ascii=False)


def where(place: Place) -> str:
    """Describe a place: exchange, event, time, byte range and pointer."""
    words = [place.exchange]
    if place.event is not None:
        words.append(f"event {place.event}")
    if place.time or place.end:
        words.append(f"at {place.time:.3f} s")
    if place.end > place.start:
        words.append(f"bytes {place.start}-{place.end}")
    if place.pointer:
        words.append(place.pointer)
    return ", ".join(words)


def clause(observation: Observation) -> str:
    """Describe a violation as one clause."""
    if observation.message:
        return observation.message
    return f"expected {value(observation.expected)}, found {value(observation.actual)}"
