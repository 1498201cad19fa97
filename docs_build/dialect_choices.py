"""The page of the choices that a dialect has, and of the requirements that leave them."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from docs_build.page import Page, in_cell, link
from docs_build.published import ROOT
from tokenwire.dialects.policy import Policy
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import read_yaml
from tokenwire.typed_table import in_words

URI = "spec/dialects/choices.md"
_DIALECTS = ROOT / "spec" / "dialects"
_NULLS = "nulls"
"""A choice that is beside the bindings of an answer, not under `policy`."""
_OF_NULLS = "`absent`: null means that the server has no value."


@cache
def choices() -> Mapping[str, Mapping[str, Any]]:
    """Collect the choice of each dialect, by the key of its table and then by its name; dialects without one
    are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(_DIALECTS.glob("*.yaml")):
        table = read_yaml(path)
        nulls = [choice for kind in table["answer"].values() if (choice := kind.get(_NULLS))]
        for key, value in {**table["policy"], **({_NULLS: nulls[0]} if nulls else {})}.items():
            found.setdefault(key, {})[table["name"]] = value
    return found


@cache
def meanings() -> Mapping[str, str]:
    """Return the meaning of each choice, in the words of its field."""
    choice = ast.parse(inspect.getsource(Policy)).body[0]
    assert isinstance(choice, ast.ClassDef)
    meant = {}
    for field, words in pairwise(choice.body):
        if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr):
            meant[ast.unparse(field.target)] = " ".join(ast.literal_eval(words.value).split())
    return meant | {_NULLS: _OF_NULLS}


def policies() -> Iterator[str]:
    """Yield the table of all fields under `policy`."""
    yield "| policy | usually | may be | meaning |"
    yield "|---|---|---|---|"
    for name, kind in get_type_hints(Policy).items():
        may = in_words(kind).replace("'", "`")
        yield f"| `{name}` | {_usual(name)} | {may} | {meanings()[name]} |"


def _usual(name: str) -> str:
    """Return the choice of a dialect that makes none."""
    chosen = getattr(Policy(), name)
    words = sorted(chosen) if isinstance(chosen, frozenset) else [str(chosen)]
    return ", ".join(f"`{word.lower()}`" for word in words) if chosen not in ("", {}) else "nothing"


def named(policies: Iterable[str], page: str) -> str:
    """Links to some choices, from a page."""
    return ", ".join(link(f"`{policy}`", f"{URI}#{policy}", page) for policy in policies)


def _choice(key: str, chosen: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in load_requirements().values() if key in row.policies]
    yield f"## {key} {{ #{key} }}"
    usually = f" Usually {_usual(key)}." if key != _NULLS else ""
    yield f"{meanings()[key]}{usually}"
    lines = "\n".join(
        f"| {link(row.id, f'requirements/{row.id}.md', URI)} | {row.level} | {in_cell(row.sentence)} |"
        for row in rows
    )
    yield f"| requirement | level | sentence |\n|---|---|---|\n{lines}"
    choice = "\n".join(
        f"| `{dialect}` | `{in_cell(json.dumps(value))}` |" for dialect, value in sorted(chosen.items())
    )
    yield f"| dialect | chooses |\n|---|---|\n{choice}"


def page() -> Page:
    """Return all choices, in the order in which the tables name them first."""
    parts = [
        "# What a dialect may choose",
        "Where server families differ and each way is right, a sentence leaves the choice to the "
        f"{link('dialect', 'spec/dialects/index.md', URI)}. "
        "A key of the dialect's table says what the family "
        "chose, and the same check judges every family by its own choice. A dialect that does not name a key "
        "chooses the usual.",
    ]
    for key, chosen in choices().items():
        parts += _choice(key, chosen)
    return Page(URI, "\n\n".join(parts) + "\n")
