"""Profiles: the frozen sets of requirements that a server can be held to (`spec/profiles/v1.yaml`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import Level, Requirement, load_requirements
from tokenwire.spec_files import read_yaml, spec_root

_FOLDER = spec_root() / "profiles"


@cache
def load_profiles() -> dict[str, tuple[str, ...]]:
    """The ids of the requirements of each profile, by its name."""
    published = read_yaml(_FOLDER / "v1.yaml")
    return {name: tuple(ids) for name, ids in published["profiles"].items()}


@cache
def _shown_by() -> dict[str, frozenset[str]]:
    return {name: frozenset(needs) for name, needs in read_yaml(_FOLDER / "shown_by.yaml").items()}


@dataclass(frozen=True)
class Standing:
    """What a run tells of a profile."""

    name: str
    requirements: int
    decided: int
    """Those of which something was seen, right or wrong."""
    violated: int
    shown: bool
    """Something was decided that needs what the profile is about: nothing else says that it holds."""


def standing(name: str, decided: Collection[str], violated: Collection[str]) -> Standing:
    """What a run that decided some requirements, and saw some of them violated, tells of a profile.

    The name must be known.
    """
    known, needs, members = load_requirements(), _shown_by()[name], load_profiles()[name]
    own = [one for one in members if one in decided]
    shown = any(needs & set(known[one].applies_when) for one in own) if needs else bool(own)
    return Standing(name, len(members), len(own), sum(one in violated for one in own), shown)


@dataclass(frozen=True)
class DatedLevel:
    """What a server can say of itself: how many MUSTs of a profile hold, at the date of the levels."""

    name: str
    """That of the profile."""
    date: str
    title: str
    means: str
    """What a client may rely on where all of them hold, in a sentence."""
    holds: int
    of: int
    """The MUSTs that apply: without those on what the server does not have."""
    violated: int
    shown: bool
    """As of `Standing`."""


def dated_levels(verdicts: Mapping[str, Verdict]) -> list[DatedLevel]:
    """What the verdict on each requirement amounts to, for each profile that was judged as a whole."""
    written = read_yaml(_FOLDER / "levels.yaml")
    known, decided = load_requirements(), {Verdict.PASS, Verdict.WARN, Verdict.FAIL}
    told = []
    for name, members in load_profiles().items():
        if not verdicts.keys() >= set(members):
            continue
        own = [verdicts[one] for one in members if known[one].level is Level.MUST]
        stands = standing(name, [one for one in members if verdicts[one] in decided], ())
        told.append(
            DatedLevel(
                name,
                str(written["date"]),
                **written["levels"][name],
                holds=own.count(Verdict.PASS),
                of=len(own) - own.count(Verdict.UNSUPPORTED),
                violated=own.count(Verdict.FAIL),
                shown=stands.shown,
            )
        )
    return told


def selected(profiles: Collection[str], requirements: Collection[str] = ()) -> list[Requirement] | None:
    """The named requirements, or those of the profiles where none are named; None for all.

    The names must be known.
    """
    known = load_requirements()
    if requirements:
        return [known[name] for name in requirements]
    wanted = {one for name in profiles for one in load_profiles()[name]}
    return [row for row in known.values() if row.id in wanted] if profiles else None
