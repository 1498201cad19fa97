"""Honesty: what the target does with a field that it cannot know.

A server that ignores unknown fields answers every request with 200, and what its answers lack shows nothing:
it may have ignored the question. One that refuses them can be believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tokenwire.dialects.recognition import ASKS_FOR_THE_UNKNOWN
from tokenwire.record import Answer

SCENARIO = ASKS_FOR_THE_UNKNOWN
"""The scenario that asks; the label of an exchange says what for."""

UNKNOWN_FIELD, UNKNOWN_PARAMETER, UNKNOWN_MODEL = "unknown-field", "unknown-parameter", "unknown-model"
UNKNOWN_PATH = "unknown-path"
_WORDS = {
    UNKNOWN_FIELD: "unknown request fields",
    UNKNOWN_PARAMETER: "unknown sampling parameters",
    UNKNOWN_MODEL: "unknown names of models",
}


@dataclass(frozen=True)
class Honesty:
    """The results of requests with something unknown, by the unknown thing: the dialects that were asked."""

    ignored: dict[str, tuple[str, ...]]
    """Answered as if it were not there."""
    refused: dict[str, tuple[str, ...]]

    @property
    def asked(self) -> bool:
        """True if any dialect was asked, and answered."""
        return bool(self.ignored or self.refused)

    @property
    def trusted(self) -> bool:
        """True if the absence of what was asked for shows that the target does not have it."""
        fields = (UNKNOWN_FIELD, UNKNOWN_PARAMETER)
        return not any(self.ignored.get(field) for field in fields) and any(map(self.refused.get, fields))

    @property
    def caveat(self) -> str:
        """A clause about how far the absence of something can be trusted; empty if it can."""
        if self.trusted:
            return ""
        if not self.ignored.get(UNKNOWN_FIELD) and not self.ignored.get(UNKNOWN_PARAMETER):
            return f"weak: without the scenario `{SCENARIO}`, absence proves little"
        return "weak: this server ignores unknown fields, so absence proves little"

    def remarks(self) -> list[str]:
        """Return remarks that a reader of the verdicts needs, one line for each thing that is ignored."""
        return [
            f"{words} are ignored, not refused ({', '.join(self.ignored[unknown])})"
            for unknown, words in _WORDS.items()
            if unknown in self.ignored
        ]


def honesty(streams: Iterable[Answer]) -> Honesty:
    """Look what became of the requests of the scenario that asks for the unknown."""
    ignored: dict[str, list[str]] = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    for stream in streams:
        unknown = stream.exchange.label
        if stream.exchange.scenario != SCENARIO or unknown not in _WORDS:
            continue
        if stream.refused:
            refused[unknown].append(stream.dialect)
        elif stream.answered:
            ignored[unknown].append(stream.dialect)
    return Honesty(_by_name(ignored), _by_name(refused))


def _by_name(found: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {unknown: tuple(sorted(dialects)) for unknown, dialects in found.items()}
