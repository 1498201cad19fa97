"""SECURITY.md promises only results that a test shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> Iterator[str]:
    """Yield each promise, with the lines that belong to it."""
    for part in PAGE.split("**Promised.**")[1:]:
        promised = part.partition("**Not promised**")[0].partition("\n#")[0]
        yield from re.split(r"^- ", promised, flags=re.MULTILINE)[1:]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_both_programs_promise() -> None:
    assert PAGE.count("**Promised.**") == PAGE.count("**Not promised**") == 2
    assert len(list(promises())) >= 12


@pytest.mark.parametrize("promise", list(promises()), ids=lambda promise: promise[:30].strip())
def test_each_promise_names_its_tests(promise: str) -> None:
    assert NAMED.findall(promise.partition("Tests: ")[2])


def test_each_row_of_the_doors_names_its_test() -> None:
    table = PAGE.partition("### The guards of its doors\n")[2].partition("\n**")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert rows
    assert [row for row in rows if not NAMED.search(row)] == []


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED.findall(PAGE))))
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    assert (ROOT / file).is_file()
    assert test in functions_of(file)


def test_no_other_form_of_a_name_escapes() -> None:
    assert set(re.findall(r"tests/[^\s`|,]+", PAGE)) == {"::".join(named) for named in NAMED.findall(PAGE)}
