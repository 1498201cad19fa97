"""Converts Markdown to HTML: the subset that the specification's sentences and passages use."""

from __future__ import annotations

import re

from markupsafe import Markup

_BLOCK = re.compile(
    r"^```[^\n]*+\n(?P<code>.*?)\n?```|(?P<table>(?:^\|[^\n]*\n?)+)|(?P<prose>(?:^(?!```|\|)[^\n]+\n?)+)",
    re.S | re.M,
)
_SPAN = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<b>[^*]+)\*\*|(?<![*\w])\*(?P<em>[^*\s][^*]*)\*(?![*\w])|\[(?P<link>[^][]*+)\]\([^()]*+\)"
)
_RULE = re.compile(r"\|[-:| ]+\|")
_CELL = re.compile(r"((?:`[^`]*+`|[^|])*+)\|?")


def inline(text: str) -> Markup:
    """Convert a sentence to HTML.

    HTML in it is escaped. Links become plain text, because the linked page may not exist.
    """
    made, end = Markup(), 0
    for found in _SPAN.finditer(text):
        kind = found.lastgroup or ""
        words = found[kind] if kind == "code" else inline(found[kind])
        span = words if kind == "link" else Markup(f"<{kind}>{{}}</{kind}>").format(words)
        made, end = made + text[end : found.start()] + span, found.end()
    return made + text[end:]


def blocks(text: str) -> Markup:
    """Convert paragraphs, numbered lists, tables and examples to HTML."""
    return Markup().join(_block(found) for found in _BLOCK.finditer(text))


def _block(found: re.Match[str]) -> Markup:
    if found["code"] is not None:
        return Markup('<pre tabindex="0">{}</pre>').format(found["code"])
    if found["table"]:
        lines = (line for line in found["table"].splitlines() if not _RULE.fullmatch(line))
        return Markup("<table>{}</table>").format(Markup().join(map(_row, lines)))
    numbered = re.split(r"\n(?=\d+\. )", found["prose"].strip())
    return Markup("<p>{}</p>").format(Markup("<br>").join(map(inline, numbered)))


def _row(line: str) -> Markup:
    cells = (Markup("<td>{}</td>").format(inline(cell.strip())) for cell in _CELL.findall(line[1:])[:-1])
    return Markup("<tr>{}</tr>").format(Markup().join(cells))
