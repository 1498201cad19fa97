"""What is known of the faults of the reference engine, read from their source: the site needs no engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from docs_build.published import ROOT

_FOLDER = ROOT / "reference" / "tokenwire_faults"


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue."""

    name: str
    does: str
    """What it does, in a sentence or two."""
    upstream: tuple[str, ...]
    """The threads that tell of the bug."""
    room: str
    """The module where the bug lived."""


def _entries(module: ast.Module, room: str) -> Iterator[Fault]:
    for node in module.body:
        for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "fault":
                given = {one.arg: one.value for one in call.keywords}
                threads = ast.literal_eval(given["upstream"]) if "upstream" in given else ()
                does = " ".join((ast.get_docstring(node) or "").split())  # type: ignore[arg-type]  # a class
                yield Fault(ast.literal_eval(call.args[0]), does, threads, room)


@cache
def faults() -> Mapping[str, Fault]:
    """All faults by name."""
    found = [
        entry
        for path in sorted(_FOLDER.glob("*.py"))
        for entry in _entries(ast.parse(path.read_text("utf-8")), path.stem)
    ]
    return {entry.name: entry for entry in sorted(found, key=lambda one: one.name)}
