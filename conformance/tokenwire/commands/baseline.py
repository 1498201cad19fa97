"""`tokenwire baseline`: show and update the known failures, and check them against reports."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from tokenwire.baselines.baseline import read_baseline
from tokenwire.baselines.baseline_update import updated, why_incomplete
from tokenwire.baselines.tolerance import Fault, apply_baseline, outcomes_in
from tokenwire.commands.command import CONFIG, TRUST, config_of, examples, usage_errors
from tokenwire.commands.trust import Brought, demand_trust
from tokenwire.config import Config
from tokenwire.disk import system_says, write_whole
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.document import read_report
from tokenwire.typed_table import counted
from tokenwire.wire.inert import inert

_DEFAULT_FILE = Path("tokenwire-baseline.toml")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Manage known failures. Each has a reason, a link and an optional last day.",
    epilog=examples(
        "tokenwire check --json report.json",
        "tokenwire baseline update --from report.json",
        "tokenwire check --baseline tokenwire-baseline.toml",
    ),
)

_File = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The baseline file. Default: the configured one.")
]
_Reports = Annotated[
    list[Path],
    typer.Option("--from", metavar="REPORT", help="A JSON report, one for each run. Repeatable."),
]


def _print(words: str) -> None:
    """Print a line with control characters escaped, because other people may have written the baseline or the
    report.
    """
    typer.echo(inert(words))


def _file(context: typer.Context, file: Path | None) -> Path:
    """Return the path of the baseline: the argument, or the setting, or the default."""
    return file or Path(config_of(context).defaults.get("baseline", _DEFAULT_FILE))


def _demand_trust_in(path: Path, config: Config) -> None:
    """Ask for the user's trust if a settings file names an unusual file as the baseline to overwrite.

    Raises BadParameter or Abort if the user does not trust the file.
    """
    source = Path(config.source)
    if "baseline" in config.defaults and path != source.parent / _DEFAULT_FILE:
        demand_trust(source, Brought({"baseline": str(path)}))


@app.command(
    short_help="Show all known failures.",
    epilog=examples("tokenwire baseline show", "tokenwire baseline show known.toml"),
)
@usage_errors()
def show(context: typer.Context, file: _File = None, *, config: Path | None = CONFIG) -> None:
    """Show all known failures with their reason, link and last day."""
    baseline = read_baseline(_file(context, file))
    for entry, *others in baseline.tables():
        until = f", until {entry.expires}" if entry.expires else ""
        rate = (
            f", flaky: at most {entry.at_most}, {entry.failures} of {entry.runs} counted"
            if entry.at_most
            else ""
        )
        names = ", ".join(strict.scenario for strict in (entry, *others))
        name = f"{entry.requirement}[{names}]" if names else entry.requirement
        _print(f"{name}  {entry.dialect}: {entry.says}")
        _print(f"  {entry.reason or 'no reason'} ({entry.link or 'no link'}){until}{rate}")
    _print(f"{baseline.path}: {counted(len(baseline.entries), 'known failure')}")


@app.command(
    short_help="Update a baseline from reports.",
    epilog=examples(
        "tokenwire baseline update --from report.json",
        "tokenwire baseline update known.toml --from monday.json --from tuesday.json",
        "tokenwire baseline update --from report.json --reason 'one cause' --link https://host/issues/17",
    ),
)
@usage_errors()
def update(
    context: typer.Context,
    file: _File = None,
    *,
    reports: _Reports,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason for all new failures.")
    ] = "",
    link: Annotated[
        str, typer.Option("--link", metavar="URL", help="The issue about all new failures.")
    ] = "",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Tolerate new failures only in the scenarios in which they occurred."),
    ] = False,
    trust: bool = TRUST,
    config: Path | None = CONFIG,
) -> None:
    """Update a baseline from reports: remove fixed failures, and add new ones.

    A new failure needs a reason and a link. It is tolerated in any scenario; with --strict, only in those in
    which it failed. A new failure that is missing in some of the reports becomes flaky; later updates count
    the runs in which it occurs. Comments, reasons and links in the file stay. A new baseline stores the
    filters of the first report, and the reason if its run ended early. Later reports must have the same
    filters.
    """
    path = _file(context, file)
    if file is None and not trust:
        _demand_trust_in(path, config_of(context))
    with usage_errors(OSError):
        rows = {str(report): read_report(report) for report in reports}
        found = updated(path, rows, reason=reason, link=link, strict=strict)
    try:
        write_whole(path, found.text)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {system_says(error)}") from error
    for name in found.removed:
        _print(f"removed  {name}")
    wanted = " and ".join(what for what, given in (("a reason", reason), ("a link", link)) if not given)
    for new in found.added:
        _print(f"added    {new.in_words}")
    added = sum(max(1, len(new.scenarios)) for new in found.added)
    requirements = len({new.requirement for new in found.added})
    of_them = f" (of {counted(requirements, 'requirement')})" if requirements not in {0, added} else ""
    _print(f"{path}: {found.kept} kept, {added} added{of_them}, {len(found.removed)} removed")
    if found.added and wanted:
        _print(f"give each added entry {wanted}")


@app.command(
    short_help="Check whether every entry holds.",
    epilog=examples("tokenwire baseline check", "tokenwire baseline check --from report.json"),
)
@usage_errors()
def check(
    context: typer.Context,
    file: _File = None,
    *,
    reports: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="REPORT", help="Check also against this JSON report. Repeatable."),
    ] = None,
    config: Path | None = CONFIG,
) -> None:
    """Check that each entry of a baseline is correct, and that it fits the named reports.

    Exit status: 0 all entries are correct, 1 some are not, 2 wrong command line.
    """
    baseline = read_baseline(_file(context, file))
    runs = [read_report(report) for report in reports or ()]
    faults: dict[Fault, None] = {}
    for report in runs or [{"verdicts": []}]:
        uncovered = why_incomplete(report, baseline) if runs else "no report is named"
        held = apply_baseline(baseline, outcomes_in(report), uncovered=uncovered, today=date.today())
        faults |= dict.fromkeys(held.faults)
    for fault in faults:
        _print(f"{fault.kind}: {fault.message}")
    known, wrong = counted(len(baseline.entries), "known failure"), counted(len(faults), "wrong entry")
    _print(f"{baseline.path}: {known}, {wrong}")
    raise typer.Exit(ExitStatus.VIOLATION if faults else ExitStatus.CONFORMS)
