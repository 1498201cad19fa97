"""`tokenwire compare`: compares two servers, recordings or reports."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenwire.asking.planning import planned
from tokenwire.asking.run import Plan
from tokenwire.commands.ask import reached
from tokenwire.commands.command import command, config_of, usage_errors, writable
from tokenwire.disk import system_says, write_whole
from tokenwire.judging.verdict import ExitStatus
from tokenwire.local_server import free_port
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json as in_json
from tokenwire.settings import Settings
from tokenwire.wire.inert import inert
from tokenwire_twin.compare_forms import as_junit, as_summary
from tokenwire_twin.difference_report import (
    DifferenceReport,
    Side,
    as_json,
    compare_sides,
    read_side,
    side_of,
)
from tokenwire_twin.known import apply_known, read_known, updated
from tokenwire_twin.started import Start, started
from tokenwire_twin.terminal import print_difference

_URLS = ("http://", "https://")


def _asked(plan: Plan, *, verbosity: int) -> Side:
    """Send all requests to a server, and return its answers and verdicts as a side.

    Raises Exit if the server cannot be reached.
    """
    subject = reached(plan, verbosity=verbosity, err=True)
    if subject.broken_off:
        typer.echo(f"{plan.settings.target}: broken off: {subject.broken_off}", err=True)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    return side_of(plan.settings.target, subject)


def compare_files(*paths: Path | str) -> Mapping[str, Any]:
    """Compare two recordings or JSON reports, for `tokenwire.api.compare`. Raises UsageError, OSError."""
    return as_json(compare_sides(*(read_side(str(Path(path))) for path in paths)))


def is_configured(context: typer.Context, url: str) -> bool:
    """True if a URL is the target in the settings file. Headers in the file are sent only to this target."""
    target: str = config_of(context).defaults.get("target", "")
    return url.rstrip("/") == target.rstrip("/")


def _compare(
    context: typer.Context,
    first: Annotated[
        str, typer.Argument(metavar="[A]", help="URL, recording (file or folder) or JSON report.")
    ] = "",
    other: Annotated[str, typer.Argument(metavar="[B]", help="The other side, in any of these forms.")] = "",
    *,
    settings: Settings,
    a_command: Annotated[
        str, typer.Option("--a-command", metavar="COMMAND", help="Command that starts A. {port} is replaced.")
    ] = "",
    b_command: Annotated[
        str, typer.Option("--b-command", metavar="COMMAND", help="Command that starts B after A was stopped.")
    ] = "",
    ready: Annotated[
        str, typer.Option("--ready", metavar="PATH", help="Path that answers 200 when a server is ready.")
    ] = "/v1/models",
    start_s: Annotated[
        float,
        typer.Option(
            "--start-wait",
            metavar="S",
            min=1,
            max=86_400,
            help="Seconds until a started server must be ready.",
        ),
    ] = 600.0,
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="FILE", help="Tolerate the known differences in this file."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="With --known: update the file from this comparison.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="With --update: the reason for new differences.")
    ] = "",
    link: Annotated[
        str, typer.Option("--link", metavar="URL", help="With --update: the issue about new differences.")
    ] = "",
) -> None:
    """Show the differences between two servers: fork and upstream, gateway and worker, yesterday and today.

    Answers to the same requests are compared: missing endpoints, prompt ids, output ids, text, channels,
    finish and usage, logprobs, other fields, error messages. Differences with the same cause are one family,
    shown with a count and an example; -v shows all. The division of a stream into events does not matter.
    Verdicts are compared by requirement. Two URLs get the same requests, one server after the other. Headers
    of --header are sent to both servers, headers of the settings file only to its target. Servers that are
    started by a command run one after the other, on the same port.

    Exit status: 0 the same, except for known differences; 1 different, or a wrong entry in the file of known
    differences; 2 wrong command line; 4 nothing could be compared, or a server could not be reached.
    """
    for file, flag in ((settings.json, "--json"), (settings.junit, "--junit")):
        if file is not None:
            writable(file, flag)
    if known is None and (update or reason or link):
        raise typer.BadParameter(
            "--update, --reason and --link work only with --known FILE; add --known FILE"
        )
    with usage_errors():
        # An invalid file is refused before requests are sent.
        if known is not None and (known.exists() or not update):
            read_known(known)
    names = _names(first, other, (a_command, b_command))
    live = sum(isinstance(name, Start) or name.startswith(_URLS) for name in names)
    port, draws = free_port(), secrets.randbits(64)
    sides = []
    for name in names:
        if isinstance(name, Start):
            with usage_errors(), started(replace(name, ready=ready, wait_s=start_s), port) as url:
                side = _asked(_plan(settings, url, live, draws), verbosity=settings.verbosity)
            sides.append(replace(side, name=name.command))
        elif name.startswith(_URLS):
            headers = settings.file_headers if is_configured(context, name) else ()
            plan = _plan(replace(settings, file_headers=headers), name, live, draws)
            sides.append(_asked(plan, verbosity=settings.verbosity))
        else:
            with usage_errors(OSError):
                sides.append(read_side(name))
    may_be_one = all(isinstance(name, str) and name.startswith(_URLS) for name in names)
    report = compare_sides(*sides, may_be_one=may_be_one)
    if known is not None:
        if update:
            with usage_errors(OSError):
                _update(known, report, reason, link)
        with usage_errors():
            differences = read_known(known)
        complete = not any((side.report.get("selection") or {}).get("filters") for side in sides)
        report = apply_known(report, differences, complete=complete, today=date.today())
    _write(report, settings)
    print_difference(make_console(), report, verbose=settings.verbose)
    raise typer.Exit(report.exit_status)


def _names(first: str, other: str, commands: tuple[str, str]) -> tuple[str | Start, str | Start]:
    """Return sides A and B. Each is the server that its command starts, or else the next argument.

    Raises BadParameter.
    """
    named = [name for name in (first, other) if name]
    sides: list[str | Start] = []
    for label, started_by in zip("AB", commands, strict=True):
        if started_by:
            sides.append(Start(started_by))
        elif named:
            sides.append(named.pop(0))
        else:
            raise typer.BadParameter(
                f"{label} is missing; name a server or file, or add --{label.lower()}-command"
            )
    if named:
        raise typer.BadParameter(f"{named[0]} is a third side; remove this argument, or remove a command")
    return sides[0], sides[1]


def _plan(settings: Settings, url: str, live: int, draws: int) -> Plan:
    """Return the plan for one of `live` servers. All servers of a comparison share the limits."""
    plan = planned(replace(settings, target=url))
    return replace(plan, purse=plan.purse.split(live), draws=draws)


def _update(path: Path, report: DifferenceReport, reason: str, link: str) -> None:
    """Update a file of known differences, and print the changes. Raises UsageError and OSError."""
    found = updated(path, report, reason=reason, link=link)
    write_whole(path, found.text)
    for name in found.removed:
        typer.echo(inert(f"removed  {name}"))
    for name in found.added:
        typer.echo(inert(f"added    {name}"))
    typer.echo(inert(f"{path}: {found.kept} kept, {len(found.added)} added, {len(found.removed)} removed"))


def _write(report: DifferenceReport, settings: Settings) -> None:
    """Write the comparison in all requested formats."""
    if settings.json is not None:
        write_whole(settings.json, in_json(as_json(report)))
    if settings.junit is not None:
        write_whole(settings.junit, as_junit(report))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(as_summary(report, report.outcome))
        except OSError as error:
            typer.echo(f"the summary of the step, {summary}, was not written: {system_says(error)}", err=True)


app = command(
    _compare,
    "tokenwire compare http://127.0.0.1:30000 http://127.0.0.1:30001",
    "tokenwire compare recorded-upstream recorded-fork -v",
    "tokenwire compare yesterday.json today.json --json difference.json",
    "tokenwire compare --a-command 'vllm serve M --port {port}' --b-command 'vllm-rs serve M --port {port}'",
    "tokenwire compare python rust --known known.toml --junit differences.xml",
    "tokenwire compare python rust --known known.toml --update --reason 'not built yet' --link https://host/17",
)
