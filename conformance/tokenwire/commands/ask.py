"""Sends the requests of a command, and shows the progress on the terminal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import typer

from tokenwire.asking.run import Plan, Progress, Unreached, interrogate
from tokenwire.asking.terminal_progress import TerminalProgress
from tokenwire.asking.wire_log import wire_line
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.report.subject import Subject


def ask(plan: Plan, *, verbosity: int) -> Subject | Unreached:
    """Send all requests of a plan, with a progress bar or a log of exchanges. Raises UsageError."""
    console = make_console(stderr=True)
    if verbosity > 0:
        plan = replace(plan, on_exchange=lambda exchange: typer.echo(wire_line(exchange), err=True))
    if verbosity:
        return asyncio.run(interrogate(plan, Progress()))
    with TerminalProgress(console) as progress:
        return asyncio.run(interrogate(plan, progress))


def reached(plan: Plan, *, verbosity: int, err: bool = False) -> Subject:
    """Send all requests of a plan. If the target supports no dialect, print the reason and raise Exit.

    Raises UsageError.
    """
    subject = ask(plan, verbosity=verbosity)
    if isinstance(subject, Unreached):
        typer.echo(subject.diagnosis, err=err)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    return subject
