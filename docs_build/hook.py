"""Hooks of mkdocs: generated pages, and links from each mention of a requirement to its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files

from docs_build import (
    bug_page,
    command_pages,
    dialect_choices,
    found_page,
    published,
    requirement_pages,
    results_pages,
)
from docs_build.page import Page, named
from docs_build.results import results


def on_config(config: Any) -> Any:
    """Add a link to the repository if its address is known."""
    config.repo_url = published.repository()
    config.repo_name = published.with_repository(published.PLACEHOLDER)
    return config


def generated() -> Iterator[Page]:
    """Yield all pages without a file in `docs/`."""
    columns = results()
    yield from published.pages()
    yield from requirement_pages.pages(columns)
    yield from results_pages.pages(columns)
    yield found_page.page(columns)
    yield bug_page.page()
    yield command_pages.page()
    yield dialect_choices.page()


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages."""
    for page in generated():
        files.append(File.generated(config, page.uri, content=page.content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Add links to the requirements that a page names. Hide the navigation on pages without neighbours.

    Links of a file in `docs/` lead to files of the repository. On the site, they lead to its pages.

    Pages of captures are excluded from the search, so that a search for a requirement finds only its own
    page.
    """
    if page.file.src_uri.startswith("results/") and page.file.src_uri != results_pages.TABLE:
        page.meta["search"] = {"exclude": True}
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])
    here = page.file.src_uri
    if page.file.generated_by is None:
        markdown = published.relinked(markdown, f"docs/{here}", here)
    return named(markdown, here)


def on_page_content(html: str, **_: Any) -> str:
    """Insert the name of the repository into examples."""
    return published.with_repository(html)
