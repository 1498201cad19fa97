"""Headers whose values come from environment variables: no key stands in a file or on a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tokenwire.wire.capture import REDACTED, Headers, redact_headers

_VARIABLE = re.compile(r"(?<!\S)env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?!\S)")


class NoCredential(ValueError):  # noqa: N818  # a fact about the environment
    """A header cannot be made; the message says why and what to do."""


def from_environment(value: str) -> bool:
    """Whether a header's value names an environment variable."""
    return _VARIABLE.search(value) is not None


def holds_credential(name: str) -> bool:
    """Whether a header of this name is one that carries a key."""
    return redact_headers(((name, ""),)) == ((name, REDACTED),)


def header_value(name: str, value: str, environment: Mapping[str, str] = os.environ) -> str:
    """The value to send: every `env:NAME` in it is the value of that variable.

    Raises NoCredential where a variable is not set, or holds what no header can carry.
    """

    def look_up(found: re.Match[str]) -> str:
        variable = found["name"]
        if not environment.get(variable):
            raise NoCredential(
                f"header {name}: the environment variable {variable} is not set; set it, for example "
                f"export {variable}=…"
            )
        if not environment[variable].isprintable():
            raise NoCredential(
                f"header {name}: the environment variable {variable} holds a line break or another character "
                "that no header can carry; set it without"
            )
        return environment[variable]

    return _VARIABLE.sub(look_up, value)


def named_by_environment(headers: Headers) -> frozenset[str]:
    """The names, in lower case, of those headers whose values are made from the environment."""
    return frozenset(name.lower() for name, value in headers if from_environment(value))
