"""`tokenwire record`: send all requests to a running server, and record the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tokenwire.asking.planning import planned
from tokenwire.commands.ask import reached
from tokenwire.commands.command import command, empty_folder
from tokenwire.judging.verdict import ExitStatus
from tokenwire.replay import capture_files
from tokenwire.settings import Settings


class _RecordingLostError(Exception):
    """The recording cannot be written any more. The run ends."""


def _record(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the exchanges.")],
    *,
    settings: Settings,
) -> None:
    """Run all scenarios, and only record the exchanges. `tokenwire replay` judges them later.

    Credentials are removed. Exit status: 0 recorded; 2 wrong command line; 3 not all exchanges could be
    written; 4 the target could not be reached, or stopped answering.
    """
    empty_folder(folder, "DIR")
    plan = planned(settings)
    lost: list[str] = []

    def end(why: str) -> NoReturn:
        lost.append(why)
        raise _RecordingLostError

    try:
        subject = reached(replace(plan, record=folder, on_loss=end), verbosity=settings.verbosity)
    except* _RecordingLostError:  # each running exchange raises this error
        typer.echo(f"{lost[0]}; the run has ended", err=True)
    if lost:
        raise typer.Exit(ExitStatus.HARNESS_ERROR)
    count = f"{len(capture_files(folder))} exchanges are in {folder}"
    cut_off = f" ({subject.cut_off})" if subject.cut_off else ""
    typer.echo(f"{count}{cut_off}; judge them: tokenwire replay {folder}")
    if subject.broken_off:
        typer.echo(f"broken off: {subject.broken_off}")
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)


app = command(
    _record,
    "tokenwire record recorded --target http://127.0.0.1:30000",
    "tokenwire record recorded --budget soak && tokenwire replay recorded",
)
