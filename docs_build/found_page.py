"""The page of what was found in released servers: each defect with its releases, its source and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from itertools import groupby

from docs_build import requirement_pages
from docs_build.page import Page, fenced, link
from docs_build.published import ROOT
from docs_build.results import Column
from docs_build.threads import linked
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
    """The place in the server's source that explains it."""
    threads: Sequence[str] = ()
    """Public threads about it."""
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The exchanges that show it, by the number of the study of their recordings."""

    @property
    def family(self) -> str:
        """The server that the defect is listed under: the first in which it was seen."""
        return _FAMILIES[self.seen[0].partition("/")[0]]

    def columns(self, results: Sequence[Column]) -> list[Column]:
        """Return the captures that show it, those of the server itself before those of gateways."""
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


def _evidence(defect: Defect, columns: Sequence[Column]) -> Iterator[str]:
    """Yield the bytes, from the first capture in which the first requirement was violated."""
    cells = ((column, column.cells[name]) for name in defect.violates for column in columns)
    red = [(column, cell) for column, cell in cells if cell.shown]
    for column, cell in red[:1]:
        lines = cell.shown.splitlines()
        end = next((n for n, line in enumerate(lines) if line.startswith("  curl ")), len(lines))
        name = lines[0].split()[1]
        where = link(column.title, f"{column.uri}#{name}", PAGE)
        yield f"{where} wrote:"
        yield fenced("\n".join(lines[1:end]).rstrip(), "text")


def _section(defect: Defect, results: Sequence[Column]) -> Iterator[str]:
    columns = defect.columns(results)
    yield f"### {defect.does[:1].upper()}{defect.does[1:]}"
    breaks = ", ".join(link(f"`{name}`", requirement_pages.uri(name), PAGE) for name in defect.violates)
    facts = [f"**Releases:** {_releases(columns)}", f"**Breaks:** {breaks}"]
    facts += [f"**In its source:** {linked(defect.source)}"] if defect.source else []
    facts += [f"**Threads:** {linked(', '.join(defect.threads))}"] if defect.threads else []
    yield "  \n".join(facts)
    yield from _evidence(defect, columns)


def page(results: Sequence[Column]) -> Page:
    """Return all defects, by server."""
    every = sorted(defects(), key=lambda defect: list(_FAMILIES.values()).index(defect.family))
    parts = [
        "# Found in released servers",
        f"{len(every)} defects of released servers and gateways, each proved from recorded bytes that lie in "
        "the repository (`fixtures/`), and where it is named from the server's own source. Each capture can "
        "be judged again by `tokenwire replay`; a test holds every violation in it to one of these entries.",
    ]
    for family, group in groupby(every, key=lambda defect: defect.family):
        parts.append(f"## {family}")
        for defect in group:
            parts += _section(defect, results)
    return Page(PAGE, "\n\n".join(parts) + "\n")
