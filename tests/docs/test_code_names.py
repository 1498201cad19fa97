"""Each code name that a guide mentions exists: constants, classes, private names and files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("benchmarks", "conformance", "docs_build", "examples", "fixtures", "proofs", "reference", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md"), *(ROOT / "reference").rglob("*.md")]
)
_QUOTED = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|_[a-z]\w+|_?(?:[A-Z][a-z0-9]+){2,}")
"""A constant of several words, a private name, or a class of several words."""
_MODULE = re.compile(r"[\w/.-]+\.py")
OF_OTHERS = {"CUDA_VISIBLE_DEVICES", "PYTEST_ADDOPTS"}
"""Environment variables of other projects."""


@cache
def files() -> frozenset[str]:
    """Return the paths of all Python files but this one, relative to the repository."""
    paths = [ROOT / "noxfile.py", *(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))]
    return frozenset(path.relative_to(ROOT).as_posix() for path in paths if path != Path(__file__))


@cache
def names() -> frozenset[str]:
    """Return all names that the code defines, imports or uses, and its strings."""
    found: set[str] = set()
    for file in files():
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add(node.name.rpartition(".")[2])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


def unknown(text: str) -> Iterator[str]:
    """Yield the quoted names in a page that do not exist."""
    for quoted in _QUOTED.findall(text):
        if _MODULE.fullmatch(quoted):
            if not any(file == quoted or file.endswith(f"/{quoted}") for file in files()):
                yield quoted
        else:
            for part in re.split(r"[.(]", quoted):
                if _NAME.fullmatch(part) and part not in names() | OF_OTHERS:
                    yield part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_only_code_that_exists(page: Path) -> None:
    assert list(unknown(page.read_text("utf-8"))) == []


def test_a_name_that_is_gone_is_found() -> None:
    text = (
        "`WITHOUT_A_THREAD`, `_gone_helper`, `GoneClass.read` and `gone_module.py`; `test_site.py` is there"
    )
    assert list(unknown(text)) == ["WITHOUT_A_THREAD", "_gone_helper", "GoneClass", "gone_module.py"]
