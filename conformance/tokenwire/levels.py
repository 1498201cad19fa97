"""Levels: the promises of each profile, and the requirements that support them
(`spec/profiles/levels.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed


@dataclass(frozen=True)
class ProfileLevel:
    """The promises of a profile, and the conditions under which a server may claim it."""

    date: str
    title: str
    means: str
    """A sentence about what a client can rely on if the server satisfies all MUSTs of the profile."""
    needs: Mapping[str, frozenset[str]]
    """Groups of alternative capabilities, by purpose.

    The profile applies to a server that has at least one capability of each group.
    """
    promises: Mapping[str, tuple[str, ...]]
    """The promises to a client, each with the requirements that support it."""
    gathers: frozenset[str] = frozenset()
    """The subjects and chapters whose requirements all belong to the profile."""

    @cached_property
    def promised(self) -> frozenset[str]:
        """The requirements that support at least one promise."""
        return frozenset(name for names in self.promises.values() for name in names)


@cache
def levels() -> dict[str, ProfileLevel]:
    """Return the level of each profile, by the profile's name."""
    written = read_yaml(spec_root() / "profiles" / "levels.yaml")
    return {
        name: typed(ProfileLevel, {"date": written["date"], **level}, f"level {name!r}")
        for name, level in written["levels"].items()
    }
