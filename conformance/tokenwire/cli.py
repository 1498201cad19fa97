"""The command line: `tokenwire`, one file to a command in `tokenwire.commands`."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Annotated

import typer

from tokenwire import __version__
from tokenwire.commands import (
    again,
    baseline,
    check,
    compare,
    demo,
    explain,
    init,
    listing,
    merge,
    options,
    parrot,
    record,
    replay,
    watch,
)
from tokenwire.judging.verdict import ExitStatus

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Checks what an LLM inference server puts on the wire for every token.",
    epilog=options.examples(
        "tokenwire demo",
        "tokenwire init --target http://127.0.0.1:30000",
        "tokenwire check --report report",
        "tokenwire explain cumulative-ids-extend",
    ),
)
app.command("check", short_help="Ask a running server everything, and judge it.", epilog=check.EXAMPLES)(
    check.check
)
app.command("demo", short_help="Check a small server that errs: a minute, no model.", epilog=demo.EXAMPLES)(
    demo.demo
)
app.command("again", short_help="Ask only what failed last time.", epilog=again.EXAMPLES)(again.again)
app.command("replay", short_help="Judge recorded exchanges, without a server.", epilog=replay.EXAMPLES)(
    replay.replay
)
app.command("merge", short_help="Make one report of several replays.", epilog=merge.EXAMPLES)(merge.merge)
app.command("record", short_help="Ask a running server everything, and only record.", epilog=record.EXAMPLES)(
    record.record
)
app.command("explain", short_help="Show all of one requirement.", epilog=explain.EXAMPLES)(explain.explain)
app.command("list", short_help="List all requirements, scenarios, dialects, …", epilog=listing.EXAMPLES)(
    listing.list_names
)
app.command("init", short_help="Look at a server and write tokenwire.toml.", epilog=init.EXAMPLES)(init.init)
app.command("compare", short_help="Show what differs between two servers.", epilog=compare.EXAMPLES)(
    compare.compare
)
app.command("parrot", short_help="Write a model whose answers are known.", epilog=parrot.EXAMPLES)(
    parrot.parrot
)
app.command("watch", short_help="Pass traffic on, and judge it.", epilog=watch.EXAMPLES)(watch.watch)
app.add_typer(baseline.app, name="baseline", short_help="Show, rewrite and check known failures.")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tokenwire {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The program `tokenwire`. Whatever goes wrong inside the suite is told apart from a violation."""
    try:
        app()
    except Exception:  # the traceback is for us; the status must not blame the target
        traceback.print_exc()
        sys.exit(ExitStatus.HARNESS_ERROR)
    finally:
        gc.freeze()  # what is left goes with the process: there is no need to look through it for garbage
