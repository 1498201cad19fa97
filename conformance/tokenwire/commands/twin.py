"""`tokenwire twin`: whether two deployments serve one model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from tokenwire.asking.planning import planned
from tokenwire.asking.run import Plan
from tokenwire.asking.twins import ask_twins
from tokenwire.commands.command import command, writable
from tokenwire.commands.compare import is_configured
from tokenwire.comparing.twin import twins_as_json
from tokenwire.comparing.twin_forms import print_twins, twin_page
from tokenwire.disk import write_whole
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json
from tokenwire.settings import Settings


def _twin(
    context: typer.Context,
    settings: Settings,
    *,
    one: Annotated[str, typer.Option("--a", metavar="URL", help="Base URL of one deployment.")],
    other: Annotated[str, typer.Option("--b", metavar="URL", help="Base URL of the other.")],
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, help="Tokens that both sides score.")
    ] = 3000,
) -> None:
    """Tell whether two deployments serve one model: before and after an upgrade, one GPU and several, two
    precisions.

    Both get the same requests, and give logprobs to the ids that either wrote. How far these lie apart is
    held against what each side differs by from itself. --header goes to both, headers of a file of settings
    only to the target that the file names.

    Exit status: 0 the same, perhaps up to noise; 1 another model; 2 wrong command line, or a server that
    cannot be asked; 4 undecided.
    """
    for file, option in ((settings.json, "--json"), (settings.html, "--html")):
        if file is not None:
            writable(file, option)

    def plan(url: str) -> Plan:
        headers = settings.file_headers if is_configured(context, url) else ()
        return planned(replace(settings, target=url, file_headers=headers))

    report = asyncio.run(ask_twins((plan(one), plan(other)), tokens))
    if settings.json is not None:
        write_whole(settings.json, as_json(twins_as_json(report)))
    if settings.html is not None:
        write_whole(settings.html, twin_page(report))
    print_twins(make_console(), report)
    raise typer.Exit(report.exit_status)


app = command(
    _twin,
    "tokenwire twin --a http://127.0.0.1:30000 --b http://127.0.0.1:30001",
    "tokenwire twin --a http://old:30000 --b http://new:30000 --tokens 30000 --html twin.html",
)
