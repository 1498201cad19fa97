"""A page of the site that no file of `docs/` holds."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One generated page, or a file that is published as it is."""

    uri: str
    """Path below the root of the site's sources, such as `requirements/finish-lost.md`."""
    content: str


def relative(uri: str, source: str) -> str:
    """The way from one page to another, both given from the root."""
    return posixpath.relpath(uri, posixpath.dirname(source) or ".")


def link(words: str, uri: str, source: str) -> str:
    """A Markdown link from the page `source`; a fragment may follow the uri."""
    path, mark, fragment = uri.partition("#")
    return f"[{words}]({relative(path, source)}{mark}{fragment})"


def in_cell(words: str) -> str:
    """Words that do not break a table."""
    return words.replace("|", "\\|").replace("\n", " ")
