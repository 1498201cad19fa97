"""`tokenwire twin`: decides if two deployments serve the same model. `check --twin` does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tokenwire.ask import Budget
from tokenwire.asking.planning import planned
from tokenwire.asking.politeness import Purse
from tokenwire.asking.run import Plan
from tokenwire.commands.command import command, empty_folder, writable
from tokenwire.disk import write_whole
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json
from tokenwire.settings import Settings
from tokenwire_twin.commands.compare import is_configured
from tokenwire_twin.twin import TwinReport, TwinTally, twin_report, twins_as_json
from tokenwire_twin.twin_asking import ask_twins
from tokenwire_twin.twin_forms import print_twins, twin_page
from tokenwire_twin.twin_tally import merged_twins, write_twins

_TOKENS = {Budget.QUICK: 300, Budget.STANDARD: 3000, Budget.SOAK: 30_000}
"""The number of tokens that both deployments score for `tokenwire check --twin`, by budget."""


def twin_plans(
    settings: Settings,
    urls: tuple[str, str],
    is_configured: Callable[[str], bool],
    record: Path | None = None,
    *,
    purse: Purse | None = None,
    models: tuple[str, str] = ("", ""),
) -> tuple[Plan, Plan]:
    """Return the plans for two deployments.

    Headers in a settings file are sent only to the file's target. `purse`: the counter of requests and tokens
    that both deployments share; None for a new counter. `models`: the model names at each side; empty for the
    name in the settings. Raises UsageError.
    """

    def plan(url: str, side: str, model: str) -> Plan:
        headers = settings.file_headers if is_configured(url) else ()
        named = replace(settings, target=url, file_headers=headers, model=model or settings.model)
        return replace(
            planned(named),
            record=record / side if record is not None else None,
            on_loss=lambda words: typer.echo(words, err=True),
        )

    first, other = plan(urls[0], "a", models[0]), plan(urls[1], "b", models[1])
    purse = purse or first.purse
    return replace(first, purse=purse), replace(other, purse=purse)


@dataclass(frozen=True)
class _BesideTwin:
    """A comparison with a twin, as a part of the report of `tokenwire check`."""

    report: TwinReport

    @property
    def exit_status(self) -> int:
        return self.report.exit_status

    def as_json(self) -> dict[str, Any]:
        return twins_as_json(self.report)

    def print_to(self, console: Console) -> None:
        print_twins(console, self.report)


def compared_with_twin(settings: Settings, purse: Purse) -> _BesideTwin:
    """Compare the target with its twin, for `tokenwire check --twin`. Raises UsageError."""
    urls = settings.target, settings.twin
    plans = twin_plans(settings, urls, lambda url: url == settings.target, purse=purse)
    return _BesideTwin(twin_report(asyncio.run(ask_twins(plans, _TOKENS[settings.budget]))))


def merge(tallies: Sequence[Path], settings: Settings) -> int:
    """Merge the tallies of several twin comparisons, for `tokenwire merge`. Return the exit status.

    Raises UsageError and OSError.
    """
    return _show(merged_twins(tallies), settings)


def _show(tally: TwinTally, settings: Settings) -> int:
    """Print a comparison, write the requested files, and return the exit status. Raises UsageError."""
    report = twin_report(tally)
    if settings.json is not None:
        write_whole(settings.json, as_json(twins_as_json(report)))
    if settings.html is not None:
        write_whole(settings.html, twin_page(report))
    if settings.tally is not None:
        write_twins(tally, settings.tally)
    print_twins(make_console(), report)
    return report.exit_status


def _twin(
    context: typer.Context,
    settings: Settings,
    *,
    first: Annotated[str, typer.Option("--a", metavar="URL", help="Base URL of one deployment.")],
    other: Annotated[str, typer.Option("--b", metavar="URL", help="Base URL of the other deployment.")],
    first_model: Annotated[
        str, typer.Option("--a-model", metavar="NAME", help="Model name at A. Default: --model.")
    ] = "",
    other_model: Annotated[
        str, typer.Option("--b-model", metavar="NAME", help="Model name at B. Default: --model.")
    ] = "",
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, max=10**9, help="Number of tokens that both score.")
    ] = 3000,
    part: Annotated[
        int,
        typer.Option(
            "--part",
            metavar="N",
            min=0,
            max=10**9,
            help="Number of this part. Each part scores different texts, so that parts can be merged.",
        ),
    ] = 0,
) -> None:
    """Decide if two deployments serve the same model: before and after an upgrade, on one GPU and on several,
    with two precisions.

    Both get the same requests, and compute logprobs for the same ids. The differences are compared with the
    noise of each side, which is how much its logprobs differ when they are repeated. Other requests show if
    both have the same chat template, the same tokenizer, and the same ids that end an answer. Headers of
    --header are sent to both, headers of the settings file only to its target.

    Exit status: 0 the same, perhaps except for noise; 1 a different model, template, tokenizer or end; 2
    wrong command line, or a server that cannot be reached; 4 undecided.
    """
    for name in ("json", "html", "tally"):
        if (file := getattr(settings, name)) is not None:
            writable(file, f"--{name}")
    record = empty_folder(settings.record, "--record") if settings.record is not None else None
    models = first_model, other_model
    plans = twin_plans(
        settings, (first, other), lambda url: is_configured(context, url), record, models=models
    )
    raise typer.Exit(_show(asyncio.run(ask_twins(plans, tokens, part)), settings))


app = command(
    _twin,
    "tokenwire twin --a http://127.0.0.1:30000 --b http://127.0.0.1:30001",
    "tokenwire twin --a http://old:30000 --b http://new:30000 --tokens 30000 --html twin.html",
    "tokenwire twin --a http://old-7:30000 --b http://new-7:30000 --part 7 --tally 7.tally.gz",
)
