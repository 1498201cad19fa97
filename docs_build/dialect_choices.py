"""The page of the choices in dialects, and of the requirements that depend on them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from docs_build.page import Page, page_of
from docs_build.published import ROOT
from tokenwire.dialects.policy import Policy
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import read_yaml
from tokenwire.typed_table import in_words

URI = "spec/dialects/choices.md"
_DIALECTS = ROOT / "spec" / "dialects"
_NULLS = "nulls"
"""A choice that each kind of answer makes, outside `policy`."""
_OF_NULLS = "`absent`: null means that the server has no value."


@cache
def choices() -> Mapping[str, Mapping[str, Any]]:
    """Return the choices of all dialects, by the key in the dialect and then by the name of the dialect.
    Dialects that do not make a choice are left out.
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
    """Return the meaning of each choice, from the docstring of its field."""
    choice = ast.parse(inspect.getsource(Policy)).body[0]
    assert isinstance(choice, ast.ClassDef)
    meant = {}
    for field, words in pairwise(choice.body):
        if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr):
            meant[ast.unparse(field.target)] = " ".join(ast.literal_eval(words.value).split())
    return meant | {_NULLS: _OF_NULLS}


def usual() -> Mapping[str, str]:
    """Return the default of each choice, as text."""
    return {field.name: _in_words(getattr(Policy(), field.name)) for field in fields(Policy)}


def _in_words(chosen: object) -> str:
    words = sorted(chosen) if isinstance(chosen, frozenset) else [str(chosen)]
    return ", ".join(f"`{word.lower()}`" for word in words) if chosen not in ("", {}) else "nothing"


def policies() -> list[tuple[str, str, str, str]]:
    """Return all fields of `policy`, each with its default, its possible values, and its meaning."""
    kinds = get_type_hints(Policy).items()
    return [(name, usual()[name], in_words(kind).replace("'", "`"), meanings()[name]) for name, kind in kinds]


def page() -> Page:
    """Return the page of all choices."""
    rows = load_requirements().values()
    return page_of("choices", URI, choices=choices(), meanings=meanings(), usual=usual(), rows=rows)
