"""Profiles: the frozen sets of requirements that a server can be held to (`spec/profiles/v1.yaml`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from tokenwire.requirement import Requirement, load_requirements
from tokenwire.spec_files import read_yaml, spec_root


@cache
def load_profiles() -> dict[str, tuple[str, ...]]:
    """The ids of the requirements of each profile, by its name."""
    published = read_yaml(spec_root() / "profiles" / "v1.yaml")
    return {name: tuple(ids) for name, ids in published["profiles"].items()}


def selected(profiles: Collection[str], requirements: Collection[str] = ()) -> list[Requirement] | None:
    """The named requirements, or those of the profiles where none are named; None for all.

    The names must be known.
    """
    known = load_requirements()
    if requirements:
        return [known[name] for name in requirements]
    wanted = {one for name in profiles for one in load_profiles()[name]}
    return [row for row in known.values() if row.id in wanted] if profiles else None
