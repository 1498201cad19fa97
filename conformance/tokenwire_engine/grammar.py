"""Constraints of a request: the ids that may come next, computed by llguidance if it is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenwire_engine.engine import UncomputedError

try:
    import llguidance
except ImportError:  # the extra `engine` installs it; a front end's environment may lack it
    llguidance = None  # type: ignore[assignment]

_KINDS = ("json", "json_object", "regex", "choice", "grammar")


@lru_cache(maxsize=4)
def _tokenizer(folder: Path) -> Any:
    tokenizer = (folder / "tokenizer.json").read_text("utf-8")
    ends = json.loads((folder / "config.json").read_text("utf-8"))["eos_token_id"]
    return llguidance.LLTokenizer(tokenizer, eos_token=ends)


class Grammar:
    """A language, and the state of an answer in it."""

    def __init__(self, kind: Any, value: Any, folder: Path) -> None:
        """Compile a language of one of the known kinds; `folder` has the tokenizer.

        Raises UncomputedError for an unknown language.
        """
        if llguidance is None:
            raise UncomputedError(f"{kind} (llguidance is not installed here)")
        if kind not in _KINDS:
            raise UncomputedError(kind)
        if kind == "json_object":
            kind, value = "json", {"type": "object"}
        text = json.dumps(value) if isinstance(value, Mapping) else value
        source = llguidance.grammar_from(kind, text)
        self._matcher = llguidance.LLMatcher(_tokenizer(folder), source, log_level=0)
        if self._matcher.is_error():
            raise UncomputedError(f"{kind} ({self._matcher.get_error()})")

    def allowed(self) -> frozenset[int]:
        """Return the ids that may come next."""
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        return frozenset(place for place in range(bits.bit_length()) if bits >> place & 1)

    def take(self, token: int) -> None:
        """Advance by an id."""
        self._matcher.consume_token(token)
