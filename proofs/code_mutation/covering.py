"""The lines that each test runs, and the time that each test takes. They are gathered once for each state of
the code.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import coverage
import pytest

from proofs.code_mutation.forking import in_fork, run_pytest
from proofs.code_mutation.making import Mutant

_IN_OTHER_PROCESSES = {"tokenwire", "start_reference", "serve_reference"}
"""Fixtures of tests that run our programs in other processes, which do not contain the mutant."""
_LONGEST_FILE_S = 1200


@dataclass
class Covering:
    """For each line of code, the tests that run it. For each test, the CPU seconds that it takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    imported: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def of(self, mutant: Mutant) -> set[str]:
        """Return the tests that run the line of a mutant.

        If the line runs when the module is imported, return the tests that run any line of the module.
        """
        lines, imported = self.lines.get(mutant.path, {}), self.imported.get(mutant.path, set())
        for line in (mutant.line, mutant.statement):
            if line in imported:
                return {test for tests in lines.values() for test in tests}
            if line in lines:
                return lines[line]
        return set()


class Gathering:
    """A pytest plugin that records the lines that each test runs. Work of fixtures counts for all tests of
    the file.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured, self.seconds = measured, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        self._measured.switch_context(item.nodeid.partition("::")[0])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - start
            self._measured.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item for item in items if not _IN_OTHER_PROCESSES & set(getattr(item, "fixturenames", ()))
        ]


def gather(root: Path, tests: Sequence[Path], code: Sequence[Path], kept: Path) -> Covering:
    """Run all test files without a stored result in `kept`. Raises RuntimeError if a test fails without a
    mutant.
    """
    kept.mkdir(parents=True, exist_ok=True)
    shared = [path for path in (root / "tests").rglob("*.py") if not path.name.startswith("test_")]
    base = _digest(root, sorted([*shared, *(root / "spec").rglob("*.yaml"), *code]))
    covering = Covering()
    for path in tests:
        data = kept / f"{path.stem}-{_digest(root, [path], base)}.coverage"
        lines_file = data.with_suffix(".json")
        if not lines_file.exists():
            start = time.monotonic()
            status = in_fork(partial(_measure, path, code, data), _LONGEST_FILE_S, 2 * _LONGEST_FILE_S)
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                raise RuntimeError(
                    f"{path.relative_to(root)} ended with status {status} without a mutant; fix it first"
                )
            print(f"{path.relative_to(root)}: {time.monotonic() - start:.0f} s", flush=True)
        _add(covering, root, data, json.loads(lines_file.read_text("utf-8")), code)
    return covering


def _measure(tests: Path, code: Sequence[Path], data: Path) -> int:
    """Run the tests of a file, then store the lines that they ran and the seconds that they took."""
    measured = coverage.Coverage(data_file=str(data), config_file=False, include=[str(path) for path in code])
    gathering = Gathering(measured)
    measured.start()
    status = run_pytest(str(tests), plugin=gathering)
    measured.stop()
    measured.save()
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        data.with_suffix(".json").write_text(json.dumps(gathering.seconds), "utf-8")
    return status


def _add(covering: Covering, root: Path, data: Path, seconds: dict[str, float], code: Iterable[Path]) -> None:
    covering.seconds |= seconds
    if not data.exists():
        return
    measured = coverage.CoverageData(str(data))
    measured.read()
    for path in code:
        name = str(path.relative_to(root))
        for line, contexts in measured.contexts_by_lineno(str(path)).items():
            for context in contexts:
                if not context:
                    covering.imported[name].add(line)
                elif "::" in context:
                    covering.lines[name][line].add(context)
                else:
                    covering.lines[name][line].update(
                        test for test in seconds if test.startswith(f"{context}::")
                    )


def _digest(root: Path, paths: Iterable[Path], start: str = "") -> str:
    digest = hashlib.sha256(start.encode())
    for path in paths:
        digest.update(os.fsencode(path.relative_to(root)) + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]
