"""Files of the repository that the site contains unchanged except for their links."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from docs_build.page import Page, link, linked, outside_code, page_of, relative, requirement_uri
from tokenwire.requirement import load_requirements

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER/tokenwire"
"""The placeholder of the repository in examples."""
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "reference/DIFFERENCES.md": "differences.md",
    "spec/README.md": "spec/index.md",
    "spec/dialects/README.md": "spec/dialects/index.md",
}
"""The page for each repository path whose page has another path. All other files of the specification keep
their paths.
"""
_SHOWN = {
    "fixtures": "results/index.md",
    "fixtures/defects.yaml": "found.md",
    "spec/bugs.yaml": "bugs.md",
    "spec/requirements": "requirements/index.md",
}
"""The page for each file or folder whose content the site shows in another form."""
_DATA = {
    "schemas": "Schemas",
    "control": "Control endpoints",
    "servers": "What servers say of themselves",
    "profiles": "Profiles",
    "requirements": "Requirement rows",
}
"""Folders of the specification that contain only data, and their titles."""
_LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]+)\]\((?P<to>[^)\s]+)\)")
_SENTENCE = re.compile(r"^> \*\*(?P<id>[a-z0-9-]+)\*\* \(", re.MULTILINE)


@cache
def published() -> Mapping[str, str]:
    """Return the path on the site for each published file and folder of the repository."""
    known = dict(PAGES)
    spec = ROOT / "spec"
    for path in sorted(p for p in spec.rglob("*") if p.suffix in {".md", ".yaml", ".json"}):
        known.setdefault(
            f"spec/{path.relative_to(spec).as_posix()}", f"spec/{path.relative_to(spec).as_posix()}"
        )
    return (
        known | {f"spec/{folder}": f"spec/{folder}/index.md" for folder in _DATA} | {"spec": "spec/index.md"}
    )


def repository() -> str:
    """Return the address of the repository in `pyproject.toml`; empty if it is a placeholder."""
    return _address(ROOT / "pyproject.toml")


@cache
def _address(file: Path) -> str:
    project = tomllib.loads(file.read_text("utf-8"))["project"]
    address = str(project["urls"]["Repository"])
    return "" if PLACEHOLDER in address else address


def with_repository(text: str) -> str:
    """Return a text in which the name of the repository replaces the placeholder."""
    return text.replace(PLACEHOLDER, "/".join(repository().split("/")[-2:]) or PLACEHOLDER)


def page_of_file(path: str) -> str:
    """Return the page that shows a file or folder of the repository; empty if the site has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _SHOWN.get(path) or published().get(path, "")


def relinked(markdown: str, source: str, uri: str) -> str:
    """Return the text of a file with links for the page `uri`. Links to files that are not published become
    plain text.
    """

    def turned(match: re.Match[str]) -> str:
        to, mark, fragment = match["to"].partition("#")
        if "://" in to:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), to)) if to else source
        page = page_of_file(path)
        if not page:
            return match["words"]
        return f"[{match['words']}]({relative(page, uri) if page != uri else ''}{mark}{fragment})"

    return outside_code(lambda prose: _LINK.sub(turned, prose), markdown)


def _sentences_linked(markdown: str, uri: str) -> str:
    """Add a link from each requirement of a chapter to its own page, and an anchor in the chapter."""

    def turned(match: re.Match[str]) -> str:
        name = match["id"]
        if name not in load_requirements():  # an example in the explanation of the notation
            return match[0]
        return f'> <a id="{name}"></a>**{link(name, requirement_uri(name), uri)}** ('

    return _SENTENCE.sub(turned, markdown)


def pages() -> Iterator[Page]:
    """Yield all published files, and a page for each folder of data."""
    for source, uri in published().items():
        path = ROOT / source
        if path.is_dir():
            continue
        text = path.read_text("utf-8")
        yield Page(
            uri, _sentences_linked(linked(relinked(text, source, uri)), uri) if path.suffix == ".md" else text
        )
    for folder, title in _DATA.items():
        names = sorted(p.name for p in (ROOT / "spec" / folder).iterdir() if p.suffix in {".yaml", ".json"})
        yield page_of("data", f"spec/{folder}/index.md", title=title, names=names)
