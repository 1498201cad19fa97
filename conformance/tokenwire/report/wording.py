"""Readable words for values and places from the wire."""

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
"""Matches blanks that a reader would not see."""


def cut(text: str, longest: int) -> str:
    """Return the text on one line, shortened in the middle if it is too long."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    kept = (longest - 3) // 2
    return f"{text[:kept]} … {text[-kept:]}"


def first_few(names: Sequence[str], most: int) -> str:
    """Return the first few names in words, with an ellipsis if there are more."""
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def value(thing: Any) -> str:  # an untrusted value
    """Return a value from the wire, or words, in readable length."""
    if isinstance(thing, str) and not thing.startswith(("{", "[")) and thing.isprintable() and thing:
        return cut(_BLANKS.sub(lambda found: "␠" * len(found[0]), thing), _LONGEST_VALUE)
    return cut(json.dumps(thing, ensure_ascii=False, default=str), _LONGEST_VALUE)


def where(place: Place) -> str:
    """Return a place in words: exchange, event, time, bytes, pointer."""
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
