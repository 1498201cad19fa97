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
    """The standing of a server in a profile."""

    name: str
    requirements: int
    decided: int
    """Those with evidence, right or wrong."""
    violated: int
    shown: bool
    """Whether a requirement was decided that needs what the profile is about."""


def standing(name: str, decided: Collection[str], violated: Collection[str]) -> Standing:
    """What a run that decided some requirements, and saw some of them violated, tells of a profile.

    The name must be known.
    """
    known, needs, members = load_requirements(), _shown_by()[name], load_profiles()[name]
    evident = [member for member in members if member in decided]
    shown = any(needs & set(known[member].applies_when) for member in evident) if needs else bool(evident)
    return Standing(name, len(members), len(evident), sum(member in violated for member in evident), shown)


@dataclass(frozen=True)
class _DatedLevel:
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


def dated_levels(verdicts: Mapping[str, Verdict]) -> list[_DatedLevel]:
    """What the verdict on each requirement amounts to, for each profile that was judged as a whole."""
    written = read_yaml(_FOLDER / "levels.yaml")
    known, decided = load_requirements(), {Verdict.PASS, Verdict.WARN, Verdict.FAIL}
    levels = []
    for name, members in load_profiles().items():
        if not verdicts.keys() >= set(members):
            continue
        musts = [verdicts[member] for member in members if known[member].level is Level.MUST]
        stands = standing(name, [member for member in members if verdicts[member] in decided], ())
        levels.append(
            _DatedLevel(
                name,
                str(written["date"]),
                **written["levels"][name],
                holds=musts.count(Verdict.PASS),
                of=len(musts) - musts.count(Verdict.UNSUPPORTED),
                violated=musts.count(Verdict.FAIL),
                shown=stands.shown,
            )
        )
    return levels


def selected(profiles: Collection[str], requirements: Collection[str] = ()) -> list[Requirement] | None:
    """The named requirements, or those of the profiles where none are named; None for all.

    The names must be known.
    """
    known = load_requirements()
    if requirements:
        return [known[name] for name in requirements]
    wanted = {member for name in profiles for member in load_profiles()[name]}
    return [row for row in known.values() if row.id in wanted] if profiles else None
