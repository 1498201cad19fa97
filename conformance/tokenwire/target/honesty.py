"""Honesty: the target's treatment of unknown fields.

If a server ignores unknown fields, the absence of an output shows nothing, because it may have ignored the
request for it. If it refuses them, its absences can be trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tokenwire.dialects.recognition import ASKS_FOR_THE_UNKNOWN
from tokenwire.record import Answer

SCENARIO = ASKS_FOR_THE_UNKNOWN
"""The scenario with unknown fields. The label of an exchange names the field."""

UNKNOWN_FIELD, UNKNOWN_PARAMETER, UNKNOWN_MODEL = "unknown-field", "unknown-parameter", "unknown-model"
UNKNOWN_PATH = "unknown-path"
_WORDS = {
    UNKNOWN_FIELD: "unknown request fields",
    UNKNOWN_PARAMETER: "unknown sampling parameters",
    UNKNOWN_MODEL: "unknown names of models",
}


@dataclass(frozen=True)
class Honesty:
    """The dialects that were tested with each unknown thing, by result."""

    ignored: dict[str, tuple[str, ...]]
    """Dialects that answered as if the unknown thing were not there."""
    refused: dict[str, tuple[str, ...]]

    @property
    def asked(self) -> bool:
        """True if any dialect was tested and answered."""
        return bool(self.ignored or self.refused)

    @property
    def trusted(self) -> bool:
        """True if the absence of a requested output shows that the target does not have it."""
        fields = (UNKNOWN_FIELD, UNKNOWN_PARAMETER)
        return not any(self.ignored.get(field) for field in fields) and any(map(self.refused.get, fields))

    @property
    def caveat(self) -> str:
        """A clause about doubtful absences; empty if they can be trusted."""
        if self.trusted:
            return ""
        if not self.ignored.get(UNKNOWN_FIELD) and not self.ignored.get(UNKNOWN_PARAMETER):
            return f"weak: without the scenario `{SCENARIO}`, absence proves little"
        return "weak: this server ignores unknown fields, so absence proves little"

    def remarks(self) -> list[str]:
        """Return remarks for the reader of the verdicts, one line for each thing that is ignored."""
        return [
            f"{words} are ignored, not refused ({', '.join(self.ignored[unknown])})"
            for unknown, words in _WORDS.items()
            if unknown in self.ignored
        ]


def honesty(streams: Iterable[Answer]) -> Honesty:
    """Collect the results of the scenario with unknown fields."""
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
