"""The pages of the site that have no file in `docs/`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from docs_build import (
    bug_page,
    command_pages,
    dialect_choices,
    found_page,
    published,
    requirement_pages,
    results_pages,
)
from docs_build.page import Page
from docs_build.results import Column


def generated(columns: Sequence[Column]) -> Iterator[Page]:
    """Yield all pages without a file in `docs/`. `columns`: the results of the recordings."""
    yield from published.pages()
    yield from requirement_pages.pages(columns)
    yield from results_pages.pages(columns)
    yield found_page.page(columns)
    yield bug_page.page()
    yield command_pages.page()
    yield dialect_choices.page()
