"""Computes which ids a constraint of a request permits, with llguidance if it is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from tokenwire_engine.front_end import UncomputedError

try:
    import llguidance
# The extra `engine` installs llguidance, but the environment of a front end may not contain it.
except ImportError:
    llguidance = None  # type: ignore[assignment]

_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


@lru_cache(maxsize=4)
def _tokenizer(folder: Path) -> Any:
    tokenizer = (folder / "tokenizer.json").read_text("utf-8")
    ends = json.loads((folder / "config.json").read_text("utf-8"))["eos_token_id"]
    return llguidance.LLTokenizer(tokenizer, eos_token=ends)


class Grammar:
    """A constraint, and the part of the answer that was generated so far."""

    def __init__(self, kind: Any, value: Any, folder: Path) -> None:
        """Compile a constraint.

        `folder`: the folder with the tokenizer. Raises UncomputedError.
        """
        if llguidance is None:
            raise UncomputedError(f"{kind} (llguidance is not installed here)")
        if kind == "structural_tag":
            raise UncomputedError(kind)
        if kind == "json_object":
            kind, value = "json", {"type": "object"}
        text = json.dumps(value) if isinstance(value, Mapping) else value
        source = llguidance.grammar_from(kind, text)
        self._matcher = llguidance.LLMatcher(_tokenizer(folder), source, log_level=0)
        if self._matcher.is_error():
            raise UncomputedError(f"{kind} ({self._matcher.get_error()})")

    @classmethod
    def of(cls, wanted: Mapping[str, Any], folder: Path) -> Self | None:
        """Return the constraint that has a value; None without one. `wanted`: values by kind."""
        named = next((kind for kind in _KINDS if wanted.get(kind) not in (None, False)), None)
        return None if named is None else cls(named, wanted[named], folder)

    def allowed(self) -> frozenset[int]:
        """Return the ids that the constraint permits next."""
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        return frozenset(place for place in range(bits.bit_length()) if bits >> place & 1)

    def take(self, token: int) -> None:
        """Append an id to the answer."""
        self._matcher.consume_token(token)
