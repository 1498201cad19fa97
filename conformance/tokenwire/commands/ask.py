"""Ask a server what the options of a command amount to, with progress on the terminal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import typer

from tokenwire.asking.planning import NotPlanned, planned
from tokenwire.asking.resumption import NotResumed
from tokenwire.asking.run import NoSuchTarget, Plan, Progress, Unreached, interrogate
from tokenwire.asking.terminal_progress import TerminalProgress
from tokenwire.asking.wire_log import wire_log
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings


def plan_of(settings: Settings) -> Plan:
    """The plan that the options of a command amount to. Raises BadParameter."""
    try:
        return planned(settings)
    except NotPlanned as error:
        raise typer.BadParameter(str(error)) from error


def ask(plan: Plan, *, verbosity: int) -> Subject | Unreached:
    """Ask everything, with a progress bar or a wire log on the terminal. Raises BadParameter."""
    console = make_console(stderr=True)
    if verbosity > 0:
        plan = replace(plan, on_exchange=wire_log(lambda line: typer.echo(line, err=True)))
    try:
        if verbosity:
            return asyncio.run(interrogate(plan, Progress()))
        with TerminalProgress(console) as progress:
            return asyncio.run(interrogate(plan, progress))
    except (NoSuchTarget, NotResumed) as error:
        raise typer.BadParameter(str(error)) from error


def reached(plan: Plan, *, verbosity: int, err: bool = False) -> Subject:
    """Ask everything; if the target cannot be reached, print why, and raise Exit. Raises BadParameter."""
    subject = ask(plan, verbosity=verbosity)
    if isinstance(subject, Unreached):
        typer.echo(subject.diagnosis, err=err)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    return subject
