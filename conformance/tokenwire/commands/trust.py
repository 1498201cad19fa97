"""Asks before a file of settings decides what is sent, run or overwritten: a checkout may bring such a file.

What was trusted once is remembered, in the user's state folder, until the file says something else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from tokenwire.settings import OPTIONS, SENSITIVE, Settings
from tokenwire.state import make_private, state_of
from tokenwire.wire.inert import inert


def sensitive_values(settings: Settings, from_file: Iterable[str]) -> dict[str, str]:
    """The values of a file that decide what is sent, run or overwritten, by their keys in the file.

    from_file: names of the options whose value is the file's.
    """
    options = (OPTIONS[name] for name in from_file if OPTIONS[name].roles & SENSITIVE)
    replaced = {line.partition(":")[0].strip().lower() for line in settings.header}
    headers = {
        f"headers.{name}": value for name, value in settings.file_headers if name.lower() not in replaced
    }
    return {option.key: str(getattr(settings, option.name)) for option in options} | headers


def _memory(file: Path) -> Path:
    """What is remembered of a file: the values that were trusted."""
    return state_of(file.parent) / f"trusted-{file.name}.json"


def remember(file: Path, values: Mapping[str, str]) -> None:
    """Trust these values of a file from now on. Raises OSError."""
    make_private(_memory(file).parent)
    _memory(file).write_text(json.dumps(values), "utf-8")


def _trusted(file: Path) -> dict[str, str]:
    try:
        values = json.loads(_memory(file).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def demand_trust(file: Path, values: Mapping[str, str]) -> None:
    """Raises BadParameter, or Abort, if the user trusts these values of a file neither before nor now."""
    trusted = _trusted(file)
    if all(trusted.get(name) == value for name, value in values.items()):
        return
    lines = (f"  {name} = {json.dumps(inert(value), ensure_ascii=False)}" for name, value in values.items())
    shown = "\n".join([f"{file} decides what is sent or run:", *lines])
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(f"{shown}\nAdd --trust if you trust it, or say these on the command line.")
    typer.echo(shown, err=True)
    typer.confirm("Do you trust it?", abort=True, err=True)
    try:
        remember(file, values)
    except OSError as error:
        typer.echo(f"the answer is not remembered: {error}", err=True)
