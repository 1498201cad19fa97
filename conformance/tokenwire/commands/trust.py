"""Asks for the user's trust before a settings file decides what is sent, executed or written.

The file may come with a checkout that somebody else wrote. Trusted values are stored in the user's state
folder. The user is asked again if the settings file changes, or a file that the settings name.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from tokenwire.settings import Option, Settings
from tokenwire.state import make_private, state_of
from tokenwire.wire.inert import inert


@dataclass(frozen=True)
class Brought:
    """The settings in a file that need the user's trust."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of these settings as JSON, by their keys in the file."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 digests of the files that these settings name, by path."""


def brought(settings: Settings, from_file: Iterable[Option]) -> Brought:
    """Return the settings of a file that need the user's trust.

    `from_file`: the options whose values come from the file and not from the command line.
    """
    replaced = {line.partition(":")[0].strip().lower() for line in settings.header}
    values: dict[str, Any] = {}
    contents: dict[str, str] = {}
    for option in from_file:
        value = getattr(settings, option.name)
        if option.needs_trust(value):
            values[option.key] = json.loads(json.dumps(value, default=str))
            contents |= _contents(option, value)
    values |= {
        f"headers.{name}": value for name, value in settings.file_headers if name.lower() not in replaced
    }
    return Brought(values, contents)


def _contents(option: Option, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the digest of each existing file that the value of an option names."""
    named = [value / "tokenizer.json"] if option.name == "tokenizer" else []
    named += [Path(name) for name in value if option.names_file(name)] if option.several else []
    for path in named:
        if path.is_file():
            with path.open("rb") as file:
                yield str(path.resolve()), hashlib.file_digest(file, "sha256").hexdigest()


def _memory(file: Path) -> Path:
    """Return the path under which the trusted values of a settings file are stored."""
    return state_of(file.parent) / f"trusted-{file.name}.json"


def remember(file: Path, found: Brought) -> None:
    """Store that the user trusts these values of a settings file. Raises OSError."""
    make_private(_memory(file).parent)
    _memory(file).write_text(json.dumps({**found.values, **found.contents}), "utf-8")


def _trusted(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(_memory(file).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def demand_trust(file: Path, found: Brought) -> None:
    """Ask the user to trust these values of a settings file, unless they were trusted before.

    Raises BadParameter if the command is not interactive, and Abort if the user refuses.
    """
    trusted = _trusted(file)
    if all(trusted.get(name) == value for name, value in {**found.values, **found.contents}.items()):
        return
    lines = (
        f"  {name} = {inert(json.dumps(value, ensure_ascii=False))}" for name, value in found.values.items()
    )
    shown = "\n".join([f"{file} decides what is sent, executed or written:", *lines])
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            f"{shown}\nAdd --trust if you trust the file, or give these options on the command line."
        )
    typer.echo(shown, err=True)
    typer.confirm("Do you trust it?", abort=True, err=True)
    try:
        remember(file, found)
    except OSError as error:
        typer.echo(f"cannot store that {file} is trusted: {error}", err=True)
