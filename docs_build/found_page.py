"""The page of defects in released servers: each defect with its releases, its source and its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from typing import Any

from docs_build.page import Page, page_of
from docs_build.published import ROOT
from docs_build.results import Column
from tokenwire.spec_files import read_yaml

PAGE = "found.md"
_FAMILIES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "transformers": "transformers serve",
    "llama-server": "llama.cpp's server",
    "llama-cpp-python": "llama-cpp-python",
    "litellm": "LiteLLM",
    "sglang-router": "sglang-router",
    "smg": "smg",
}


@dataclass(frozen=True)
class Defect:
    """One entry of `fixtures/defects.yaml`."""

    does: str
    seen: Sequence[str]
    """Patterns of captures."""
    violates: Sequence[str]
    therefore: Sequence[str] = ()
    source: str = ""
    """The place in the server's source that causes the defect."""
    threads: Sequence[str] = ()
    """Public threads about the defect."""
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The exchanges that show the defect, by the fact in the study of their recordings."""

    @property
    def family(self) -> str:
        """The server under which the page lists the defect: the first server in which it was found."""
        return _FAMILIES[self.seen[0].partition("/")[0]]

    def columns(self, results: Sequence[Column]) -> list[Column]:
        """Return the captures that show the defect. Captures of the server itself come before those of
        gateways.
        """
        shown = [
            column
            for column in results
            if any(fnmatch(column.capture, f"{pattern}.jsonl.gz") for pattern in self.seen)
        ]
        server = self.seen[0].partition("/")[0]
        return sorted(shown, key=lambda column: column.capture.partition("/")[0] != server)


@cache
def defects() -> tuple[Defect, ...]:
    """Return all defects, in the order of the file."""
    return tuple(Defect(**row) for row in read_yaml(ROOT / "fixtures" / "defects.yaml"))


def _releases(columns: Sequence[Column]) -> str:
    versions: dict[str, list[str]] = {}
    for column in columns:
        versions.setdefault(_FAMILIES[column.capture.partition("/")[0]], []).append(column.version)
    return "; ".join(f"{server} {', '.join(dict.fromkeys(known))}" for server, known in versions.items())


def _evidence(defect: Defect, columns: Sequence[Column]) -> tuple[Column, str, str] | None:
    """Return the bytes from the first capture in which the first requirement was violated."""
    cells = ((column, name, column.cells[name].shown) for name in defect.violates for column in columns)
    for column, name, shown in cells:
        if shown:
            _, *lines = shown.splitlines()
            end = next((n for n, line in enumerate(lines) if line.startswith("  curl ")), len(lines))
            return column, name, "\n".join(lines[:end])
    return None


def page(results: Sequence[Column]) -> Page:
    """Return the page of all defects, by server."""
    families: dict[str, list[tuple[Any, ...]]] = {family: [] for family in _FAMILIES.values()}
    for defect in defects():
        columns = defect.columns(results)
        families[defect.family].append((defect, _releases(columns), _evidence(defect, columns)))
    known = {family: rows for family, rows in families.items() if rows}
    return page_of("found", PAGE, families=known, count=len(defects()))
