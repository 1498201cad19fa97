"""Facts about the faults of the reference engine, read from their table: the site does not need the
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from docs_build.published import ROOT
from tokenwire.spec_files import read_yaml

_TABLE = ROOT / "reference" / "tokenwire_faults" / "faults.yaml"


@dataclass(frozen=True)
class Fault:
    """One entry of the table."""

    name: str
    does: str
    """Its effect, in a sentence or two."""
    upstream: tuple[str, ...]
    """The threads that tell of the bug."""
    room: str
    """The part of a server where the bug lived."""


@cache
def faults() -> Mapping[str, Fault]:
    """Return all faults by name."""
    found = [
        Fault(name, entry["does"], tuple(entry["bug"]["upstream"]), room)
        for room, entries in read_yaml(_TABLE)["rooms"].items()
        for name, entry in entries.items()
    ]
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}
