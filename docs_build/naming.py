"""Link the name of each requirement to its page."""

from __future__ import annotations

import re

from docs_build import requirement_pages
from docs_build.page import relative
from tokenwire.requirement import load_requirements

_FENCE = re.compile(r"(```.*?```|<pre.*?</pre>|<table.*?</table>)", re.DOTALL)
_NAMED = re.compile(r"(?<![\[`])`(?P<id>[a-z0-9]+(?:-[a-z0-9]+)+)`(?![\]`])")


def named(markdown: str, uri: str) -> str:
    """Return words in which every requirement that is named in code leads to its page."""
    known = load_requirements()

    def turned(match: re.Match[str]) -> str:
        name = match["id"]
        to = requirement_pages.uri(name)
        return match[0] if name not in known or to == uri else f"[{match[0]}]({relative(to, uri)})"

    parts = _FENCE.split(markdown)
    return "".join(part if n % 2 else _NAMED.sub(turned, part) for n, part in enumerate(parts))
