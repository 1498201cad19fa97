"""The report on the terminal: a table of the requirements by chapter, then the failures, then one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
_IN_SUMMARY = (*_TELLING, *(verdict for verdict in reversed(Verdict) if verdict not in _TELLING))
_STATUS_WORDS = {
    ExitStatus.CONFORMS: "conforms, as far as this run could see",
    ExitStatus.VIOLATION: "does not conform",
    ExitStatus.HARNESS_ERROR: "the suite itself failed: please report it, with the traceback above",
    ExitStatus.NOTHING_EVALUATED: "nothing was evaluated",
}
_WIDTH_OF_A_PIPE = 140
_MOST_SCENARIOS = 3


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not fold long lines to 80 columns where nobody watches."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_PIPE)


def overall(judgements: Sequence[Judgement]) -> Verdict:
    """One verdict for a requirement over all scenarios: what was seen weighs more than what was not."""
    seen = {judgement.verdict for judgement in judgements}
    return next((verdict for verdict in _TELLING if verdict in seen), worst(seen))


def _reason(judgements: Sequence[Judgement], verdict: Verdict, *, full: bool) -> str:
    """The scenarios where something was seen; where nothing was, why."""
    if verdict in (Verdict.PASS, *_BAD):
        shown = [each for each in judgements if each.verdict is verdict or verdict is Verdict.PASS]
        names = list(dict.fromkeys(each.scenario for each in shown if each.scenario != NO_SCENARIO))
        more = len(names) - _MOST_SCENARIOS
        return (
            ", ".join(names) if full or more < 1 else f"{', '.join(names[:_MOST_SCENARIOS])} and {more} more"
        )
    return next(judgement.message for judgement in judgements if judgement.verdict is verdict)


def _by_requirement(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    grouped: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        grouped.setdefault(judgement.requirement.id, []).append(judgement)
    return grouped


def table(judgements: Sequence[Judgement], *, full: bool = False) -> Table:
    """All requirements by chapter. `full` folds long reasons instead of cutting them."""
    grouped = _by_requirement(judgements)
    shown = Table(box=None, pad_edge=False, show_edge=False)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("requirement", no_wrap=True)
    shown.add_column("witnesses", justify="right", no_wrap=True)
    shown.add_column("scenarios, or why not")  # may wrap: that is the column that gives way
    chapter = ""
    for identifier, each in grouped.items():
        if each[0].requirement.chapter != chapter:
            chapter = each[0].requirement.chapter
            shown.add_section()
            shown.add_row("", Text(chapter, style="bold"))
        verdict = overall(each)
        witnesses = sum(judgement.witnesses for judgement in each)
        reason = Text(_reason(each, verdict, full=full), "dim", no_wrap=not full, overflow="ellipsis")
        shown.add_row(Text(verdict, _STYLES[verdict]), identifier, str(witnesses or ""), reason)
    return shown


def _bad_news(judgements: Sequence[Judgement], subject: Subject, *, full: bool) -> Iterator[Text]:
    """Each failure: in the first scenario of its requirement, or in all of them where `full`."""
    for each in _by_requirement(judgements).values():
        bad = [judgement for judgement in each if judgement.violations or judgement.verdict in _BAD]
        for judgement in bad if full else bad[:1]:
            if judgement.verdict is Verdict.HARNESS_ERROR:
                told = Text(f"{judgement.verdict}  {judgement.name}\n{judgement.message}")
            else:
                told = Text(failure(judgement, subject))
            told.stylize(_STYLES[judgement.verdict], 0, len(judgement.verdict))
            yield told
        if len(bad) > 1 and not full:
            yield Text(f"  also in {', '.join(judgement.scenario for judgement in bad[1:])}", "dim")


def _established(subject: Subject) -> set[tuple[str, str]]:
    """The capabilities that the target was seen to have, each with how that is known."""
    known = (capability for run in subject.runs for capability in run.capabilities.values())
    return {(capability.name, capability.established) for capability in known if capability.present}


def summary_line(subject: Subject, judgements: Sequence[Judgement], exit_status: int) -> str:
    """The last line: how many requirements got which verdict, and what that amounts to."""
    counts = Counter(overall(each) for each in _by_requirement(judgements).values())
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _IN_SUMMARY if counts[verdict])
    outcome = f"broken off: {subject.broken_off}" if subject.broken_off else _STATUS_WORDS[exit_status]
    return f"{subject.title}: {outcome} ({words or 'no verdict'})"


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
    for text in _bad_news(judgements, subject, full=verbosity > 0):
        console.print(text, soft_wrap=True)
        console.print()
    for dialect, reason in subject.left_out.items():
        console.print(Text(f"not asked: {dialect}: {reason}", style="dim"), soft_wrap=True)
    for remark in subject.remarks:
        console.print(Text(f"remark: {remark}", style="yellow"), soft_wrap=True)
    if verbosity > 0:
        for name, reason in subject.not_asked.items():
            console.print(Text(f"not asked: {name}: {reason}", style="dim"), soft_wrap=True)
        for name, words in sorted(_established(subject)):
            console.print(Text(f"capability: {name}: {words}", style="dim"), soft_wrap=True)
    console.print(Text(summary_line(subject, judgements, exit_status), style="bold"), soft_wrap=True)
