"""Honesty: how the server treats unknown request fields.

If a server ignores unknown fields, a missing output proves nothing, because it may have ignored the field
that enables it. If it refuses unknown fields, a missing output proves that the server does not have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tokenwire.dialects.recognition import ASKS_FOR_THE_UNKNOWN
from tokenwire.record import Answer

SCENARIO = ASKS_FOR_THE_UNKNOWN
"""The scenario with unknown fields. The label of an exchange says which field is unknown."""

UNKNOWN_FIELD, UNKNOWN_PARAMETER, UNKNOWN_MODEL = "unknown-field", "unknown-parameter", "unknown-model"
UNKNOWN_PATH = "unknown-path"
_WORDS = {
    UNKNOWN_FIELD: "unknown request fields",
    UNKNOWN_PARAMETER: "unknown sampling parameters",
    UNKNOWN_MODEL: "unknown names of models",
}


@dataclass(frozen=True)
class Honesty:
    """For each unknown field or name, the dialects that ignored it and those that refused it."""

    ignored: dict[str, tuple[str, ...]]
    """The dialects that answered as if the unknown field or name were not in the request."""
    refused: dict[str, tuple[str, ...]]

    @property
    def asked(self) -> bool:
        """True if at least one dialect was tested and answered."""
        return bool(self.ignored or self.refused)

    @property
    def trusted(self) -> bool:
        """True if a missing output proves that the server does not have it."""
        fields = (UNKNOWN_FIELD, UNKNOWN_PARAMETER)
        return not any(self.ignored.get(field) for field in fields) and any(map(self.refused.get, fields))

    @property
    def caveat(self) -> str:
        """A clause for messages about missing outputs. Empty if they are proof."""
        if self.trusted:
            return ""
        if not self.ignored.get(UNKNOWN_FIELD) and not self.ignored.get(UNKNOWN_PARAMETER):
            return f"weak: without the scenario `{SCENARIO}`, absence proves little"
        return "weak: this server ignores unknown fields, so absence proves little"

    def remarks(self) -> list[str]:
        """Return a remark for the report on each unknown field or name that the server ignores."""
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
