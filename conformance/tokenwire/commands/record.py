"""`tokenwire record`: ask a running server everything, and write down what comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tokenwire.asking.run import Unreached
from tokenwire.asking.scenario import Budget
from tokenwire.commands import options
from tokenwire.commands.check import ask
from tokenwire.judging.verdict import ExitStatus
from tokenwire.replay import capture_files

EXAMPLES = options.examples(
    "tokenwire record recorded --target http://127.0.0.1:30000",
    "tokenwire record recorded --budget soak && tokenwire replay recorded",
)


class _RecordingLostError(Exception):
    """Nothing can be written any more, so there is nothing more to ask."""


def record(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the exchanges go: a new folder.")],
    *,
    config: options.ConfigFile = None,
    target: options.Target,
    timeout: options.Timeout = 60.0,
    max_concurrency: options.MaxConcurrency = 16,
    max_tokens: options.MaxTokens = None,
    rate: options.Rate = None,
    dialect: options.Dialects = None,
    model: options.Model = "",
    scenario: options.Scenarios = None,
    without: options.Without = None,
    gentle: options.Gentle = False,
    budget: options.AskBudget = Budget.STANDARD,
    worker: options.Worker = "",
    restart: options.Restart = "",
    wait: options.Wait = None,
    header: options.SentHeaders = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask all scenarios and only write down what comes back; `tokenwire replay` judges it later.

    Credentials are taken out. Exit status: 0 recorded; 2 wrong command line; 3 not all could be written;
    4 the target could not be reached or stopped answering.
    """
    options.empty_folder(folder, "DIR")
    plan = options.plan_of(context, target)
    lost: list[str] = []

    def end(why: str) -> NoReturn:
        lost.append(why)
        raise _RecordingLostError

    try:
        subject = ask(replace(plan, record=folder, on_loss=end), verbosity=verbose - quiet)
    except* _RecordingLostError:  # of all that was under way
        typer.echo(f"{lost[0]}; nothing more was asked", err=True)
    if lost:
        raise typer.Exit(ExitStatus.HARNESS_ERROR)
    if isinstance(subject, Unreached):
        typer.echo(subject.diagnosis)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    typer.echo(
        f"{len(capture_files(folder))} exchanges are in {folder}; judge them: tokenwire replay {folder}"
    )
    if subject.broken_off:
        typer.echo(f"broken off: {subject.broken_off}")
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
