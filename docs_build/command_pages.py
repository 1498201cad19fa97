"""The reference of the command line, generated from the program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from docs_build.page import Page, page_of
from tokenwire.cli import app
from tokenwire.config import value_of
from tokenwire.settings import OPTIONS, Option

REFERENCE = "commands.md"
_WIDTH = 110
_PROGRAM = "tokenwire"


def _sections(command: Any, context: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a command and its subcommands, each with the arguments and options that `--help` prints."""
    name = context.command_path
    examples = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    yield {
        "depth": depth,
        "name": name,
        "help": re.sub(r"\n{3,}", "\n\n", (command.help or "").replace("\b", "")).strip(),
        "usage": f"{name} {' '.join(command.collect_usage_pieces(context))}",
        "examples": "\n".join(filter(None, map(str.strip, examples))),
        "parameters": [(names, re.sub(r"\s+", " ", words)) for names, words in filter(None, records)],
    }
    for sub in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, subcommand, _ = command.resolve_command(context, [sub])
        yield from _sections(subcommand, type(context)(subcommand, info_name=sub, parent=context), depth + 1)


def _takers(option: Option) -> str:
    """Return the commands that read an option from a configuration file."""
    table = option.key.rpartition(".")[0]
    return table or ", ".join(name for name in option.commands if name in OPTIONS["config"].commands)


def page() -> Page:
    """Return the whole reference."""
    program = typer.main.get_command(app)
    context = program.make_context(_PROGRAM, [], resilient_parsing=True)
    context.terminal_width = _WIDTH
    settings = [(option, value_of(option)[0], _takers(option)) for option in OPTIONS.values() if option.key]
    return page_of("commands", REFERENCE, sections=_sections(program, context, 1), settings=settings)
