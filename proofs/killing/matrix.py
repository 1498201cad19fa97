"""The data of the kill matrix: the requirements that failed with each fault, compared with the
specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from tokenwire.requirement import Requirement
from tokenwire_faults.catalogue import KnownFault


@dataclass(frozen=True)
class Kill:
    """A requirement that failed because of a fault."""

    message: str
    """The message of the first violation."""
    scenarios: frozenset[str]
    """The scenarios with a violation."""


@dataclass(frozen=True)
class Trial:
    """The result of one fault on one server."""

    fault: str
    server: str
    kills: Mapping[str, Kill] = field(default_factory=dict)
    """The kills by requirement id."""
    failure: str = ""
    """The reason why the trial is incomplete: a check crashed, or the server stopped answering."""


@dataclass(frozen=True)
class Matrix:
    """The results of all trials."""

    requirements: Mapping[str, Requirement]
    faults: Mapping[str, KnownFault]
    """The faults that were tried."""
    trials: Sequence[Trial]
    consequences: Set[tuple[str, str]] = frozenset()
    """Pairs of requirement and fault in which the requirement may fail without naming the fault."""
    families: Sequence[Set[str]] = ()
    """Sets of related requirements, which may fail because of the same error."""
    whole: bool = True
    """True if all faults were tried, so that every requirement should have failed with at least one fault."""

    @cached_property
    def cells(self) -> dict[tuple[str, str], dict[str, Kill]]:
        """The kills by requirement and fault, and then by server."""
        cells: dict[tuple[str, str], dict[str, Kill]] = {}
        for trial in self.trials:
            for requirement, kill in trial.kills.items():
                cells.setdefault((requirement, trial.fault), {})[trial.server] = kill
        return cells

    @cached_property
    def named(self) -> set[tuple[str, str]]:
        """The pairs of requirement and fault in which the requirement names the fault."""
        return {
            (row.id, fault)
            for row in self.requirements.values()
            for fault in row.kills
            if self.whole or fault in self.faults
        }

    @cached_property
    def kindred(self) -> set[tuple[str, str]]:
        """Kills that are not listed, but whose requirement is related to that of a listed kill.

        Which related requirement fails depends on how a stream is divided, so these kills are optional.
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
        """Kills that are neither listed nor related to a listed kill."""
        return self.cells.keys() - self.named - self.consequences - self.kindred

    def tried_on(self, fault: str) -> int:
        """Return the number of servers on which a fault was tried."""
        return sum(trial.fault == fault for trial in self.trials)

    @property
    def killed(self) -> list[str]:
        """The faults that are killed on every server by a requirement that names them."""
        survived = {trial.fault for trial in self._survivors()}
        return [name for name in self.to_kill if name not in survived]

    @property
    def to_kill(self) -> list[str]:
        """The faults that violate something. The other faults show that the suite accepts what is legal."""
        return [name for name, fault in self.faults.items() if not fault.unseen]

    @property
    def killing(self) -> list[str]:
        """The requirements that killed at least one fault that they name."""
        kill = {requirement for requirement, _ in self.cells.keys() & self.named}
        return [name for name in self.requirements if name in kill]

    @property
    def demanded(self) -> list[str]:
        """The requirements that must kill: all with a check, or those that name a tried fault in a partial
        matrix.
        """
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
        """The disagreements between suite, faults and specification, one line each. There should be none."""
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
