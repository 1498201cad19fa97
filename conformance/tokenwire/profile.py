"""Profiles: the frozen sets of requirements that a server can be held to (`spec/profiles/v*.yaml`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import Basis, Level, Requirement, load_requirements
from tokenwire.spec_files import read_yaml, spec_root

_FOLDER = spec_root() / "profiles"


VERSION = 1
"""The version of the profiles that is meant where a name says none: the newest that is published."""
_FAMILIES = frozenset({Basis.SGLANG.value, Basis.VLLM.value})
"""The profiles that are the contract of one family."""


@cache
def load_profiles(version: int = VERSION) -> dict[str, tuple[str, ...]]:
    """The ids of the requirements of each profile of a version, by its name. The version must exist."""
    published = read_yaml(_FOLDER / f"v{version}.yaml")
    return {name: tuple(ids) for name, ids in published["profiles"].items()}


@cache
def known_profiles() -> dict[str, tuple[str, ...]]:
    """The members of each profile by its name: `core` of the newest version, `core@1` of another."""
    versions = sorted(int(path.stem[1:]) for path in _FOLDER.glob("v*.yaml"))
    named = {f"{name}@{n}": ids for n in versions for name, ids in load_profiles(n).items()}
    return {**load_profiles(), **named}


def version_of(name: str) -> int:
    """The version that the name of a profile means."""
    return int(name.partition("@")[2] or VERSION)


@cache
def _shown_by() -> dict[str, frozenset[str]]:
    return {name: frozenset(needs) for name, needs in read_yaml(_FOLDER / "shown_by.yaml").items()}


@dataclass(frozen=True)
class Standing:
    """The standing of a server in a profile."""

    name: str
    version: int
    requirements: int
    decided: int
    """Those with evidence, right or wrong."""
    violated: int
    shown: bool
    """Whether a requirement was decided that needs what the profile is about, by a server of the family whose
    contract it is.
    """


def standing(
    name: str, decided: Collection[str], violated: Collection[str], families: Collection[str]
) -> Standing:
    """What a run that decided some requirements, and saw some of them violated, tells of a profile.

    `families`: those whose dialects the server speaks. The name must be known.
    """
    subject = name.partition("@")[0]
    known, needs, members = load_requirements(), _shown_by()[subject], known_profiles()[name]
    evident = [member for member in members if member in decided]
    about = any(needs & set(known[member].applies_when) for member in evident) if needs else bool(evident)
    shown = about and (subject not in _FAMILIES or subject in families)
    wrong = sum(member in violated for member in evident)
    return Standing(subject, version_of(name), len(members), len(evident), wrong, shown)


@dataclass(frozen=True)
class _DatedLevel:
    """What a server can say of itself: how many MUSTs of a profile hold, at the date of the levels."""

    name: str
    """That of the profile."""
    version: int
    date: str
    title: str
    means: str
    """What a client may rely on where all of them hold, in a sentence."""
    holds: int
    of: int
    """The MUSTs that apply: without those on what the server does not have, and those of other families."""
    violated: int
    undecided: int
    shown: bool
    """As of `Standing`."""


def dated_levels(verdicts: Mapping[str, Verdict], families: Collection[str]) -> list[_DatedLevel]:
    """What the verdict on each requirement amounts to, for each profile that was judged as a whole.

    `families`: those whose dialects the server speaks.
    """
    written = read_yaml(_FOLDER / "levels.yaml")
    known, decided = load_requirements(), {Verdict.PASS, Verdict.WARN, Verdict.FAIL}
    levels = []
    for name, members in load_profiles().items():
        if not verdicts.keys() >= set(members):
            continue
        musts = [verdicts[member] for member in members if _is_must(known[member], families)]
        stands = standing(name, [member for member in members if verdicts[member] in decided], (), families)
        applying, holds = len(musts) - musts.count(Verdict.UNSUPPORTED), musts.count(Verdict.PASS)
        violated = musts.count(Verdict.FAIL)
        levels.append(
            _DatedLevel(
                name,
                VERSION,
                str(written["date"]),
                **written["levels"][name],
                holds=holds,
                of=applying,
                violated=violated,
                undecided=applying - holds - violated,
                shown=stands.shown,
            )
        )
    return levels


def _is_must(row: Requirement, families: Collection[str]) -> bool:
    """Whether a server that speaks the dialects of some families is held to a requirement."""
    return (
        Level.MUST in {row.level_for(family) for family in families} if families else row.level is Level.MUST
    )


def selected(profiles: Collection[str], requirements: Collection[str] = ()) -> list[Requirement] | None:
    """The named requirements, or those of the profiles where none are named; None for all.

    The names must be known.
    """
    known = load_requirements()
    if requirements:
        return [known[name] for name in requirements]
    wanted = {member for name in profiles for member in known_profiles()[name]}
    return [row for row in known.values() if row.id in wanted] if profiles else None
