"""`tokenwire compare`: two servers, recordings or reports side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenwire.asking.planning import planned
from tokenwire.asking.run import Plan
from tokenwire.commands.ask import reached
from tokenwire.commands.command import command, config_of, usage_errors, writable
from tokenwire.disk import write_whole
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json as in_json
from tokenwire.settings import Settings
from tokenwire_twin.difference_report import Side, as_json, compare_sides, read_side, side_of
from tokenwire_twin.terminal import print_difference

_URLS = ("http://", "https://")


def _asked(plan: Plan, *, verbosity: int) -> Side:
    """Send all requests to a server and return its side. Raises Exit if it cannot be reached."""
    subject = reached(plan, verbosity=verbosity, err=True)
    if subject.broken_off:
        typer.echo(f"{plan.settings.target}: broken off: {subject.broken_off}", err=True)
        raise typer.Exit(ExitStatus.NOTHING_EVALUATED)
    return side_of(plan.settings.target, subject)


def compare_files(*paths: Path | str) -> Mapping[str, Any]:
    """Compare two recordings or JSON reports, for `tokenwire.api.compare`. Raises UsageError, OSError."""
    return as_json(compare_sides(*(read_side(str(Path(path))) for path in paths)))


def is_configured(context: typer.Context, url: str) -> bool:
    """True if a URL is the target of the settings file. Other servers do not get its keys."""
    target: str = config_of(context).defaults.get("target", "")
    return url.rstrip("/") == target.rstrip("/")


def _compare(
    context: typer.Context,
    first: Annotated[
        str, typer.Argument(metavar="A", help="URL, recording (file or folder) or JSON report.")
    ],
    other: Annotated[str, typer.Argument(metavar="B", help="The same; perhaps of another kind.")],
    *,
    settings: Settings,
) -> None:
    """Show what differs between two servers: fork and upstream, gateway and worker, yesterday and today.

    Verdicts are compared by requirement. Exchanges of one name are compared by status and fields, and where
    both servers repeat themselves by ids, text, logprobs, counters and other values. How a stream is cut
    into events never counts. URLs are asked the same, one after the other; --header goes to both, headers of
    a file of settings only to the target that the file names.

    Exit status: 0 the same, 1 different, 2 wrong command line, 4 nothing could be compared or a server not be
    asked.
    """
    if settings.json is not None:
        writable(settings.json, "--json")
    sides = []
    live = sum(words.startswith(_URLS) for words in (first, other))
    for words in (first, other):
        if words.startswith(_URLS):
            headers = settings.file_headers if is_configured(context, words) else ()
            plan = planned(replace(settings, target=words, file_headers=headers))
            plan = replace(plan, purse=plan.purse.split(live))
            sides.append(_asked(plan, verbosity=settings.verbosity))
        else:
            with usage_errors(OSError):
                sides.append(read_side(words))
    report = compare_sides(*sides)
    if settings.json is not None:
        write_whole(settings.json, in_json(as_json(report)))
    print_difference(make_console(), report, verbose=settings.verbose)
    raise typer.Exit(report.exit_status)


app = command(
    _compare,
    "tokenwire compare http://127.0.0.1:30000 http://127.0.0.1:30001",
    "tokenwire compare recorded-upstream recorded-fork -v",
    "tokenwire compare yesterday.json today.json --json difference.json",
)
