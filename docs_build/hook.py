"""What mkdocs asks for: the generated pages, and links from every requirement that a page names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files

from docs_build import command_pages, published, requirement_pages, results_pages
from docs_build.page import Page, relative
from docs_build.results import results
from tokenwire.requirement import load_requirements

_FENCE = re.compile(r"(```.*?```|<pre.*?</pre>|<table.*?</table>)", re.DOTALL)
_NAMED = re.compile(r"(?<![\[`])`(?P<id>[a-z0-9]+(?:-[a-z0-9]+)+)`(?![\]`])")


def generated() -> Iterator[Page]:
    """All pages that no file of `docs/` holds."""
    columns = results()
    yield from published.pages()
    yield from requirement_pages.pages(columns)
    yield from results_pages.pages(columns)
    yield command_pages.page()


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages."""
    for page in generated():
        files.append(File.generated(config, page.uri, content=page.content))
    return files


def named(markdown: str, uri: str) -> str:
    """Words in which every requirement that is named in code leads to its page."""
    known = load_requirements()

    def turned(match: re.Match[str]) -> str:
        one = match["id"]
        to = requirement_pages.uri(one)
        return match[0] if one not in known or to == uri else f"[{match[0]}]({relative(to, uri)})"

    parts = _FENCE.split(markdown)
    return "".join(part if n % 2 else _NAMED.sub(turned, part) for n, part in enumerate(parts))


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Link what a page names."""
    return named(markdown, page.file.src_uri)
