"""`tokenwire merge`: one report from the results of several replays, or of several twin comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokenwire.commands.command import command, usage_errors
from tokenwire.commands.reporting import judge_and_report, reporting_of
from tokenwire.report.console import make_console
from tokenwire.report.tally_file import kind_of_tally, merged, read_tally
from tokenwire.settings import Settings
from tokenwire.tools import command_module, tool_commands


def _merge(
    tallies: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files that `replay --tally` or `twin --tally` wrote, in order."
        ),
    ],
    *,
    settings: Settings,
) -> None:
    """Combine the results of several replays into one report.

    The report is the same as if one replay had judged all captures in this order. Captures are not read
    again. The exit status is that of `tokenwire check`. Results of `tokenwire twin` can be combined too, if
    they compare replicas of the same two deployments; the exit status is that of `tokenwire twin`.
    """
    with usage_errors(OSError):
        kind = kind_of_tally(tallies[0])
        for name, added in tool_commands().items():
            if kind and kind == added.tallies:
                raise typer.Exit(command_module(name).merge(tallies, settings))
        replayed = merged([(str(file), read_tally(file)) for file in tallies])
    selection = replayed.selection
    settings = replace(settings, requirement=selection.requirements, profile=selection.profiles)
    reporting = replace(reporting_of(settings), filters=selection.filters)
    raise typer.Exit(judge_and_report(replayed.subject, reporting, make_console(), replayed=replayed))


app = command(
    _merge,
    "tokenwire merge one.tally.gz other.tally.gz --report report",
    "tokenwire merge shards/*.tally.gz --tally fleet.tally.gz",
    "tokenwire merge twins/*.tally.gz --html twin.html",
)
