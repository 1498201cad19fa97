"""`tokenwire-reference`: start the reference engine behind HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

import typer

from tokenwire_reference.doors.limits import limits_in_words
from tokenwire_reference.server_args import ServerArgs, spelled

app = typer.Typer(
    help="The reference engine of Tokenwire.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def serve(**given: Any) -> None:
    """Serve a model. The URL is printed as soon as requests are answered."""
    for name in ("api_key", "admin_api_key"):
        given[name] = _from_environment(given[name])
    try:
        args = ServerArgs(**given)
    except ValueError as error:
        raise typer.Exit(_complain(error)) from error
    # Only `serve` imports torch and transformers, which takes seconds, so that --help stays fast.
    from tokenwire_reference.serve import EngineStoppedError
    from tokenwire_reference.serve import serve as serve_model

    try:
        serve_model(args)
    except (ValueError, OSError) as error:
        raise typer.Exit(_complain(error)) from error
    except EngineStoppedError as error:
        _complain(error)
        raise typer.Exit(1) from error


def _options() -> Iterator[Parameter]:
    """Yield a command-line parameter for each field of `ServerArgs`."""
    types = get_type_hints(ServerArgs)
    for arg in fields(ServerArgs):
        flag = arg.metadata["flag"]
        names = flag.names or (spelled(arg.name),)
        option = typer.Option(arg.default, *names, help=flag.help, envvar=flag.envvar)
        yield Parameter(arg.name, Parameter.KEYWORD_ONLY, default=option, annotation=types[arg.name])


serve.__signature__ = Signature(list(_options()))  # type: ignore[attr-defined]
app.command(epilog=f"Limits of a request: {limits_in_words()}.")(serve)


@app.command()
def faults(
    word: Annotated[str, typer.Argument(help="List only faults with this word in their text.")] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List the faults that a request may name on a server with --enable-faults."""
    from rich.console import Console

    from tokenwire_reference.doors.fault_package import fault_package

    try:
        faults = fault_package()
        if as_json:
            typer.echo(faults.faults_as_json(word))
        else:
            faults.print_faults(Console(), word)
    except ValueError as error:
        raise typer.Exit(_complain(error)) from error


def _from_environment(key: str | None) -> str | None:
    """Return the key, or the value of the environment variable that the argument names.

    Process lists show arguments but not environment variables, so a variable keeps a key secret.
    """
    scheme, _, variable = (key or "").partition(":")
    return os.environ.get(variable, "") if scheme == "env" else key


def _complain(error: Exception) -> int:
    typer.echo(f"tokenwire-reference: {error}", err=True)
    return 2


def main() -> None:
    """Run the command line."""
    app()
