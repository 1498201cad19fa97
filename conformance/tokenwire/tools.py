"""The tools: packages that use the suite and add commands to `tokenwire`.

A tool is an extension (`tokenwire.spec_files.extensions`) with a file `commands.toml` next to its module. The
file has a table for each command. The suite does not import a tool at startup. It imports the module of a
command when the command is called.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from tokenwire.spec_files import extensions, folder_of
from tokenwire.usage_error import UsageError


@dataclass(frozen=True)
class ToolCommand:
    """A command that a tool adds."""

    help: str
    """The line that `tokenwire --help` shows."""
    module: str
    """The name of the command's module, whose attribute `app` is the command."""
    tallies: str = ""
    """The kind of tally files that the module's function `merge` accepts from `tokenwire merge`.

    Empty if the module has no such function.
    """


@cache
def tool_commands() -> Mapping[str, ToolCommand]:
    """Return the commands of all installed tools by name. Raises ValueError for an invalid
    `commands.toml`.
    """
    commands: dict[str, ToolCommand] = {}
    for point in extensions():
        folder = folder_of(point)
        file = folder / "commands.toml" if folder is not None else None
        if file is None or not file.is_file():
            continue
        for name, fields in tomllib.loads(file.read_text("utf-8")).items():
            try:
                commands[name] = ToolCommand(**fields)
            except TypeError as error:
                raise ValueError(f"{file}: the command {name}: {error}") from error
    return commands


def command_module(name: str) -> ModuleType:
    """Import the module of a tool's command. Raises UsageError if no tool has the command."""
    command = tool_commands().get(name)
    if command is None:
        raise UsageError(
            f"no installed package has the command {name}; install tokenwire again, or the tool's package"
        )
    return import_module(command.module)
