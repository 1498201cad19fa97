"""Judges a run, applies the baseline, writes all reports, and returns the exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import pytest
import typer
from rich.console import Console

from tokenwire.ask import Budget
from tokenwire.baselines.baseline import Baseline, read_baseline
from tokenwire.baselines.tolerance import (
    BaselineResult,
    apply_baseline,
    ended_as_known,
    outcomes_of,
    why_uncovered,
    with_reasons,
)
from tokenwire.commands.command import writable
from tokenwire.disk import system_says, unfinished, why_not_appendable
from tokenwire.judging.judge import Judgement, combined, judge_runs
from tokenwire.judging.stop import Stop
from tokenwire.judging.verdict import ExitStatus, Verdict, exit_status
from tokenwire.profile import Standing, selected, standing
from tokenwire.pytest_plugin import run_items
from tokenwire.report.console import make_console
from tokenwire.report.document import document, verdict_of_each
from tokenwire.report.files import Outputs, append_step_summary, workflow_lines, write_bodies, write_reports
from tokenwire.report.github import fenced
from tokenwire.report.meter import Meter
from tokenwire.report.subject import Subject
from tokenwire.report.tally_file import Replayed, Selection, write_tally
from tokenwire.report.terminal import print_report
from tokenwire.requirement import load_requirements
from tokenwire.settings import ASKS_LESS, JUDGES_LESS, Settings, having

_PYTEST_COULD_NOT_RUN = {2: 130, 3: ExitStatus.HARNESS_ERROR, 4: ExitStatus.USAGE}
"""The exit status for exit codes of pytest that are not verdicts. 130 means an interrupt."""


class TwinReport(Protocol):
    """The comparison of the target with its twin, which `tokenwire twin` makes.

    The comparison is a part of the report.
    """

    @property
    def exit_status(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...

    def print_to(self, console: Console) -> None: ...


@dataclass(frozen=True)
class Reporting:
    """The reports to write about a run, and the settings for judging it."""

    outputs: Outputs
    settings: Settings = field(default_factory=Settings)
    """The settings of the command, which decide what is judged and what is printed."""
    baseline: Baseline | None = None
    budget: Budget | None = None
    """The budget of the run; None for a recording."""
    filters: tuple[str, ...] = ()
    """The command-line flags that limited the run."""
    jobs: int = 1
    """The number of processes for judging."""
    sent: int = 0
    """The number of requests that the run has sent. 0 for a recording."""
    on_judged: Callable[[Sequence[Judgement]], object] = lambda _: None
    """A function that is called with all judgements that were made."""
    twin: TwinReport | None = None
    """The comparison of the target with its twin; None without one."""

    @property
    def work(self) -> str:
        """A line about the requests that were sent and the main file of the report. Empty without both."""
        files = (self.outputs.html, self.outputs.json, self.outputs.junit, *self.outputs.files())
        file = next(filter(None, files), None)
        sent = f"sent {self.sent:,} request{'s' * (self.sent != 1)}" if self.sent else ""
        return "; ".join(filter(None, (sent, f"the report is {file}" if file is not None else "")))

    @property
    def partial(self) -> bool:
        """True if an option of pytest selects only some of the judgements."""
        return bool(self.settings.keyword or self.settings.stop_at_first or self.settings.last_failed)


def writable_outputs(outputs: Outputs) -> Outputs:
    """Check that all output files can be written, including the GitHub step summary. Raises BadParameter."""
    for file in outputs.files():
        writable(file, "the report")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and (refusal := why_not_appendable(Path(summary))):
        raise typer.BadParameter(
            f"GITHUB_STEP_SUMMARY: {refusal}; unset it, or name a file that can be written"
        )
    return outputs


def reporting_of(settings: Settings) -> Reporting:
    """Return the reporting for the settings of a command. Raises UsageError and BadParameter."""
    outputs = Outputs(**{file.name: getattr(settings, file.name) for file in fields(Outputs)})
    if settings.report is not None:
        outputs = outputs.or_else(Outputs.within(settings.report))
    if settings.tally is not None:
        writable(settings.tally, "--tally")
    return Reporting(
        writable_outputs(outputs),
        settings,
        read_baseline(settings.baseline) if settings.baseline is not None else None,
        filters=settings.narrowed_by(ASKS_LESS | JUDGES_LESS),
    )


def _baseline_result(
    judgements: Sequence[Judgement], subject: Subject, reporting: Reporting
) -> BaselineResult | None:
    """Return the result of applying the baseline. None if no baseline is configured."""
    if reporting.baseline is None:
        return None
    flags = {option.flags[0] for option in having(ASKS_LESS)}
    asked_less = [words for words in reporting.filters if words.split()[0] in flags]
    uncovered = why_uncovered(reporting.baseline, subject.broken_off, reporting.budget, asked_less)
    return apply_baseline(
        reporting.baseline, outcomes_of(judgements), uncovered=uncovered, today=date.today()
    )


def _judged(subject: Subject, reporting: Reporting, stop: Stop) -> Replayed:
    """Judge a run, with a progress bar.

    If the user stops the judging, return the judgements that were made until then.
    """
    rows = selected(reporting.settings.profile, reporting.settings.requirement) or [
        *load_requirements().values()
    ]
    progress = make_console(stderr=True)
    progress.quiet = reporting.settings.verbosity < 0
    total = sum(len(run.answers) + len(rows) for run in subject.runs)
    with Meter(progress, "judging", total=total) as meter:

        def on_done(count: int, words: str) -> None:
            meter.show(done=count, words=words)

        judged = judge_runs(
            subject.runs,
            rows,
            jobs=reporting.jobs,
            limit_s=reporting.settings.judge_limit,
            stop=stop,
            on_done=on_done,
        )
    if stop.reason and stop.share < 1:
        words = (
            f"{stop.reason}: {stop.share:.0%} of the work was done; a replay of a recording does all of it"
        )
        subject = replace(subject, broken_off="; ".join(filter(None, (subject.broken_off, words))))
    selection = Selection(reporting.settings.requirement, reporting.settings.profile, reporting.filters)
    return Replayed(subject, tuple(row.id for row in rows), selection, judged)


def judge_and_report(
    subject: Subject, reporting: Reporting, console: Console, *, replayed: Replayed | None = None
) -> int:
    """Judge a run, write all reports, and return the exit status.

    `replayed`: judgements that were made already. SIGINT and SIGTERM end the judging. The reports then
    contain the verdicts that were reached until the signal.
    """
    stop = Stop()
    with stop.at_signals(subject.stopped):
        return _judge_and_report(subject, reporting, console, stop, replayed)


def _judge_and_report(
    subject: Subject, reporting: Reporting, console: Console, stop: Stop, replayed: Replayed | None
) -> int:
    if replayed is None:
        replayed = _judged(subject, reporting, stop)
        subject = replayed.subject
    judgements = combined(replayed.judged)
    bodies = reporting.outputs.bodies
    subject = replace(subject, bodies=str(bodies) if bodies is not None else "")
    result = _baseline_result(judgements, subject, reporting)
    problems = [subject.unrecorded] if subject.unrecorded else []
    if (tally := reporting.settings.tally) is not None:
        try:
            write_tally(replayed, tally)
        except OSError as error:
            problems.append(f"{tally} was not written: {system_says(error)}")
    ran, code = _run_pytest(judgements, subject, reporting, result, problems)
    if code == pytest.ExitCode.INTERNAL_ERROR and not reporting.partial:
        ran = list(judgements)
        problems.append("pytest failed, and a JUnit file was not written; the other forms are")
    elif code in _PYTEST_COULD_NOT_RUN:  # pytest has already printed the reason
        return _PYTEST_COULD_NOT_RUN[code]
    reporting.on_judged(ran)
    selected_ids = {judgement.requirement.id for judgement in ran} if reporting.partial else None
    faults = [
        fault
        for fault in (result.faults if result else ())
        if selected_ids is None or fault.requirement in selected_ids
    ]
    profiles = () if reporting.settings.requirement else reporting.settings.profile
    verdicts = verdict_of_each(ran)
    standings = [standing(name, verdicts, subject.families) for name in profiles]
    known_end = reporting.baseline is not None and ended_as_known(reporting.baseline, subject.broken_off)
    twin = reporting.twin
    status = run_status(
        ran, standings, broken_off=bool(subject.broken_off) and not known_end, baseline_holds=not faults
    )
    if twin is not None and status in {ExitStatus.CONFORMS, ExitStatus.NOTHING_EVALUATED}:
        status = twin.exit_status or status
    report = document(
        subject,
        ran,
        status,
        selection={"filters": list(reporting.filters), "budget": reporting.budget},
        baseline=result.as_json(faults) if result else None,
        profiles=standings,
        twin=twin.as_json() if twin is not None else None,
    )
    # The files are written first, so that a failure of the terminal report cannot prevent them.
    problems += [
        *write_reports(report, reporting.outputs, ran),
        *write_bodies(ran, bodies),
        *append_step_summary(report),
    ]
    try:
        with fenced():
            if twin is not None:
                twin.print_to(console)
                console.print()
            print_report(
                console,
                report,
                verbosity=reporting.settings.verbosity,
                work="" if problems else reporting.work,
            )
        for line in workflow_lines(report):
            typer.echo(line)
    except OSError as error:
        problems.append(f"the report could not be printed: {system_says(error)}")
        _close_stdout()
    for problem in problems:
        typer.echo(problem, err=True)
    return ExitStatus.HARNESS_ERROR if problems else status


def _run_pytest(
    judgements: Sequence[Judgement],
    subject: Subject,
    reporting: Reporting,
    result: BaselineResult | None,
    problems: list[str],
) -> tuple[list[Judgement], int]:
    """Run the judgements as pytest items. Return the judgements that ran, and the exit code of pytest."""
    junit = reporting.outputs.junit
    begun = unfinished(junit) if junit is not None else None
    if begun is not None:
        begun.unlink(missing_ok=True)  # resolved here, because pytest would follow a symbolic link

    def on_unwritten(error: OSError) -> None:
        problems.append(f"{junit} was not written: {system_says(error)}")
        if begun is not None:
            begun.unlink(missing_ok=True)

    ran, code = run_items(
        with_reasons(judgements, result) if result else judgements,
        subject,
        keyword=reporting.settings.keyword,
        stop_at_first=reporting.settings.stop_at_first,
        last_failed=reporting.settings.last_failed,
        junit=begun,
        faults=result.faults if result else (),
        on_unwritten=on_unwritten,
    )
    if code in _PYTEST_COULD_NOT_RUN and begun is not None:
        begun.unlink(missing_ok=True)
    return ran, code


def run_status(
    ran: Sequence[Judgement], standings: Sequence[Standing], *, broken_off: bool, baseline_holds: bool
) -> int:
    """Return the exit status of a run from its judgements."""
    # A known failure does not fail the run, but it shows that something was evaluated.
    status = exit_status(Verdict.INFO if judgement.known else judgement.verdict for judgement in ran)
    # If the target lacks a capability of a profile, a PASS of other requirements does not show the profile.
    unshown = any(standing.missing for standing in standings)
    if (broken_off or unshown) and status == ExitStatus.CONFORMS:
        status = ExitStatus.NOTHING_EVALUATED
    if not baseline_holds and status in {ExitStatus.CONFORMS, ExitStatus.NOTHING_EVALUATED}:
        status = ExitStatus.VIOLATION
    return status


def _close_stdout() -> None:
    """Redirect standard output to /dev/null after a write to it failed.

    Otherwise Python would flush standard output again at exit, and fail again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
