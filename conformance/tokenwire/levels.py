"""Levels: what each profile promises, and which sentences keep the promises (`spec/profiles/levels.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed


@dataclass(frozen=True)
class ProfileLevel:
    """The promise of a profile, and its conditions."""

    date: str
    title: str
    means: str
    """The promise to a client if all of its MUSTs hold, in a sentence."""
    needs: Mapping[str, frozenset[str]]
    """Capabilities by what they amount to: without any one of each the profile says nothing of a server."""
    promises: Mapping[str, tuple[str, ...]]
    """The promises to a client, in words, and the requirements that keep them."""
    gathers: frozenset[str] = frozenset()
    """The subjects and chapters of which it holds every requirement."""

    @cached_property
    def promised(self) -> frozenset[str]:
        """The requirements that keep any of its promises."""
        return frozenset(name for names in self.promises.values() for name in names)


@cache
def levels() -> dict[str, ProfileLevel]:
    """The level of each profile, by its name."""
    written = read_yaml(spec_root() / "profiles" / "levels.yaml")
    return {
        name: typed(ProfileLevel, {"date": written["date"], **level}, f"level {name!r}")
        for name, level in written["levels"].items()
    }
