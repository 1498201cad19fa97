"""YAML and TOML files from untrusted sources, read with limits on time and memory.

The limits are necessary, because even a file of a few hundred bytes may contain aliases of aliases, and a key
may consist of a hundred thousand parts.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_PARTS = 50
_LONG_KEY = re.compile(rf"""(?<![\w."'-])[\w"'-]++(?:[ \t]*+\.[ \t]*+[\w"'-]++){{{_MOST_PARTS}}}""", re.ASCII)
"""Matches a key with so high a number of parts that Python's parser takes quadratic time."""
_LARGEST = 32 << 20
_MOST_NODES = 200_000
"""The maximum number of values in a file. The values of an alias count each time that it is used."""
_DEEPEST = 100
_LONGEST_NUMBER = 1000
_NUMERIC = frozenset("+-0123456789_:.")


def read_foreign_yaml(path: Path) -> Any:
    """Read an untrusted YAML file within limits of time and memory.

    Raises OSError, yaml.YAMLError, or ValueError if the file exceeds a limit.
    """
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"the file is larger than {_LARGEST >> 20} MiB")
    text = path.read_text("utf-8")
    _demand_bounded(text)
    return yaml.load(text, _LOADER)


def _demand_bounded(text: str) -> None:
    """Check that YAML text is within the limits.

    Raises ValueError if the text is nested too deeply or too large, and yaml.YAMLError if the text is not
    valid YAML.
    """
    sizes: dict[str, int] = {}
    """The number of values below each anchor. The number is 0 until the anchored value is complete."""
    begun: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor or "", 1)
            if not size:
                raise ValueError(f"the alias *{event.anchor} is within its own anchor")
            count += size
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, count))
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            plain = not event.style and len(event.value) > _LONGEST_NUMBER
            if plain and _NUMERIC.issuperset(event.value):
                raise ValueError(
                    f"a number has more than {_LONGEST_NUMBER} digits; put quotation marks around a text"
                )
        if len(begun) > _DEEPEST:
            raise ValueError(f"tables and lists are nested more than {_DEEPEST} deep")
        if count > _MOST_NODES:
            raise ValueError(
                f"the file has more than {_MOST_NODES:,} values, counting the values of an alias at each use"
            )


def parse_foreign_toml(text: str) -> dict[str, Any]:
    """Parse untrusted TOML text. Raises ValueError if it is invalid or exceeds a limit."""
    if len(text) > _LARGEST:
        raise ValueError(f"the file is larger than {_LARGEST >> 20} MiB")
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("arrays and tables are nested too deeply") from error
