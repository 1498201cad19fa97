"""A page of the site that no file of `docs/` holds."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One generated page, or a file that is published as it is."""

    uri: str
    """Path below the root of the site's sources, such as `requirements/finish-lost.md`."""
    content: str


def relative(uri: str, source: str) -> str:
    """Return the way from one page to another, both given from the root."""
    return posixpath.relpath(uri, posixpath.dirname(source) or ".")


def link(words: str, uri: str, source: str) -> str:
    """Return a Markdown link from the page `source`; a fragment may follow the uri."""
    path, mark, fragment = uri.partition("#")
    return f"[{words}]({relative(path, source)}{mark}{fragment})"


def in_cell(words: str) -> str:
    """Markdown that does not break a table."""
    return words.replace("|", "\\|").replace("\n", " ")


def inert(text: str) -> str:
    """Return a text as HTML in which Markdown finds nothing to turn, whatever a server wrote into it."""
    return re.sub(r"[^\w\s]|_", lambda match: f"&#{ord(match[0])};", text)


def fenced(text: str, kind: str) -> str:
    """Return a block of text as it is, whatever a server wrote into it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{kind}\n{text.rstrip()}\n{fence}"
