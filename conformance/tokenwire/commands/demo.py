"""`tokenwire demo`: check a small server that has bugs."""

from __future__ import annotations

import contextlib
import webbrowser
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from tokenwire.ask import Budget
from tokenwire.asking.run import Plan, Unreached
from tokenwire.commands.ask import ask
from tokenwire.commands.command import command, has_desktop
from tokenwire.commands.reporting import Reporting, judge_and_report, writable_outputs
from tokenwire.demo_server import FAULTS, demo_server
from tokenwire.disk import system_says
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.report.files import Outputs
from tokenwire.settings import Settings

_DIALECTS = ("sglang-generate",)
_SCENARIOS = ("greedy-stream", "interval-borders", "samples", "batch-of-prompts", "stop-string", "request-id")


def _demo(
    *,
    report: Annotated[
        Path, typer.Option("--report", metavar="DIR", help="The folder for the report.")
    ] = Path("tokenwire-demo"),
    correct: Annotated[bool, typer.Option("--correct", help="Run the server without its bugs.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Only run the server until Ctrl-C, to check it yourself.")
    ] = False,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65_535, help="Port to serve at. 0 is any free port."),
    ] = 0,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report, if there is a desktop.")
    ] = True,
    settings: Settings,
) -> None:
    """Show what Tokenwire does: start a small server that has three bugs, check it, and open the report.

    This takes a few seconds, and no model. Exit status: 0 the bugs were found; 2 wrong command line; 3 the
    suite failed, or did not find the bugs.
    """
    faults = () if correct else tuple(FAULTS)
    outputs = writable_outputs(Outputs.within(report))
    try:
        with demo_server(faults, port) as url:
            if serve:
                _serve(url, faults)
                return
            if not settings.quiet:
                _announce(url, faults)
            asked = Settings(target=url, budget=Budget.QUICK, scenario=_SCENARIOS, dialect=_DIALECTS)
            subject = ask(Plan(asked), verbosity=settings.verbosity)
    except OSError as error:
        raise typer.BadParameter(f"--port {port}: {system_says(error)}; name another port") from error
    if isinstance(subject, Unreached):
        typer.echo(subject.diagnosis, err=True)
        raise typer.Exit(ExitStatus.HARNESS_ERROR)
    reporting = Reporting(outputs, replace(settings, quiet=not settings.verbose), budget=Budget.QUICK)
    status = judge_and_report(subject, reporting, make_console())
    page = (report / "report.html").resolve()
    typer.echo(f"\nthe report, which can replay each failure: {page.as_uri()}")
    if not settings.quiet:
        _suggest(url, correct=correct)
    if show and has_desktop():
        webbrowser.open(page.as_uri())
    expected = ExitStatus.CONFORMS if correct else ExitStatus.VIOLATION
    raise typer.Exit(0 if status == expected else ExitStatus.HARNESS_ERROR)


def _suggest(url: str, *, correct: bool) -> None:
    """Print the commands that a user may want to run next."""
    again = f"tokenwire demo --serve{' --correct' * correct} --port {url.rpartition(':')[2]}"
    typer.echo(f"the demo server has ended; to run the commands above, start it again: {again}")
    typer.echo("your own server: tokenwire check --target http://127.0.0.1:30000 --report report")


def _announce(url: str, faults: tuple[str, ...]) -> None:
    typer.echo(f"a small demo server is running at {url}")
    several = "it has three bugs, and each of them may violate several requirements:"
    typer.echo(several if faults else "it has no known bugs")
    for name in faults:
        typer.echo(f"  {name}: {FAULTS[name]}")


def _serve(url: str, faults: tuple[str, ...]) -> None:
    _announce(url, faults)
    typer.echo(f"check it: tokenwire check --target {url}")
    with contextlib.suppress(KeyboardInterrupt):
        Event().wait()


app = command(
    _demo,
    "tokenwire demo",
    "tokenwire demo --correct",
    "tokenwire demo --serve --port 30000",
)
