"""Links of the README and of the guides: they lead somewhere in a clone, and on the site."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

import pytest
from docs_build.generated_pages import generated
from docs_build.published import ROOT, relinked

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r'^--8<-- "(\S+)"$', re.MULTILINE)


def links(markdown: str) -> list[tuple[str, str]]:
    """Return the path and the fragment of each relative link outside of blocks of code."""
    found = [to for to in LINK.findall(BLOCK.sub("", markdown)) if not re.match(r"\w+:", to)]
    return [(to.partition("#")[0], to.partition("#")[2]) for to in found]


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a file."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_of_the_repository(page):
    for to, fragment in links(page.read_text("utf-8")):
        file = (page.parent / to).resolve() if to else page
        assert file.exists(), f"{page.name} links to {to}, which the repository does not have"
        assert file.is_relative_to(ROOT)
        if fragment and not to.endswith(".png"):
            assert fragment in anchors(file), f"{page.name} links to {to}#{fragment}"


@pytest.fixture(scope="module")
def uris():
    """Return all paths of the site, without the results of recordings."""
    made = {page.uri for page in generated([])}
    return made | {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*")}


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_of_the_site(page, uris):
    here = page.relative_to(DOCS).as_posix()
    markdown = relinked(page.read_text("utf-8"), f"docs/{here}", here)
    for to, _ in links(markdown):
        assert not to or posixpath.normpath(posixpath.join(posixpath.dirname(here), to)) in uris


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_an_included_file_has_a_link(page):
    """GitHub shows only the line of the include."""
    text = page.read_text("utf-8")
    for name in INCLUDE.findall(text):
        assert f"[`{name}`]({os.path.relpath(ROOT / name, page.parent)})" in text
