"""`tokenwire merge`: one report of several replays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokenwire.commands import options
from tokenwire.commands.reporting import reporting_of, tell
from tokenwire.report.tally_file import TallyError, merged, read_tally
from tokenwire.report.terminal import make_console

EXAMPLES = options.examples(
    "tokenwire merge one.tally.gz other.tally.gz --report report",
    "tokenwire merge shards/*.tally.gz --tally fleet.tally.gz",
)


def merge(
    context: typer.Context,
    tallies: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="What `tokenwire replay --tally` wrote, in order.")
    ],
    *,
    config: options.ConfigFile = None,
    json: options.Json = None,
    junit: options.Junit = None,
    html: options.Html = None,
    sarif: options.Sarif = None,
    badge: options.Badge = None,
    report: options.ReportFolder = None,
    tally: options.TallyFile = None,
    baseline: options.BaselineFile = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Make one report of several replays, as if one had judged all their captures in this order.

    Nothing is judged again, and no capture is read. Exit status as of `tokenwire check`.
    """
    try:
        replayed = merged([(str(file), read_tally(file)) for file in tallies])
    except (TallyError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    selection = replayed.selection
    reporting = replace(
        reporting_of(context),
        requirements=selection.requirements,
        profiles=selection.profiles,
        filters=selection.filters,
    )
    raise typer.Exit(tell(replayed.subject, reporting, make_console(), replayed=replayed))
