"""`tokenwire inspect`: a page for sending requests by hand, which shows every token."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tokenwire.ask import Budget
from tokenwire.asking.parroting import find_parrot
from tokenwire.asking.planning import planned
from tokenwire.asking.run import Plan, Reached, reach
from tokenwire.commands.command import command, has_desktop
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.settings import Settings
from tokenwire_live.inspecting.bench import TARGET, TWIN, WORKER
from tokenwire_live.inspecting.inspector import Inspector


async def _reached(plan: Plan) -> Reached:
    reached = await reach(plan)
    if not reached.found.speaks:
        typer.echo(reached.found.diagnosis)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    return reached


async def _until_ended(plan: Plan, folder: Path, *, show: bool) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    targets = {TARGET: await _reached(plan)}
    if worker := plan.settings.worker:
        behind = replace(plan, settings=replace(plan.settings, target=worker), headers=())
        targets[WORKER] = await _reached(behind)
    if twin := plan.settings.twin:
        targets[TWIN] = await _reached(planned(replace(plan.settings, target=twin, file_headers=())))
    known = targets[TARGET]
    parrot = await find_parrot(known.found, known.sender, plan.tokenizer)
    async with Inspector(plan, targets, folder, parrot) as url:
        console = make_console()
        console.print(Text(f"private URL of the page: {url}"), soft_wrap=True)
        console.print(Text(f"stored answers go to {folder}; Ctrl-C stops the page"), soft_wrap=True)
        if show:
            webbrowser.open(url)
        await ended.wait()


def _inspect(
    settings: Settings,
    *,
    folder: Annotated[
        Path, typer.Option("--keep", metavar="DIR", help="The folder for answers that you store.")
    ] = Path("tokenwire-found"),
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page, if there is a desktop.")
    ] = True,
) -> None:
    """Open a page for sending requests to a server by hand. It shows each answer token by token while it
    arrives, and the requirements that it violates.

    A click stores an answer as a capture with its verdicts, and as a scenario for `tokenwire check
    --scenario-file`. The page can be opened only on this machine. Exit status: 0 ended; 2 wrong command line;
    4 the target could not be reached.
    """
    plan = planned(replace(settings, budget=Budget.QUICK))
    asyncio.run(_until_ended(plan, folder, show=show and has_desktop()))


app = command(
    _inspect,
    "tokenwire inspect --target http://127.0.0.1:30000",
    "tokenwire inspect --target http://127.0.0.1:8000 --worker http://127.0.0.1:30000",
    "tokenwire inspect --target http://new:30000 --twin http://old:30000",
)
