"""One name, one thing: within a package, public classes and helpers of modules have names of their own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    *(ROOT / "conformance").glob("tokenwire*"),
    *(ROOT / "reference").glob("tokenwire*"),
    ROOT / "proofs",
]
MOST_HELPERS = 4
"""Modules of a package that may have a private function of one name."""


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the classes and type variables that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            kind = ast.unparse(node.value.func)
            yield from (ast.unparse(name) for name in node.targets if kind in {"TypeVar", "NewType"})


def twice(folder: Path) -> dict[str, list[str]]:
    """Return the public names that several modules of a package define, each with the modules."""
    modules = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        for name in defined(ast.parse(file.read_text("utf-8"))):
            modules[name].append(file.relative_to(folder).as_posix())
    return {name: found for name, found in modules.items() if len(found) > 1 and not name.startswith("_")}


def helpers(folder: Path) -> dict[str, list[str]]:
    """Return the private functions of modules, by name, each with the modules."""
    modules = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("_"):
                modules[node.name].append(file.relative_to(folder).as_posix())
    return modules


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_no_name_of_a_helper_is_everywhere(folder: Path) -> None:
    """A name that fits everywhere says nothing: it says what differs, or the helpers are one."""
    assert {name: found for name, found in helpers(folder).items() if len(found) > MOST_HELPERS} == {}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_no_public_name_means_two_things(folder: Path) -> None:
    assert twice(folder) == {}


def test_a_second_meaning_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('class Answer: ...\nclass _Own: ...\nT = TypeVar("T")\n', "utf-8")
    (tmp_path / "other.py").write_text('class Answer: ...\nclass _Own: ...\nT = NewType("T", int)\n', "utf-8")
    assert twice(tmp_path) == {name: ["one.py", "other.py"] for name in ("Answer", "T")}
