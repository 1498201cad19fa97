"""The reference of the command line, made from the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from docs_build.page import Page, in_cell
from tokenwire.cli import app

REFERENCE = "commands.md"
_WIDTH = 110
_PROGRAM = "tokenwire"


def _examples(command: Any) -> str:
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def _parameters(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Each argument and option with its help, as `--help` tells it."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record[0], re.sub(r"\s+", " ", record[1])


def _section(command: Any, context: Any, depth: int) -> Iterator[str]:
    name = context.command_path
    yield f"{'#' * depth} {name}"
    if command.help:
        yield re.sub(r"\n{3,}", "\n\n", command.help.replace("\b", "")).strip()
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    if examples := _examples(command):
        yield f"```console\n{examples}\n```"
    rows = "\n".join(
        f"| `{in_cell(names)}` | {in_cell(words)} |" for names, words in _parameters(command, context)
    )
    yield f"| option | meaning |\n|---|---|\n{rows}"
    for sub, each in getattr(command, "commands", {}).items():
        yield from _section(each, type(context)(each, info_name=sub, parent=context), depth + 1)


def page() -> Page:
    """The whole reference."""
    program = typer.main.get_command(app)
    context = program.make_context(_PROGRAM, [], resilient_parsing=True)
    context.terminal_width = _WIDTH
    sections = ["# Commands", *list(_section(program, context, 1))[1:]]
    return Page(REFERENCE, "\n\n".join(sections) + "\n")
