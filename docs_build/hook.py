"""Hooks of mkdocs: generated pages, and links from each mention of a requirement to its page."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from docs_build import published, results_pages
from docs_build.generated_pages import generated
from docs_build.page import named
from docs_build.results import results


def on_config(config: Any) -> Any:
    """Add a link to the repository if its address is known."""
    config.repo_url = published.repository()
    config.repo_name = published.with_repository(published.PLACEHOLDER)
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages."""
    for page in generated(results()):
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
