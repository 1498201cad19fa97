"""`tokenwire replay`: judge recorded exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from tokenwire.asking.planning import judged_with, tokenizer_in
from tokenwire.baselines.expected import difference, judged
from tokenwire.commands.command import command, usage_errors
from tokenwire.commands.reporting import judge_and_report, reporting_of
from tokenwire.evicted import AnswerStore
from tokenwire.judging.collector import few_collections
from tokenwire.judging.verdict import ExitStatus
from tokenwire.profile import selected
from tokenwire.replay import replay
from tokenwire.report.console import make_console
from tokenwire.settings import OPTIONS, Settings
from tokenwire.wire.json_lines import CaptureError


@few_collections()
def _replay(
    settings: Settings,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH...", help="Captures, or folders of captures.")
    ] = None,
    *,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show differences from the expected verdicts beside each capture.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="With --diff: write the present verdicts beside each capture.")
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            max=1024,
            help="Use N processes. The verdicts are the same.",
        ),
    ] = 1,
) -> None:
    """Judge recorded exchanges. The verdicts are the same as in the live run, and no server is needed.

    A folder that --record wrote is one run. A file with many exchanges is one run as well. The exit status is
    that of `tokenwire check`.

    With --diff, only differences from the verdicts in `<case>.expected.yaml` are printed. The exit status is
    1 if there are any. The default path is then the folder `fixtures`.
    """
    if diff:
        _refuse_with_diff(settings)
        raise typer.Exit(_print_differences(paths or [Path("fixtures")], settings.requirement, update=update))
    if update:
        raise typer.BadParameter("--update works only with --diff; add --diff")
    if not paths:
        raise typer.BadParameter("the argument PATH is missing; name files or folders that --record wrote")
    reporting = replace(reporting_of(settings), jobs=jobs)
    if settings.tally is not None and reporting.partial:
        raise typer.BadParameter("--tally needs the verdicts on whole requirements; remove -k, -x and --lf")
    try:
        with usage_errors(OSError):
            tokenizer = tokenizer_in(settings.tokenizer)
            subject = replay(paths, tokenizer=tokenizer, store=AnswerStore(jobs=jobs))
        dialects = (word for name in settings.dialect for word in ("--dialect", name))
        subject = replace(subject, judged_with=(*judged_with(settings.tokenizer), *dialects))
        status = judge_and_report(subject, reporting, make_console())
    except BrokenProcessPool:
        words = "a judging process was killed, perhaps because memory ran out"
        typer.echo(f"{words}; use fewer --jobs", err=True)
        status = ExitStatus.HARNESS_ERROR
    except CaptureError as error:  # a capture was changed while it was read
        typer.echo(str(error), err=True)
        status = ExitStatus.HARNESS_ERROR
    raise typer.Exit(status)


def _refuse_with_diff(settings: Settings) -> None:
    """Check that the command line has no option that --diff ignores. Raises BadParameter."""
    for name in sorted(settings.given - {"paths", "diff", "update", "requirement"}):
        flag = OPTIONS[name].flags[0] if name in OPTIONS else f"--{name}"
        raise typer.BadParameter(f"{flag} has no effect with --diff; remove one of the two")


def _print_differences(paths: list[Path], requirements: Sequence[str], *, update: bool) -> int:
    """Print the differences from the expected verdicts.

    With `update`, write the present verdicts into the files. Return the exit status.
    """
    rows = selected((), requirements)
    different = total = 0
    with usage_errors(OSError):
        for capture in chain.from_iterable(judged(path, rows) for path in paths):
            total += 1
            lines = difference(capture)
            if not lines:
                continue
            different += 1
            typer.echo(str(capture.file).removesuffix(".expected.yaml"))
            for line in lines:
                typer.echo(f"  {line}")
            if update:
                capture.update()
    done = "; the expected verdicts were updated" if update and different else ""
    typer.echo(f"{different} of {total} captures have other verdicts than expected{done}")
    return ExitStatus.VIOLATION if different and not update else ExitStatus.CONFORMS


app = command(
    _replay,
    "tokenwire replay recorded",
    "tokenwire replay recorded --requirement cumulative-ids-extend -v",
    "tokenwire replay fixtures/sglang/0.5.23/*.gz --report report",
    "tokenwire replay recorded --jobs 8",
    "tokenwire replay recorded --tally recorded.tally.gz",
    "tokenwire replay --diff fixtures",
    "tokenwire replay --diff --update --requirement cumulative-ids-extend fixtures",
)
