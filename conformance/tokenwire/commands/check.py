"""`tokenwire check`: ask a running server everything, and judge the answers."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tokenwire.asking.exploration import NothingToDrawWith, demand_hypothesis
from tokenwire.asking.resumption import NotResumed
from tokenwire.asking.run import NoSuchTarget, Plan, Progress, Unreached, interrogate
from tokenwire.asking.scenario import Budget
from tokenwire.asking.terminal_progress import TerminalProgress
from tokenwire.asking.wire_log import wire_log
from tokenwire.commands import options
from tokenwire.commands.plan import tell_plan
from tokenwire.commands.reporting import reporting_of, tell
from tokenwire.judging.judge import Judgement
from tokenwire.last_run import LAST, LastRun, failures, keep, last_run
from tokenwire.report.files import system_says
from tokenwire.report.subject import Subject
from tokenwire.report.terminal import make_console

EXAMPLES = options.examples(
    "tokenwire check --target http://127.0.0.1:30000",
    "tokenwire check --target http://127.0.0.1:30000 --budget quick --report report",
    "tokenwire check --requirement cumulative-ids-extend -v",
    "tokenwire check --header 'Authorization: Bearer env:MY_KEY' --baseline tokenwire-baseline.toml",
)


_ASKED_BY = (
    *(
        "timeout",
        "max_concurrency",
        "max_tokens",
        "rate",
        "dialect",
        "model",
        "budget",
        "tokenizer",
        "declare",
    ),
    *("worker", "without", "gentle", "restart", "wait", "channels"),
)
"""The parameters that say how to ask."""


_MOST_JOBS = 4
_WORTH_SHARING = 200
"""So many answers take longer to judge than processes take to start."""


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


def check(
    context: typer.Context,
    *,
    config: options.ConfigFile = None,
    target: options.Target,
    json: options.Json = None,
    junit: options.Junit = None,
    html: options.Html = None,
    sarif: options.Sarif = None,
    badge: options.Badge = None,
    trace: options.Trace = None,
    report: options.ReportFolder = None,
    baseline: options.BaselineFile = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Write every exchange there as it arrives.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Go on with a run that was cut off, from what it recorded there."
        ),
    ] = None,
    timeout: options.Timeout = 60.0,
    max_concurrency: options.MaxConcurrency = 16,
    max_tokens: options.MaxTokens = None,
    max_requests: options.MaxRequests = None,
    price: options.PriceOfTokens = "",
    max_cost: options.MaxCost = None,
    rate: options.Rate = None,
    dialect: options.Dialects = None,
    model: options.Model = "",
    scenario: options.Scenarios = None,
    without: options.Without = None,
    gentle: options.Gentle = False,
    budget: options.AskBudget = Budget.STANDARD,
    explore: Annotated[
        int, typer.Option("--explore", metavar="N", min=0, help="Let hypothesis draw N requests besides.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What --explore draws by.")] = 0,
    tokenizer: options.TokenizerFolder = None,
    profile: options.Profiles = None,
    requirement: options.Requirements = None,
    declare: Annotated[
        list[str] | None,
        typer.Option("--declare", metavar="NAME", help="The server has this capability; repeatable."),
    ] = None,
    worker: options.Worker = "",
    channels: options.Channels = "",
    restart: options.Restart = "",
    wait: options.Wait = None,
    header: options.SentHeaders = None,
    keyword: options.Keyword = "",
    stop_at_first: options.StopAtFirst = False,
    last_failed: options.LastFailed = False,
    keep_failures: Annotated[
        bool, typer.Option("--keep/--no-keep", help=f"Keep what failed in {LAST}, for `tokenwire again`.")
    ] = True,
    only_plan: Annotated[
        bool,
        typer.Option("--plan", help="Show how many requests and tokens would be asked for, and ask nothing."),
    ] = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Check a running server: ask all scenarios, then judge every requirement.

    Exit status: 0 conforms, known failures aside; 1 violation, or a baseline that does not hold; 2 wrong
    command line; 3 the suite failed; 4 nothing was evaluated, the target does not show a profile that was
    asked for, or it could not be reached.
    """
    if record is not None and resume is not None:
        raise typer.BadParameter("--resume records where the run did that was cut off; leave --record out")
    if record is not None:
        options.empty_folder(record, "--record")
    if resume is not None and not resume.is_dir():
        raise typer.BadParameter(f"--resume {resume} is no folder; name one that --record wrote")
    if resume is not None:
        record = options.writable_folder(resume, "--resume")
    if explore:
        try:
            demand_hypothesis()
        except NothingToDrawWith as error:
            raise typer.BadParameter(str(error)) from error
    plan = options.plan_of(context, target)
    if only_plan:
        raise typer.Exit(tell_plan(replace(plan, explore=explore, seed=seed), full=verbose))
    judged: list[Judgement] = []
    reporting = replace(reporting_of(context), budget=budget, on_judged=judged.extend)
    console = make_console()
    plan = replace(plan, record=record, resume=resume is not None, explore=explore, seed=seed)
    subject = ask(plan, verbosity=verbose - quiet)
    if isinstance(subject, Unreached):
        console.print(Text(subject.diagnosis), soft_wrap=True)
        subject = subject.subject
    try:
        status = tell(subject, replace(reporting, jobs=_jobs(subject)), console)
    except BrokenProcessPool:  # the system killed one, as it does where memory runs out
        status = tell(subject, reporting, console)
    if keep_failures and subject.runs:
        asked = {name: context.params[name] for name in _ASKED_BY}
        sent = options.headers_of(header, options.config_of(context).headers)
        _keep(last_run(target, asked, sent), judged, quiet=quiet)
    if not quiet:
        typer.echo(plan.stopwatch.words(), err=True)
    raise typer.Exit(status)


def _jobs(subject: Subject) -> int:
    """How many processes judge: the server has nothing to do meanwhile."""
    answers = sum(len(run.heard) for run in subject.runs)
    return min(_MOST_JOBS, os.cpu_count() or 1) if answers >= _WORTH_SHARING else 1


def _keep(run: LastRun, judged: list[Judgement], *, quiet: bool) -> None:
    """Keep what failed, for `tokenwire again`; that it cannot be written changes no verdict.

    What failed before is forgotten once nothing fails; where nothing ever did, no folder is made.
    """
    if not failures(judged) and not LAST.exists():
        return
    try:
        count = keep(run, judged)
    except OSError as error:
        typer.echo(f"what failed is not kept for `tokenwire again`: {system_says(error)}", err=True)
        return
    if failures(judged) and not quiet:
        typer.echo(f"{count} exchanges are kept in {LAST}; after a change: tokenwire again")
