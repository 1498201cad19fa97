"""The reference of the command line, made from the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from docs_build.page import Page, in_cell
from tokenwire.cli import app
from tokenwire.config import value_of
from tokenwire.settings import OPTIONS, Option

REFERENCE = "commands.md"
_WIDTH = 110
_PROGRAM = "tokenwire"
_SETTINGS = """## tokenwire.toml

The nearest `tokenwire.toml`, or `[tool.tokenwire]` in `pyproject.toml`, holds defaults for options; the
command line beats it. `--config FILE` names another. One file serves all commands: each takes the keys that
it has an option for and leaves the others alone. Settings of one command alone are in a table of its
name: `watch.listen` is `listen` below `[watch]`. A key that is unknown, that is in the wrong place or has
a value that does not fit ends any command with status 2.

`headers` are sent with every request: by `compare` only to the server that `target` names; `watch` adds
none to what clients send. `tokenwire baseline` takes `baseline`.

A checkout may bring such a file, and the requests carry your keys. So a file alone may only make a run ask
less, wait longer or judge less: the column "unasked" names the values that a command takes from it as they
are, besides the default. Every other value changes what is sent, an address, a command that is run, or a file
that is written. It is shown, and used only with `--trust`, or after a yes on a terminal. A yes is remembered,
in your own state folder, until the file says something else, or until the content of a dialect or
`tokenizer.json` that it names changes. What `tokenwire init` wrote is trusted. What a command starts, as
`restart` does, is not looked at. `tokenwire baseline update` rewrites a configured baseline with another name
than `tokenwire-baseline.toml`, or in another folder than the file, in the same way.
"""


def _examples(command: Any) -> str:
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def _parameters(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Yield each argument and option with its help, as `--help` shows it."""
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
    for sub in getattr(command, "commands", ()):
        _, subcommand, _ = command.resolve_command(context, [sub])
        yield from _section(subcommand, type(context)(subcommand, info_name=sub, parent=context), depth + 1)


def _takers(option: Option) -> str:
    """Return the commands that take an option from a file."""
    table = option.key.rpartition(".")[0]
    return table or ", ".join(name for name in option.commands if name in OPTIONS["config"].commands)


def _settings() -> str:
    """Render the keys of `tokenwire.toml`, and the commands that take them."""
    lines = [
        f"| `{option.key}` | {in_cell(words)} | `{in_cell(option.example)}` | {option.unasked} "
        f"| {_takers(option)} |"
        for option, (words, _) in ((option, value_of(option)) for option in OPTIONS.values())
        if option.key
    ]
    return "\n".join(
        [_SETTINGS, "| key | value | for example | unasked | taken by |", "|---|---|---|---|---|", *lines]
    )


def page() -> Page:
    """Return the whole reference."""
    program = typer.main.get_command(app)
    context = program.make_context(_PROGRAM, [], resilient_parsing=True)
    context.terminal_width = _WIDTH
    sections = ["# Commands", *list(_section(program, context, 1))[1:], _settings()]
    return Page(REFERENCE, "\n\n".join(sections) + "\n")
