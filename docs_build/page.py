"""Pages of the site without a file in `docs/`: their templates, and the links and blocks in them."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context

from tokenwire.report.overview import kept, level_in_words
from tokenwire.report.wording import cut
from tokenwire.requirement import load_requirements

_THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+) (?P<kind>PR|issue) #(?P<number>\d+)")
_PLACES = {"PR": "pull", "issue": "issues"}
_FENCE = re.compile(r"(```.*?```|<pre.*?</pre>|<table.*?</table>)", re.DOTALL)
_NAMED = re.compile(r"(?<![\[`])`(?P<name>tokenwire\.toml|[a-z0-9]+(?:-[a-z0-9]+)+)`(?![\]`])")
SETTINGS = "commands.md#tokenwiretoml"
"""The description of `tokenwire.toml`."""


@dataclass(frozen=True)
class Page:
    """One generated page, or a file that is published unchanged."""

    uri: str
    """The path in the site's sources, such as `requirements/finish-lost.md`."""
    content: str


def relative(uri: str, source: str) -> str:
    """Return the relative path from one page to another. Both are given from the root."""
    return posixpath.relpath(uri, posixpath.dirname(source) or ".")


def link(words: str, uri: str, source: str) -> str:
    """Return a Markdown link from the page `source`. The uri may end with a fragment."""
    path, mark, fragment = uri.partition("#")
    return f"[{words}]({relative(path, source)}{mark}{fragment})"


def requirement_uri(requirement: str) -> str:
    """Return the page of a requirement."""
    return f"requirements/{requirement}.md"


def in_cell(words: object) -> str:
    """Return Markdown that does not break a table."""
    return str(words).replace("|", "\\|").replace("\n", " ")


def inert(text: str) -> str:
    """Return a text as HTML without Markdown syntax, because a server may have written anything into it."""
    return re.sub(r"[^\w\s]|_", lambda match: f"&#{ord(match[0])};", text)


def fenced(text: str, kind: str) -> str:
    """Return a text as a code block that no content of the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{kind}\n{text.rstrip()}\n{fence}"


def linked(text: str | Sequence[str]) -> str:
    """Return a text or a list in which each mention of a pull request or an issue is a link to its thread."""

    def turned(match: re.Match[str]) -> str:
        repository, kind, number = match.groups()
        return f"[{match[0]}](https://github.com/{repository}/{_PLACES[kind]}/{number})"

    return _THREAD.sub(turned, text if isinstance(text, str) else ", ".join(text))


def outside_code(change: Callable[[str], str], markdown: str) -> str:
    """Return Markdown with all text changed except blocks of code and HTML."""
    parts = _FENCE.split(markdown)
    return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def named(markdown: str, uri: str) -> str:
    """Return Markdown with a link from each requirement in code, and `tokenwire.toml`, to its description."""

    def turned(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in load_requirements() and name != "tokenwire.toml":
            return match[0]
        to = SETTINGS if name == "tokenwire.toml" else requirement_uri(name)
        return match[0] if to.partition("#")[0] == uri else link(match[0], to, uri)

    return outside_code(lambda prose: _NAMED.sub(turned, prose), markdown)


@pass_context
def _to(context: Context, words: str, uri: str) -> str:
    return link(words, uri, context["here"])


@pass_context
def _to_requirement(context: Context, name: str, words: str = "") -> str:
    return link(words or name, requirement_uri(name), context["here"])


@cache
def _environment() -> Environment:
    environment = Environment(  # the output is Markdown, and the filters escape texts from servers
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": in_cell,
        "cut": cut,
        "fenced": fenced,
        "html": escape,
        "inert": inert,
        "json": partial(json.dumps, ensure_ascii=False),
        "kept": kept,
        "level_in_words": level_in_words,
        "linked": linked,
        "to": _to,
        "to_requirement": _to_requirement,
    }
    return environment


def template(name: str) -> Template:
    """Return a template of `templates/`. An undefined name in it is an error."""
    return _environment().get_template(f"{name}.md.jinja")


def page_of(name: str, uri: str, **values: Any) -> Page:
    """Return the page of a template."""
    return Page(uri, template(name).render(here=uri, **values))
