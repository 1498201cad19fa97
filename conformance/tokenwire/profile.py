"""Profiles: the frozen sets of requirements that a server can be held to (`spec/profiles/v1.yaml`)."""

from __future__ import annotations

from functools import cache

import yaml

from tokenwire.spec_files import spec_root


@cache
def load_profiles() -> dict[str, tuple[str, ...]]:
    """The ids of the requirements of each profile, by its name."""
    published = yaml.safe_load((spec_root() / "profiles" / "v1.yaml").read_text("utf-8"))
    return {name: tuple(ids) for name, ids in published["profiles"].items()}
