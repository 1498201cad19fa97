"""The report on the terminal: a table of the requirements by chapter, then the failures, then one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tokenwire.judging.verdict import Verdict
from tokenwire.report.failure import failure
from tokenwire.report.overview import (
    Summary,
    baseline_faults,
    flaky,
    following_in_words,
    in_order,
    numbers,
    outcome,
    profiles_in_words,
    summaries,
    title,
)
from tokenwire.report.wording import inert

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
_KNOWN_STYLE = "yellow"
_WIDTH_OF_A_PIPE = 140
_MOST_SCENARIOS = 3


@dataclass(frozen=True)
class _InertRenderable:
    """What is printed, without anything that the terminal would act on but the styles of this program."""

    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


class _Inert(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_InertRenderable(renderable) for renderable in renderables]


def make_console(*, stderr: bool = False) -> Console:
    """A console for what servers wrote: all text on it is inert, whoever prints it.

    It does not fold long lines to 80 columns if no terminal shows them.
    """
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_PIPE)
    console.push_render_hook(_Inert())
    return console


def _reason(summary: Summary, *, full: bool) -> str:
    """The scenarios where something was seen; where nothing was, why. `full` tells of one witness too."""
    if summary.reason or (not summary.own and summary.bad):
        return summary.told
    names, more = summary.scenarios, len(summary.scenarios) - _MOST_SCENARIOS
    if full:
        witness = f"; one of them: {summary.witness['first_seen']}" if summary.witness else ""
        return f"{', '.join(names)}{witness}"
    return ", ".join(names) if more < 1 else f"{', '.join(names[:_MOST_SCENARIOS])} and {more} more"


def table(every: Sequence[Summary], *, full: bool = False) -> Table:
    """All requirements by chapter. `full` folds long reasons instead of cutting them."""
    shown = Table(box=None, pad_edge=False, show_edge=False)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("requirement", no_wrap=True)
    shown.add_column("witnesses", justify="right", no_wrap=True)
    shown.add_column("scenarios, or why not")  # may wrap: that is the column that gives way
    chapter = ""
    for summary in every:
        if summary.chapter != chapter:
            chapter = summary.chapter
            shown.add_section()
            shown.add_row("", Text(chapter, style="bold"))
        reason = Text(_reason(summary, full=full), "dim", no_wrap=not full, overflow="ellipsis")
        shown.add_row(
            Text(summary.mark, _STYLES[summary.verdict] if summary.mark == summary.verdict else _KNOWN_STYLE),
            summary.requirement,
            str(summary.witnesses or ""),
            reason,
        )
    return shown


def _bad_news(report: Mapping[str, Any], every: Sequence[Summary], *, full: bool) -> Iterator[Text]:
    """Each cause of failures: in the first scenario of its requirement, or in all of them where `full`; then
    what follows from it.
    """
    for summary in in_order(report, every):
        for row in summary.own if full else summary.own[:1]:
            verdict = Verdict(row["verdict"])
            if verdict is Verdict.HARNESS_ERROR:
                told = Text(f"{verdict}  {row['requirement']}[{row['scenario']}]\n{row['message']}")
            else:
                told = Text(failure(row))
            told.stylize(_STYLES[verdict], 0, len(verdict))
            yield told
        if len(summary.own) > 1 and not full:
            yield Text(f"  also in {', '.join(row['scenario'] for row in summary.own[1:])}", "dim")
        if words := following_in_words(report, summary.requirement):
            yield Text(f"  {words}", "dim")


def _known(every: Sequence[Summary]) -> Iterator[Text]:
    """Each known failure with its reason, in a line."""
    for summary in every:
        for row in summary.known:
            told = f"known: {row['requirement']}[{row['scenario']}]: {row['message']}: {row['known_because']}"
            yield Text(told, _KNOWN_STYLE)


def summary_line(report: Mapping[str, Any]) -> str:
    """The last line: how many requirements got which verdict, and what that amounts to."""
    return f"{title(report)}: {outcome(report)} ({numbers(report)})"


def print_report(console: Console, report: Mapping[str, Any], *, verbosity: int = 0) -> None:
    """Print a JSON report. `verbosity` below 0 leaves out the table, above 0 tells every reason."""
    every = summaries(report)
    target = report["target"]
    if verbosity >= 0 and every:
        console.print(table(every, full=verbosity > 0))
        console.print()
    for text in _bad_news(report, every, full=verbosity > 0):
        console.print(text, soft_wrap=True)
        console.print()
    for text in _known(every):
        console.print(text, soft_wrap=True)
    for words in flaky(report):
        console.print(Text(words, _KNOWN_STYLE), soft_wrap=True)
    for fault in baseline_faults(report):
        console.print(Text(f"{fault['kind']}: {fault['message']}", "bold red"), soft_wrap=True)
    for dialect, reason in target["detected"].items():
        console.print(Text(f"asked: {dialect}: {reason}", style="dim"), soft_wrap=True)
    for dialect, reason in target["left_out"].items():
        console.print(Text(f"not asked: {dialect}: {reason}", style="dim"), soft_wrap=True)
    for remark in target["remarks"]:
        console.print(Text(f"remark: {remark}", style="yellow"), soft_wrap=True)
    if verbosity > 0:
        for name, reason in target["not_asked"].items():
            console.print(Text(f"not asked: {name}: {reason}", style="dim"), soft_wrap=True)
        for name, told in target["sources"].items():
            declared = "declared" if told["declared"] else ""
            words = "; ".join(filter(None, (told["seen"] or "not seen", told["advertised"], declared)))
            console.print(Text(f"capability: {name}: {words}", style="dim"), soft_wrap=True)
    for words in profiles_in_words(report):
        console.print(Text(words), soft_wrap=True)
    if (judged := report.get("judged", {})).get("of"):
        console.print(Text(f"judged {judged['requirements']} of {judged['of']} requirements"))
    console.print(Text(summary_line(report), style="bold"), soft_wrap=True)
