"""Header values that come from environment variables, so that files and command lines contain no keys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tokenwire.usage_error import UsageError
from tokenwire.wire.redaction import Headers

_VARIABLE = re.compile(r"(?<!\S)env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?!\S)")


def from_environment(value: str) -> bool:
    """True if a header's value names an environment variable."""
    return _VARIABLE.search(value) is not None


def header_value(name: str, value: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the header value to send, with each `env:NAME` replaced by the environment variable NAME.

    Raises UsageError if a variable is not set, or is not valid in a header.
    """

    def look_up(found: re.Match[str]) -> str:
        variable = found["name"]
        if not environment.get(variable):
            raise UsageError(
                f"header {name}: the environment variable {variable} is not set; set it, for example "
                f"export {variable}=…"
            )
        if not environment[variable].isprintable():
            raise UsageError(
                f"header {name}: the environment variable {variable} contains a line break or another "
                "character that is not allowed in a header; set it without this character"
            )
        return environment[variable]

    sent = _VARIABLE.sub(look_up, value)
    if not sent.isprintable():
        raise UsageError(
            f"header {name}: its value contains a line break or another character that is not allowed "
            "in a header; remove this character"
        )
    return sent


def named_by_environment(headers: Headers) -> frozenset[str]:
    """Return the names, in lower case, of the headers whose values use environment variables."""
    return frozenset(name.lower() for name, value in headers if from_environment(value))
