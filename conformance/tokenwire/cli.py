"""The command line program `tokenwire`.

Each command is a module of the suite or of a tool. The module is imported when the command is called.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tokenwire import __version__
from tokenwire.failing import tell_failure
from tokenwire.tools import command_module, tool_commands

_FAILED = 3
"""The value of `ExitStatus.HARNESS_ERROR`.

This module does not import `ExitStatus`, because that import would read all requirements.
"""
_INTERRUPTED = 130

COMMANDS = {
    "check": "Send all requests to a server, and judge the answers.",
    "demo": "Check a small server that has bugs.",
    "again": "Repeat only the requests that failed last time.",
    "replay": "Judge recorded exchanges, without a server.",
    "merge": "Combine several results into one report.",
    "record": "Send all requests to a server, and only record.",
    "explain": "Explain one requirement.",
    "list": "List all requirements, scenarios, dialects, …",
    "init": "Probe a server, and write tokenwire.toml.",
    "baseline": "Show, update and check the known failures.",
}
"""The commands of the suite itself, with the line that `tokenwire --help` shows without importing them."""
_MODULES = {"list": "tokenwire.commands.listing"}
"""Modules whose name differs from their command's. A module named `list` would be confused with
the builtin.
"""


def all_commands() -> list[str]:
    """Return the names of all commands. The suite's own commands come first."""
    return [*COMMANDS, *tool_commands()]


def module_of(name: str) -> ModuleType:
    """Import the module of a command. Its attribute `app` is the command."""
    if name not in COMMANDS:
        return command_module(name)
    return import_module(_MODULES.get(name, f"tokenwire.commands.{name}"))


class _ImportingGroup(TyperGroup):
    """A group that imports a command only when the command is called or completed.

    For `--help`, the one-line description of each command is sufficient.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        for name, command in tool_commands().items():
            self.add_command(TyperCommand(name, short_help=command.help))
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args[0] not in COMMANDS:  # tools are searched only for unknown names, to save time
            self.list_commands(ctx)
        if not (args[0] in COMMANDS or tool_commands()):
            ctx.fail(
                f"No such command {args[0]!r}, and no tool is installed. Install tokenwire again: in a "
                "clone, by `pip install -e .`"
            )
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = typer.main.get_command(module_of(name).app)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the lines of the suite's commands and, in a separate section, those of the tools."""
        tools = {name: command.help for name, command in tool_commands().items()}
        for title, commands in (("Commands", COMMANDS), ("Tools", tools)):
            if commands:
                with formatter.section(title):
                    formatter.write_dl([*commands.items()])

    def invoke(self, ctx: Any) -> Any:
        """Call a command.

        After an interrupt, print one word and exit with a status that is not used for verdicts.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from error


app = typer.Typer(
    cls=_ImportingGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Checks what an LLM inference server puts on the wire for every token.",
    epilog="""\b
Examples:
  tokenwire demo
  tokenwire init --target http://127.0.0.1:30000
  tokenwire check --report report
  tokenwire explain cumulative-ids-extend""",
)
for _name, _help in COMMANDS.items():
    app.command(_name, short_help=_help)(lambda: None)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokenwire {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program `tokenwire`.

    An exception is printed as a one-line message. The exit status then shows that the suite failed, and not
    that the server violates a requirement.
    """
    try:
        app()
    except SystemExit:
        raise
    except KeyboardInterrupt:  # the interrupt came before the command began
        sys.exit(_INTERRUPTED)
    except (
        BaseException
    ) as error:  # libraries in Rust panic with exceptions that are not subclasses of Exception
        tell_failure(" ".join(["tokenwire", *sys.argv[1:2]]), error)
        sys.exit(_FAILED)
    finally:
        gc.freeze()  # skips the last collection, which would take a twelfth of the time of a long replay
