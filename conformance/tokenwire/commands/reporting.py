"""From what was asked to the exit status: judge, hold against the baseline, and tell it everywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path

import typer
from rich.console import Console

from tokenwire.ask import Budget
from tokenwire.baselines.baseline import Baseline, BaselineError, read_baseline
from tokenwire.baselines.tolerance import (
    BaselineResult,
    apply_baseline,
    covers_baseline,
    outcomes_of,
    with_reasons,
)
from tokenwire.commands.paths import writable
from tokenwire.disk import system_says, unfinished, why_not_appendable
from tokenwire.judging.judge import Judgement, judge_apart, put_together
from tokenwire.judging.verdict import ExitStatus, Verdict, exit_status
from tokenwire.profile import Standing, selected, standing
from tokenwire.pytest_plugin import run_items
from tokenwire.report.console import make_console
from tokenwire.report.document import document
from tokenwire.report.files import Outputs, append_step_summary, workflow_lines, write_bodies, write_reports
from tokenwire.report.github import fenced
from tokenwire.report.meter import Meter
from tokenwire.report.subject import Subject
from tokenwire.report.tally_file import Replayed, Selection, write_tally
from tokenwire.report.terminal import print_report
from tokenwire.requirement import load_requirements
from tokenwire.settings import ASKS_LESS, JUDGES_LESS, Settings, having

INTERRUPTED = 130
_PYTEST_COULD_NOT_RUN = {2: INTERRUPTED, 3: ExitStatus.HARNESS_ERROR, 4: ExitStatus.USAGE}
"""pytest's own exit codes that are not about tests."""


@dataclass(frozen=True)
class Reporting:
    """What to judge and where to tell it."""

    outputs: Outputs
    requirements: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    keyword: str = ""
    stop_at_first: bool = False
    last_failed: bool = False
    verbosity: int = 0
    baseline: Baseline | None = None
    budget: Budget | None = None
    """What the run could ask; None for a recording."""
    filters: tuple[str, ...] = ()
    """The options that left something out."""
    jobs: int = 1
    """How many processes judge."""
    on_judged: Callable[[Sequence[Judgement]], object] = lambda _: None
    """Told what was judged."""
    tally: Path | None = None
    """Where to write what `tokenwire merge` reads; None if it is not wanted."""

    @property
    def selection(self) -> Selection:
        return Selection(self.requirements, self.profiles, self.filters)


def writable_outputs(outputs: Outputs) -> Outputs:
    """Raises BadParameter where one of the files, or the summary of a workflow's step, cannot be written."""
    for file in outputs.files():
        writable(file, "the report")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and (refusal := why_not_appendable(Path(summary))):
        raise typer.BadParameter(
            f"GITHUB_STEP_SUMMARY: {refusal}; unset it, or name a file that can be written"
        )
    return outputs


def reporting_of(settings: Settings) -> Reporting:
    """What the options of a command say of it. Raises BadParameter."""
    outputs = Outputs(**{file.name: getattr(settings, file.name) for file in fields(Outputs)})
    if settings.report is not None:
        outputs = outputs.or_else(Outputs.within(settings.report))
    try:
        return Reporting(
            writable_outputs(outputs),
            settings.requirement,
            settings.profile,
            settings.keyword,
            settings.stop_at_first,
            settings.last_failed,
            settings.verbosity,
            read_baseline(settings.baseline) if settings.baseline is not None else None,
            filters=settings.narrowed_by(ASKS_LESS | JUDGES_LESS),
            tally=writable(settings.tally, "--tally") if settings.tally is not None else None,
        )
    except BaselineError as error:
        raise typer.BadParameter(str(error)) from error


def _held(judgements: Sequence[Judgement], subject: Subject, reporting: Reporting) -> BaselineResult | None:
    """What becomes of the verdicts once they are held against the baseline; None where there is none."""
    if reporting.baseline is None:
        return None
    asked_all = not any(option.flags[0] in reporting.filters for option in having(ASKS_LESS))
    complete = asked_all and covers_baseline(reporting.baseline, subject, reporting.budget)
    return apply_baseline(reporting.baseline, outcomes_of(judgements), complete=complete, today=date.today())


def _standings(judgements: Sequence[Judgement], profiles: Sequence[str]) -> list[Standing]:
    """What the run tells of each profile that was asked for."""

    def of(*verdicts: Verdict) -> set[str]:
        return {each.requirement.id for each in judgements if each.verdict in verdicts}

    decided, violated = of(Verdict.PASS, Verdict.WARN, Verdict.FAIL), of(Verdict.FAIL)
    return [standing(name, decided, violated) for name in profiles]


def _judged(subject: Subject, reporting: Reporting) -> Replayed:
    """Judge, and show how far that is."""
    rows = selected(reporting.profiles, reporting.requirements) or [*load_requirements().values()]
    watched = make_console(stderr=True)
    watched.quiet = reporting.verbosity < 0
    total = sum(len(run.heard) + len(rows) for run in subject.runs)
    with Meter(watched, "judging", total=total) as meter:

        def on_done(count: int, words: str) -> None:
            meter.show(done=count, words=words)

        judged = judge_apart(subject.runs, rows, jobs=reporting.jobs, on_done=on_done)
    return Replayed(subject, tuple(row.id for row in rows), reporting.selection, judged)


def tell(
    subject: Subject, reporting: Reporting, console: Console, *, replayed: Replayed | None = None
) -> int:
    """Judge, unless that was done, report everywhere, and give the exit status."""
    replayed = replayed or _judged(subject, reporting)
    judgements = put_together(replayed.judged)
    bodies = reporting.outputs.bodies
    subject = replace(subject, bodies=str(bodies) if bodies is not None else "")
    held = _held(judgements, subject, reporting)
    problems = [subject.unrecorded] if subject.unrecorded else []
    if reporting.tally is not None:
        try:
            write_tally(replayed, reporting.tally)
        except OSError as error:
            problems.append(f"{reporting.tally} was not written: {system_says(error)}")
    junit = reporting.outputs.junit
    begun = unfinished(junit) if junit is not None else None

    def forget_junit(error: OSError | None = None) -> None:
        if error is not None:
            problems.append(f"{junit} was not written: {system_says(error)}")
        if begun is not None:
            begun.unlink(missing_ok=True)

    ran, code = run_items(
        with_reasons(judgements, held) if held else judgements,
        subject,
        keyword=reporting.keyword,
        stop_at_first=reporting.stop_at_first,
        last_failed=reporting.last_failed,
        junit=begun,
        faults=held.faults if held else (),
        on_unwritten=forget_junit,
    )
    if code in _PYTEST_COULD_NOT_RUN:  # it has said why
        forget_junit()
        return _PYTEST_COULD_NOT_RUN[code]
    reporting.on_judged(ran)
    partly = reporting.keyword or reporting.stop_at_first or reporting.last_failed
    told_of = {judgement.requirement.id for judgement in ran}
    faults = [fault for fault in (held.faults if held else ()) if not partly or fault.requirement in told_of]
    # What is known gates nothing, and yet something was evaluated.
    status = exit_status(Verdict.INFO if judgement.known else judgement.verdict for judgement in ran)
    standings = _standings(ran, () if reporting.requirements else reporting.profiles)
    # What is green of a profile says nothing of it if the target does not show what the profile is about.
    unshown = not all(each.shown for each in standings)
    if (subject.broken_off or unshown) and status == ExitStatus.CONFORMS:
        status = ExitStatus.NOTHING_EVALUATED
    if faults and status in {ExitStatus.CONFORMS, ExitStatus.NOTHING_EVALUATED}:
        status = ExitStatus.VIOLATION
    selection = {"filters": list(reporting.filters), "budget": reporting.budget}
    baseline = held.as_json(faults) if held else None
    report = document(subject, ran, status, selection=selection, baseline=baseline, profiles=standings)
    # Written first: whatever the terminal makes of them, the files are there.
    problems += [
        *write_reports(report, reporting.outputs, ran),
        *write_bodies(ran, bodies),
        *append_step_summary(report),
    ]
    try:
        with fenced():
            print_report(console, report, verbosity=reporting.verbosity)
        for line in workflow_lines(report):
            typer.echo(line)
    except OSError as error:
        problems.append(f"the report could not be printed: {system_says(error)}")
        _print_nowhere()
    for problem in problems:
        typer.echo(problem, err=True)
    return ExitStatus.HARNESS_ERROR if problems else status


def _print_nowhere() -> None:
    """Standard output takes nothing any more: neither may what is left of it be tried again at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
