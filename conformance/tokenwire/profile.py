"""Profiles: fixed sets of requirements that a server can claim to satisfy (`spec/profiles/v*.yaml`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.levels import levels
from tokenwire.requirement import Basis, Level, Requirement, load_requirements
from tokenwire.spec_files import read_yaml, spec_root

_FOLDER = spec_root() / "profiles"


VERSION = max(int(path.stem[1:]) for path in _FOLDER.glob("v*.yaml"))
"""The version that is used for a profile name without a version.

It is the newest version, published or draft.
"""
_FAMILIES = frozenset({Basis.SGLANG.value, Basis.VLLM.value})
"""The profiles that are each the contract of one server family."""
_DECIDED = frozenset({Verdict.PASS, Verdict.WARN, Verdict.FAIL})


@cache
def load_profiles(version: int = VERSION) -> dict[str, tuple[str, ...]]:
    """Return the requirement ids of each profile in a version, by the profile's name. The version
    must exist.
    """
    published = read_yaml(_FOLDER / f"v{version}.yaml")
    return {name: tuple(ids) for name, ids in published["profiles"].items()}


@cache
def known_profiles() -> dict[str, tuple[str, ...]]:
    """Return the requirement ids of each profile, by name.

    The name `core` means the newest version, and `core@1` means version 1.
    """
    versions = sorted(int(path.stem[1:]) for path in _FOLDER.glob("v*.yaml"))
    named = {f"{name}@{n}": ids for n in versions for name, ids in load_profiles(n).items()}
    return {**load_profiles(), **named}


@dataclass(frozen=True)
class Standing:
    """The result of a run for one profile: how many of its MUSTs the server satisfies."""

    name: str
    """The name of the profile."""
    version: int
    date: str
    title: str
    means: str
    """The promise of the profile to a client (`ProfileLevel.means`)."""
    holds: int
    of: int
    """The number of MUSTs that apply to this server and its server family."""
    violated: tuple[str, ...]
    undecided: tuple[str, ...]
    """MUSTs for which this run has neither a PASS nor a violation."""
    missing: tuple[str, ...]
    """Required capabilities that were not observed.

    A server that lacks one of them does not satisfy the profile.
    """

    @property
    def shown(self) -> bool:
        """True if the run is conclusive: it observed all required capabilities, or the violation
        of a MUST.
        """
        return not self.missing or bool(self.violated)

    def as_json(self) -> dict[str, Any]:
        """Return the standing as JSON, for a report."""
        return {**asdict(self), "shown": self.shown}


def standing(name: str, verdicts: Mapping[str, Verdict], families: Collection[str]) -> Standing:
    """Compute the result for a profile from the verdict on each requirement.

    The profile must be known. `families` are the server families whose dialects the server uses.
    """
    subject, _, version = name.partition("@")
    known, level = load_requirements(), levels()[subject]
    judged = {member: verdicts[member] for member in known_profiles()[name] if member in verdicts}
    evident = {
        capability
        for member in judged
        if judged[member] in _DECIDED
        for capability in known[member].applies_when
    }
    missing = [need for need, capabilities in level.needs.items() if not capabilities & evident]
    if not any(verdict in _DECIDED for verdict in judged.values()):
        missing = missing or ["any of its sentences"]
    if subject in _FAMILIES and subject not in families:
        missing.append(f"answers in the shapes of {level.title}")
    musts = {member: verdict for member, verdict in judged.items() if _is_must(known[member], families)}
    violated = [member for member, verdict in musts.items() if verdict is Verdict.FAIL]
    held = [member for member, verdict in musts.items() if verdict is Verdict.PASS]
    applying = [member for member, verdict in musts.items() if verdict is not Verdict.UNSUPPORTED]
    return Standing(
        subject,
        int(version or VERSION),
        level.date,
        level.title,
        level.means,
        len(held),
        len(applying),
        tuple(violated),
        tuple(member for member in applying if member not in {*held, *violated}),
        tuple(missing),
    )


def dated_levels(verdicts: Mapping[str, Verdict], families: Collection[str]) -> list[Standing]:
    """Return the results for all profiles whose requirements were all judged."""
    return [
        standing(name, verdicts, families)
        for name, members in load_profiles().items()
        if verdicts.keys() >= set(members)
    ]


def _is_must(row: Requirement, families: Collection[str]) -> bool:
    """True if a requirement is a MUST for a server of at least one of these families."""
    return (
        Level.MUST in {row.level_for(family) for family in families} if families else row.level is Level.MUST
    )


def selected(profiles: Collection[str], requirements: Collection[str] = ()) -> list[Requirement] | None:
    """Return the named requirements.

    If none are named, return the requirements of the profiles. None means all requirements. The names must be
    known.
    """
    known = load_requirements()
    if requirements:
        return [known[name] for name in requirements]
    wanted = {member for name in profiles for member in known_profiles()[name]}
    return [row for row in known.values() if row.id in wanted] if profiles else None
