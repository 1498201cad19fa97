"""Custom tools, whose input is a text: for the model, each is a function with the argument `input`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenwire_reference.doors.errors import RefusalError

INPUT = "input"
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*'
)
"""Matches characters and complete escapes of a JSON string."""


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that the model sees instead of a custom tool. Raises RefusalError for a grammar."""
    form = (tool.get("format") or {}).get("type", "text")
    if form != "text":
        raise RefusalError(
            f"the custom tool {tool['name']} has the format {form!r}, which is not enforced; leave it out",
            param="tools",
        )
    schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    return {"name": tool["name"], "description": tool.get("description"), "parameters": schema}


class FreeInput:
    """The input of one call to a custom tool.

    It is extracted from the function's arguments as they arrive.
    """

    def __init__(self) -> None:
        self._arguments = ""
        self._rest = ""
        """The arguments that are not read yet."""
        self._begun = self._ended = False
        self._text = ""

    def push(self, arguments: str) -> str:
        """Add a part of the arguments, and return the part of the input that it contains."""
        self._arguments += arguments
        self._rest += arguments
        if not self._begun:
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._begun, self._rest = True, self._rest[head.end() :]
        if self._ended:
            return ""
        whole = _WHOLE.match(self._rest)
        assert whole is not None, "the empty text matches"
        self._rest = self._rest[whole.end() :]
        self._ended = self._rest.startswith('"')
        text = str(json.loads(f'"{whole[0]}"', strict=False))
        self._text += text
        return text

    def finish(self) -> str:
        """Return the rest of the input at the end of the call.

        If the arguments are not an object with `input`, return all of them.
        """
        return "" if self._begun else self._arguments
