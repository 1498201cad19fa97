"""`tokenwire torture`: a server that serves difficult streams to a client, and judges what the client has
parsed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from tokenwire.commands.command import command
from tokenwire.commands.reporting import writable_outputs
from tokenwire.disk import system_says
from tokenwire.judging.verdict import exit_status
from tokenwire.report.console import make_console
from tokenwire.report.document import document
from tokenwire.report.files import Outputs, write_reports
from tokenwire.report.subject import ANSWER
from tokenwire.report.terminal import print_report
from tokenwire.settings import Settings
from tokenwire.typed_table import counted
from tokenwire_clients.behaviour import all_cases, cases_named
from tokenwire_clients.server import torture_server
from tokenwire_clients.session import Session
from tokenwire_clients.vectors import load_doors


def _torture(
    adapter: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="A program to run as the client, with TOKENWIRE_URL set. Its end ends the test.",
        ),
    ] = None,
    *,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65_535, help="Port to serve at. 0 is any free port."),
    ] = 0,
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="Name of the client in the report.")
    ] = "client",
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="NAME", help="Serve only this case: DOOR/CASE or CASE. Repeatable."),
    ] = None,
    report: Annotated[
        Path, typer.Option("--report", metavar="DIR", help="The folder for the report.")
    ] = Path("tokenwire-torture"),
    settings: Settings,
) -> None:
    """Test a client: serve it difficult streams, and judge what it has parsed.

    A case is chosen by a path or by a model name; GET /tokenwire/cases lists them. After each case, the
    client posts its parsed content to /tokenwire/report/DOOR/CASE. Without a COMMAND, press Ctrl-C to end the
    test and to write the report.

    Exit status: 0 the client satisfies all requirements, 1 it violates one, 2 wrong command line, 4 nothing
    was reported.
    """
    outputs = writable_outputs(Outputs.within(report))
    if not load_doors():
        raise typer.BadParameter("the folder vectors/ is not installed; install a release, or use a clone")
    try:
        cases = cases_named(case) if case else all_cases()
    except ValueError as error:
        raise typer.BadParameter(f"--case: {error}") from error
    session = Session(client, _again(client, port, report, adapter or ()), cases)
    try:
        with torture_server(session, port) as url:
            typer.echo(f"{counted(len(cases), 'case')} at {url}, listed at {url}/tokenwire/cases")
            if adapter:
                _run(adapter, url)
            else:
                with contextlib.suppress(KeyboardInterrupt):
                    Event().wait()
    except OSError as error:
        raise typer.BadParameter(f"--port {port}: {system_says(error)}; name another port") from error
    judgements = session.judgements()
    status = exit_status(judgement.verdict for judgement in judgements)
    made = document(session.subject, judgements, status)
    problems = write_reports(made, outputs, judgements)
    work = "" if problems else f"the report is {outputs.html}"
    print_report(make_console(), made, verbosity=settings.verbosity, work=work)
    for problem in problems:
        typer.echo(problem, err=True)
    raise typer.Exit(status)


def _again(client: str, port: int, report: Path, adapter: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that repeats one case."""
    served = ("--", *adapter) if adapter else ("--port", str(port)) if port else ()
    return (
        *("tokenwire", "torture", "--client", client, "--report", str(report), "--case", ANSWER),
        *served,
    )


def _run(adapter: list[str], url: str) -> None:
    """Run the user's command until the command ends.

    Raises BadParameter if the command fails, because its reports are then worthless.
    """
    ended = subprocess.run(adapter, env={**os.environ, "TOKENWIRE_URL": url}, check=False)
    if ended.returncode:
        raise typer.BadParameter(f"{adapter[0]} failed with status {ended.returncode}; see its output")


app = command(
    _torture,
    "tokenwire torture --port 8000",
    "tokenwire torture --case openai-chat/text -- python my_client.py",
    "tokenwire torture --client httpx-sse --report report -- python examples/clients/httpx_sse_client.py",
)
