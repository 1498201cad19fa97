"""The kill matrix itself: what faults turned red, held against what the specification says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from tokenwire.requirement import Requirement
from tokenwire_faults.catalogue import KnownFault


@dataclass(frozen=True)
class Kill:
    """A requirement that a fault turned red."""

    message: str
    """The message of the first violation."""
    scenarios: frozenset[str]
    """The scenarios with a violation."""


@dataclass(frozen=True)
class Trial:
    """One fault, asked of one server."""

    fault: str
    server: str
    kills: Mapping[str, Kill] = field(default_factory=dict)
    """The kills by requirement id."""
    failure: str = ""
    """The reason why the trial is incomplete: a check crashed, or the server did not answer to the end."""


@dataclass(frozen=True)
class Matrix:
    """All trials of some faults."""

    requirements: Mapping[str, Requirement]
    faults: Mapping[str, KnownFault]
    """The faults that were tried."""
    trials: Sequence[Trial]
    consequences: Set[tuple[str, str]] = frozenset()
    """Pairs of requirement and fault that may kill without being named."""
    families: Sequence[Set[str]] = ()
    """Requirements that see one disagreement, each at another cut or place."""
    whole: bool = True
    """All faults were tried: a requirement that killed none kills none."""

    @cached_property
    def cells(self) -> dict[tuple[str, str], dict[str, Kill]]:
        """Requirement and fault -> the kill, by server; only where there is one."""
        cells: dict[tuple[str, str], dict[str, Kill]] = {}
        for trial in self.trials:
            for requirement, kill in trial.kills.items():
                cells.setdefault((requirement, trial.fault), {})[trial.server] = kill
        return cells

    @cached_property
    def named(self) -> set[tuple[str, str]]:
        """The pairs of requirement and fault of which the specification says that they kill."""
        return {
            (row.id, fault)
            for row in self.requirements.values()
            for fault in row.kills
            if self.whole or fault in self.faults
        }

    @cached_property
    def kindred(self) -> set[tuple[str, str]]:
        """Kills that no row or note speaks of, of requirements of which a relative is known to be violated.

        Which of a family turns red depends on the cut of a stream: these may, and need not.
        """
        known = self.named | self.consequences
        return {
            (requirement, fault)
            for requirement, fault in self.cells.keys() - known
            for family in self.families
            if requirement in family and any((relative, fault) in known for relative in family)
        }

    @cached_property
    def unexpected(self) -> set[tuple[str, str]]:
        """The kills that rows and notes do not list, and that are not kindred of listed ones."""
        return self.cells.keys() - self.named - self.consequences - self.kindred

    def tried_on(self, fault: str) -> int:
        """On how many servers a fault was tried."""
        return sum(trial.fault == fault for trial in self.trials)

    @property
    def killed(self) -> list[str]:
        """The faults that a requirement killed that names them, on every server that they were tried on."""
        survived = {trial.fault for trial in self._survivors()}
        return [name for name in self.to_kill if name not in survived]

    @property
    def to_kill(self) -> list[str]:
        """The faults that break something. Others show that the suite leaves what is legal in peace."""
        return [name for name, fault in self.faults.items() if not fault.unseen]

    @property
    def killing(self) -> list[str]:
        """The requirements that killed a fault that they name."""
        kill = {requirement for requirement, _ in self.cells.keys() & self.named}
        return [name for name in self.requirements if name in kill]

    @property
    def demanded(self) -> list[str]:
        """The requirements that have to kill: all with a check; in a part of the matrix, those it names."""
        named = {requirement for requirement, _ in self.named}
        return [
            name
            for name, row in self.requirements.items()
            if not row.excluded and (self.whole or name in named)
        ]

    def _survivors(self) -> Iterator[Trial]:
        for trial in self.trials:
            if self.faults[trial.fault].unseen:
                continue
            if not any((requirement, trial.fault) in self.named for requirement in trial.kills):
                yield trial

    @property
    def complaints(self) -> list[str]:
        """The disagreements of suite, faults and specification, a line for each; a good matrix has none."""
        return list(
            chain(
                (
                    f"{trial.fault} on {trial.server}: {trial.failure}"
                    for trial in self.trials
                    if trial.failure
                ),
                (
                    f"{trial.fault} on {trial.server} survives: no requirement that names it turned red"
                    for trial in self._survivors()
                ),
                (
                    f"{requirement} names {fault}, and stays green"
                    for requirement, fault in sorted(self.named - self.cells.keys())
                ),
                (
                    f"{requirement} kills {fault} unexpectedly, on {server}: {kill.message}"
                    for (requirement, fault), kills in sorted(self.cells.items())
                    if (requirement, fault) in self.unexpected
                    for server, kill in kills.items()
                ),
                (
                    f"{requirement} kills nothing"
                    for requirement in self.demanded
                    if requirement not in self.killing
                ),
            )
        )
