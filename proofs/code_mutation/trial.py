"""Try one mutant with the tests that run its line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

from proofs.code_mutation.covering import Covering
from proofs.code_mutation.forking import in_fork, run_pytest
from proofs.code_mutation.making import Mutant

_FILES_AT_ONCE = (3, 9)
"""The numbers of test files after which a batch ends. Collecting a file takes time, and most mutants fail
early.
"""
_LONGEST_S = 20
"""The CPU seconds of tests for one mutant. The fastest tests are chosen."""


class Outcome(StrEnum):
    """The possible outcomes of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "killed by the time limit"
    SURVIVED = "survived"
    NOT_COVERED = "survived, and no test runs its line"

    @property
    def killed(self) -> bool:
        return self in {Outcome.KILLED, Outcome.TIMED_OUT}


class Chosen:
    """A pytest plugin that selects and orders the tests to run."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = (item for item in items if item.nodeid in self._order)
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


def try_mutant(root: Path, mutant: Mutant, covering: Covering) -> Outcome:
    """Run the tests of a mutant's line until one fails. Files whose tests are fastest come first."""
    tests = sorted(covering.of(mutant), key=lambda test: covering.seconds[test])
    if not tests:
        return Outcome.NOT_COVERED
    spent, of_file = 0.0, defaultdict[str, list[str]](list)
    for test in tests:
        spent += covering.seconds[test]
        if spent <= _LONGEST_S or test == tests[0]:
            of_file[test.partition("::")[0]].append(test)
    files = sorted(of_file, key=lambda file: sum(covering.seconds[test] for test in of_file[file]))
    first, then = _FILES_AT_ONCE
    for batch in filter(None, (files[:first], files[first:then], files[then:])):
        chosen = sorted((test for file in batch for test in of_file[file]), key=tests.index)
        seconds = sum(covering.seconds[test] for test in chosen)
        run = partial(_run_mutated, root / mutant.path, mutant, batch, chosen)
        status = in_fork(run, cpu_s=round(30 + 3 * seconds), wall_s=120 + 20 * seconds)
        if status is None:
            return Outcome.TIMED_OUT
        if status != pytest.ExitCode.OK:
            return Outcome.KILLED
    return Outcome.SURVIVED


def _run_mutated(path: Path, mutant: Mutant, files: Sequence[str], tests: Sequence[str]) -> int:
    """Import our code with the mutant in place of one file, run the tests, and return pytest's
    exit status.
    """
    code = compile(mutant.applied(path.read_bytes()), path, "exec")
    as_it_is = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return code if loader.path == str(path) else as_it_is(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]  # only this fork is affected
    return run_pytest(*files, "--exitfirst", plugin=Chosen(tests))
