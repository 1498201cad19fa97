"""`tokenwire check`: send all requests to a running server, and judge the answers."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tokenwire.asking.exploration import demand_hypothesis
from tokenwire.asking.planning import headers_of, planned
from tokenwire.asking.run import Unreached
from tokenwire.asking.vital_signs import RESTART_WAIT_S
from tokenwire.commands.ask import ask
from tokenwire.commands.command import command, empty_folder, writable_folder
from tokenwire.commands.plan import print_plan
from tokenwire.commands.reporting import judge_and_report, reporting_of
from tokenwire.commands.with_engine import engine_below
from tokenwire.disk import system_says
from tokenwire.judging.judge import Judgement
from tokenwire.last_run import LastRun, failures, folder_of_last, keep, last_run
from tokenwire.report.console import make_console
from tokenwire.report.subject import Subject
from tokenwire.settings import REMEMBERED, Settings
from tokenwire.tools import command_module
from tokenwire.usage_error import UsageError

_MOST_JOBS = 4
_WORTH_SHARING = 200
"""The number of answers from which it is worth starting processes for judging."""


def _check(
    settings: Settings,
    *,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Continue the interrupted run that was recorded in this folder."
        ),
    ] = None,
    only_plan: Annotated[
        bool,
        typer.Option("--plan", help="Only estimate the number of requests and tokens."),
    ] = False,
) -> None:
    """Check a running server: run all scenarios, then judge every requirement.

    Exit status: 0 conforms, except for known failures; 1 a violation, a wrong entry in the baseline, or a
    twin that serves another model; 2 wrong command line; 3 the suite failed; 4 nothing could be tested, the
    target has none of a requested profile, or it could not be reached.
    """
    if settings.explore:
        demand_hypothesis()
    if settings.target and settings.engine:
        raise UsageError(
            f"--target {settings.target} and --engine {settings.engine!r} exclude each other; "
            "give one of them"
        )
    if not (settings.target or settings.engine):
        raise UsageError(
            "--target is missing: give the URL of the server, as in --target http://127.0.0.1:30000, or give "
            "--engine the command that starts a front end"
        )
    if not settings.engine:
        _ask_and_judge(settings, resume, only_plan=only_plan)
        return
    with engine_below(settings.engine, again=True) as target:
        wait = settings.wait or RESTART_WAIT_S  # a front end that crashes is started again
        below = replace(settings, target=target, keep_failures=False, wait=wait)
        _ask_and_judge(below, resume, only_plan=only_plan)


def _ask_and_judge(settings: Settings, resume: Path | None, *, only_plan: bool) -> None:
    """Send all requests, judge the answers, and raise Exit with the exit status."""
    record = _recording(settings.record, resume)
    plan = replace(planned(settings), record=record, resume=resume is not None)
    if only_plan:
        raise typer.Exit(print_plan(plan, full=settings.verbose))
    twin = command_module("twin").compared_with_twin(settings, plan.purse) if settings.twin else None
    judged: list[Judgement] = []
    reporting = replace(reporting_of(settings), budget=settings.budget, on_judged=judged.extend, twin=twin)
    console = make_console()
    subject = ask(plan, verbosity=settings.verbosity)
    reporting = replace(reporting, sent=plan.purse.requests)
    if isinstance(subject, Unreached):
        console.print(Text(subject.diagnosis), soft_wrap=True)
        subject = subject.subject
    try:
        status = judge_and_report(subject, replace(reporting, jobs=_jobs(subject)), console)
    # A process was killed, perhaps for lack of memory; judging in one process needs less.
    except BrokenProcessPool:
        status = judge_and_report(subject, reporting, console)
    if settings.keep_failures and subject.runs:
        run = last_run(settings.target, settings.values(REMEMBERED), headers_of(settings))
        _keep(run, judged, quiet=settings.quiet)
    if settings.verbose:
        typer.echo(plan.stopwatch.words(), err=True)
    raise typer.Exit(status)


def _recording(record: Path | None, resume: Path | None) -> Path | None:
    """Return the folder for the recording. None if the run is not recorded. Raises BadParameter."""
    if record is not None and resume is not None:
        raise typer.BadParameter(
            "--resume and --record exclude each other; --resume records into the folder that it names"
        )
    if record is not None:
        return empty_folder(record, "--record")
    if resume is not None and not resume.is_dir():
        raise typer.BadParameter(f"--resume {resume} is not a folder; name a folder that --record wrote")
    return None if resume is None else writable_folder(resume, "--resume")


def _jobs(subject: Subject) -> int:
    """Return the number of processes for judging.

    Several processes may be used, because the server is idle while the suite judges.
    """
    answers = sum(len(run.answers) for run in subject.runs)
    return min(_MOST_JOBS, os.cpu_count() or 1) if answers >= _WORTH_SHARING else 1


def _keep(run: LastRun, judged: list[Judgement], *, quiet: bool) -> None:
    """Store the failures for `tokenwire again`.

    An error, such as a full disk, does not change the verdicts. If this run has no failures, the stored
    failures of earlier runs are deleted. If there are neither, nothing is written.
    """
    if not failures(judged) and not folder_of_last().exists():
        return
    try:
        count = keep(run, judged)
    except OSError as error:
        typer.echo(f"the failures cannot be stored for `tokenwire again`: {system_says(error)}", err=True)
        return
    if failures(judged) and not quiet:
        kept = "1 exchange is" if count == 1 else f"{count} exchanges are"
        typer.echo(f"{kept} stored in {folder_of_last()}; after a change of the server, run: tokenwire again")


app = command(
    _check,
    "tokenwire check --target http://127.0.0.1:30000",
    "tokenwire check --target http://127.0.0.1:30000 --budget quick --report report",
    "tokenwire check --engine 'vllm-rs serve' --budget quick",
    "tokenwire check --requirement cumulative-ids-extend -v",
    "tokenwire check --header 'Authorization: Bearer env:MY_KEY' --baseline tokenwire-baseline.toml",
)
