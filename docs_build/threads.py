"""Upstream threads, as links."""

from __future__ import annotations

import re

_THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+) (?P<kind>PR|issue) #(?P<number>\d+)")
_PLACES = {"PR": "pull", "issue": "issues"}


def linked(text: str) -> str:
    """Return a text in which every named pull request and issue leads to its thread."""

    def turned(match: re.Match[str]) -> str:
        repository, kind, number = match.groups()
        return f"[{match[0]}](https://github.com/{repository}/{_PLACES[kind]}/{number})"

    return _THREAD.sub(turned, text)
