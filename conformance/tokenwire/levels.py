"""Levels: the promise of each profile, and the sentences that keep it (`spec/profiles/levels.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed


@dataclass(frozen=True)
class ProfileLevel:
    """The promises of a profile, and the conditions for claiming it."""

    date: str
    title: str
    means: str
    """The promise to a client of a server that keeps all its MUSTs, in a sentence."""
    needs: Mapping[str, frozenset[str]]
    """Groups of alternative capabilities, by their purpose. The profile applies to servers with one of each
    group."""
    promises: Mapping[str, tuple[str, ...]]
    """The promises to a client, in words, and the requirements that keep them."""
    gathers: frozenset[str] = frozenset()
    """The subjects and chapters that the profile includes completely."""

    @cached_property
    def promised(self) -> frozenset[str]:
        """The requirements that keep at least one promise."""
        return frozenset(name for names in self.promises.values() for name in names)


@cache
def levels() -> dict[str, ProfileLevel]:
    """Return the level of each profile, by name."""
    written = read_yaml(spec_root() / "profiles" / "levels.yaml")
    return {
        name: typed(ProfileLevel, {"date": written["date"], **level}, f"level {name!r}")
        for name, level in written["levels"].items()
    }
