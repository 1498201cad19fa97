"""Requirements: one table row for each normative sentence of the specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tokenwire.levels import levels
from tokenwire.spec_files import read_yaml, spec_folders, spec_root
from tokenwire.typed_table import typed


class Level(StrEnum):
    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Basis(StrEnum):
    """The contract to which a sentence belongs."""

    OPENAI = "openai"
    SGLANG = "sglang"
    VLLM = "vllm"
    ANTHROPIC = "anthropic"
    TOKENWIRE = "tokenwire"
    """The sentence belongs only to this specification. No server promises it."""


@dataclass(frozen=True)
class _Tolerance:
    """A tolerance that a requirement allows (`spec/tolerances.yaml`)."""

    name: str
    value: float
    allows: str
    """A description of what the value allows."""

    def __str__(self) -> str:
        return f"{self.name} {self.value:g} ({self.allows})"


@dataclass(frozen=True)
class Requirement:
    """One row of `spec/requirements/<chapter>.yaml`."""

    id: str
    chapter: str
    level: Level
    sentence: str
    profile: str
    contract: str
    """`blackbox` if any server can be checked; `instrumented` if the server must be started in a
    special way.
    """
    oracle: str
    witnesses: int
    """The number of observations that a PASS needs in the whole run.

    An observation counts only if it could have been a violation.
    """
    applies_when: tuple[str, ...] = ()
    """The capabilities that the requirement needs. Without one of them, the verdict is UNSUPPORTED."""
    condition: str | None = None
    """A description of the event that must have happened.

    If the event did not happen, the verdict is INCONCLUSIVE.
    """
    upstream: tuple[str, ...] = ()
    excluded: str | None = None
    """The reason why no check is possible. None if there is a check."""
    kills: tuple[str, ...] = ()
    """The faults of the reference engine that the check of this requirement must find."""
    implied_by: tuple[str, ...] = ()
    """Requirements whose violation implies a violation of this one."""
    basis: tuple[Basis, ...] = ()
    """The contracts that contain this sentence."""
    breaks: str = ""
    """An example of a client that fails if a server violates the requirement.

    It is given if the sentence applies to all server families.
    """
    policies: tuple[str, ...] = ()
    """Keys of dialect tables that choose between alternatives in the sentence."""
    tolerances: tuple[_Tolerance, ...] = ()
    """The tolerances that the check allows. Empty if values must be equal."""

    def level_for(self, family: str) -> Level:
        """Return the level of the requirement for a server family.

        The level is MUST only if the family or its API promises the sentence, or if a client fails without
        it. Otherwise it is SHOULD.
        """
        promised = Basis.OPENAI in self.basis or family in self.basis or self.breaks
        return self.level if promised or self.level is not Level.MUST else Level.SHOULD

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles that include the requirement: those of its subject, its contracts, and the levels that
        promise it.
        """
        contracts = (basis.value for basis in self.basis if basis in CONTRACT_PROFILES)
        needing = (
            name
            for name, level in levels().items()
            if self.id in level.promised or level.gathers & {self.profile, self.chapter}
        )
        return tuple(dict.fromkeys((self.profile, *contracts, *needing)))


CONTRACT_PROFILES = (Basis.SGLANG, Basis.OPENAI)
"""The contracts that a server can claim to satisfy completely."""


@cache
def load_tolerances() -> dict[str, _Tolerance]:
    """Return all tolerances by name."""
    table: dict[str, dict[str, Any]] = read_yaml(spec_root() / "tolerances.yaml")
    return {name: _Tolerance(name, float(row["value"]), row["allows"]) for name, row in table.items()}


def tolerance(name: str) -> float:
    """Return the value of a tolerance. Raises KeyError for an unknown name."""
    return load_tolerances()[name].value


def _tolerances(row: Mapping[str, Any]) -> list[_Tolerance]:
    known, named = load_tolerances(), row.get("tolerances", ())
    if unknown := [name for name in named if name not in known]:
        raise ValueError(f"{row['id']} allows {unknown[0]!r}, which is not in spec/tolerances.yaml")
    return [known[name] for name in named]


def _from_row(chapter: Mapping[str, Any], row: Mapping[str, Any]) -> Requirement:
    fields = {"profile": chapter["profile"], **row, "chapter": chapter["chapter"]}
    return typed(Requirement, fields | {"tolerances": _tolerances(row)}, f"requirement {row['id']!r}")


def ancestors(requirements: Mapping[str, Requirement]) -> dict[str, tuple[str, ...]]:
    """Map each requirement to all requirements whose violation implies a violation of the first.

    Indirect implications are included, and the most distant requirements come first. Raises ValueError for an
    unknown requirement or a cycle.
    """
    graph = TopologicalSorter({name: row.implied_by for name, row in requirements.items()})
    try:
        order = list(graph.static_order())
    except CycleError as error:
        raise ValueError(f"implied_by has a cycle: {' <- '.join(error.args[1])}") from error
    unknown = [name for name in order if name not in requirements]
    if unknown:
        raise ValueError(f"implied_by names unknown requirements: {', '.join(unknown)}")
    found: dict[str, set[str]] = {}
    for name in order:
        row = requirements[name]
        found[name] = {*row.implied_by, *(far for near in row.implied_by for far in found[near])}
    return {name: tuple(other for other in order if other in found[name]) for name in requirements}


@cache
def load_requirements() -> dict[str, Requirement]:
    """Return all requirements by id, in the order of the specification.

    Requirements of installed extensions come last. Raises ValueError for a duplicate id, an unknown basis or
    an unknown tolerance.
    """
    requirements: dict[str, Requirement] = {}
    ours, *others = spec_folders()
    files = [ours / "requirements" / f"{name}.yaml" for name in read_yaml(ours / "chapters.yaml")]
    for file in (*files, *(file for folder in others for file in sorted(folder.glob("requirements/*.yaml")))):
        chapter = read_yaml(file)
        for row in chapter["requirements"]:
            if row["id"] in requirements:
                raise ValueError(f"requirement {row['id']!r} occurs twice; an id must be unique")
            requirements[row["id"]] = _from_row(chapter, row)
    return requirements
