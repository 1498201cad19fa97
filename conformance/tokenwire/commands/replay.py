"""`tokenwire replay`: judge recorded exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenwire.capture import CaptureError
from tokenwire.commands import options
from tokenwire.commands.check import baseline_in, outputs
from tokenwire.commands.reporting import Reporting, tell
from tokenwire.planning import NotPlanned, tokenizer_in
from tokenwire.profile import load_profiles
from tokenwire.replay import NothingToReplay
from tokenwire.replay import replay as read_captures
from tokenwire.report.files import Outputs
from tokenwire.report.terminal import make_console
from tokenwire.requirement import load_requirements

EXAMPLES = options.examples(
    "tokenwire replay recorded",
    "tokenwire replay recorded --requirement cumulative-ids-extend -v",
    "tokenwire replay fixtures/sglang/0.5.23/*.gz --report report",
)


def replay(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Captures, or folders of captures.")],
    *,
    config: options.ConfigFile = None,  # noqa: ARG001  # its callback has read it
    json: options.Json = None,
    junit: options.Junit = None,
    html: options.Html = None,
    sarif: options.Sarif = None,
    badge: options.Badge = None,
    report: options.ReportFolder = None,
    baseline: options.BaselineFile = None,
    tokenizer: options.TokenizerFolder = None,
    profile: options.Profiles = None,
    requirement: options.Requirements = None,
    keyword: options.Keyword = "",
    stop_at_first: options.StopAtFirst = False,
    last_failed: options.LastFailed = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Judge recorded exchanges: the same verdicts, and no server.

    A folder that `--record` wrote is one run; so is each file that holds many exchanges. Exit status as of
    `tokenwire check`.
    """
    reporting = Reporting(
        outputs(Outputs(json, junit, html, sarif, badge), report),
        options.known("requirement", requirement or (), load_requirements()),
        options.known("profile", profile or (), load_profiles()),
        keyword,
        stop_at_first,
        last_failed,
        verbose - quiet,
        baseline_in(baseline),
        None,
        options.filters(context),
    )
    try:
        subject = read_captures(paths, tokenizer=tokenizer_in(tokenizer))
    except (NothingToReplay, NotPlanned, CaptureError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(tell(subject, reporting, make_console()))
