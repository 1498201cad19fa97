"""The report on the terminal: a table of the requirements by chapter, then the failures, then one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenwire.judge import NO_SCENARIO, Judgement
from tokenwire.report.failure import failure
from tokenwire.report.subject import Subject
from tokenwire.verdict import ExitStatus, Verdict, worst

_STYLES = {
    Verdict.PASS: "green",
    Verdict.INFO: "cyan",
    Verdict.UNSUPPORTED: "dim",
    Verdict.NOT_TESTABLE: "dim",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.WARN: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.HARNESS_ERROR: "bold magenta",
}
_BAD = (Verdict.WARN, Verdict.FAIL, Verdict.HARNESS_ERROR)
_TELLING = (Verdict.HARNESS_ERROR, Verdict.FAIL, Verdict.WARN, Verdict.PASS)
_STATUS_WORDS = {
    ExitStatus.CONFORMS: "conforms, as far as this run could see",
    ExitStatus.VIOLATION: "does not conform",
    ExitStatus.HARNESS_ERROR: "the suite itself failed: please report it, with the traceback above",
    ExitStatus.NOTHING_EVALUATED: "nothing was evaluated",
}
_WIDTH_OF_A_PIPE = 140


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not fold long lines to 80 columns where nobody watches."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_PIPE)


def overall(judgements: Sequence[Judgement]) -> Verdict:
    """One verdict for a requirement over all scenarios: what was seen weighs more than what was not."""
    seen = {judgement.verdict for judgement in judgements}
    return next((verdict for verdict in _TELLING if verdict in seen), worst(seen))


def _reason(judgements: Sequence[Judgement], verdict: Verdict) -> str:
    """The scenarios where something was seen; where nothing was, why."""
    if verdict in (Verdict.PASS, *_BAD):
        shown = [each for each in judgements if each.verdict is verdict or verdict is Verdict.PASS]
        names = list(dict.fromkeys(each.scenario for each in shown if each.scenario != NO_SCENARIO))
        return ", ".join(names)
    return next(judgement.message for judgement in judgements if judgement.verdict is verdict)


def _by_requirement(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    grouped: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        grouped.setdefault(judgement.requirement.id, []).append(judgement)
    return grouped


def table(judgements: Sequence[Judgement], *, full: bool = False) -> Table:
    """All requirements by chapter. `full` folds long reasons instead of cutting them."""
    shown = Table(box=None, pad_edge=False, show_edge=False)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("requirement", no_wrap=True)
    shown.add_column("witnesses", justify="right", no_wrap=True)
    shown.add_column("scenarios, or why not", no_wrap=not full, overflow="fold" if full else "ellipsis")
    chapter = ""
    for identifier, each in _by_requirement(judgements).items():
        if each[0].requirement.chapter != chapter:
            chapter = each[0].requirement.chapter
            shown.add_section()
            shown.add_row("", Text(chapter, style="bold"))
        verdict = overall(each)
        witnesses = sum(judgement.witnesses for judgement in each)
        style = _STYLES[verdict]
        shown.add_row(
            Text(verdict, style=style),
            identifier,
            str(witnesses or ""),
            Text(_reason(each, verdict), style="dim"),
        )
    return shown


def _bad_news(judgements: Sequence[Judgement], subject: Subject) -> list[Text]:
    told = []
    for judgement in judgements:
        if judgement.verdict is Verdict.HARNESS_ERROR:
            told.append(Text(f"{judgement.verdict}  {judgement.name}\n{judgement.message}"))
        elif judgement.violations:
            told.append(Text(failure(judgement, subject)))
        else:
            continue
        told[-1].stylize(_STYLES[judgement.verdict], 0, len(judgement.verdict))
    return told


def summary_line(subject: Subject, judgements: Sequence[Judgement], exit_status: int) -> str:
    """The last line: how many requirements got which verdict, and what that amounts to."""
    counts = Counter(overall(each) for each in _by_requirement(judgements).values())
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(Verdict) if counts[verdict])
    return f"{subject.title}: {_STATUS_WORDS[exit_status]} ({words or 'no requirement was selected'})"


def print_report(
    console: Console,
    subject: Subject,
    judgements: Sequence[Judgement],
    exit_status: int,
    *,
    verbosity: int = 0,
) -> None:
    """Print the whole report. `verbosity` below 0 leaves out the table, above 0 tells every reason."""
    if verbosity >= 0 and judgements:
        console.print(table(judgements, full=verbosity > 0))
        console.print()
    for text in _bad_news(judgements, subject):
        console.print(text, soft_wrap=True)
        console.print()
    for dialect, reason in subject.left_out.items():
        console.print(Text(f"not asked: {dialect}: {reason}", style="dim"), soft_wrap=True)
    for remark in subject.remarks:
        console.print(Text(f"remark: {remark}", style="yellow"), soft_wrap=True)
    if verbosity > 0:
        for capability in sorted(
            {(c.name, c.established) for run in subject.runs for c in run.capabilities.values() if c.present}
        ):
            console.print(Text(f"capability: {capability[0]}: {capability[1]}", style="dim"), soft_wrap=True)
    console.print(Text(summary_line(subject, judgements, exit_status), style="bold"), soft_wrap=True)
