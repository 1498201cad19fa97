"""The report on the terminal: failures first, the most serious at the top, and a summary in the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tokenwire.judging.verdict import Verdict
from tokenwire.report.failure import failure
from tokenwire.report.overview import FIRST_CAUSES, Overview, Summary, kept, overview
from tokenwire.typed_table import counted

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
_MOST_SCENARIOS = 6
_FEW = 2
_MOST_LINES = 20
"""The most causes that are listed in one line each, after those that are shown in detail."""
_LEAST_WIDTH = 40
_INDENT = 14
"""The width of the column for verdicts."""


def _wrapped(words: str, width: int, *, first: str = "", rest: str = "  ") -> str:
    """Return text wrapped to a width. All lines after the first are indented by `rest`."""
    return textwrap.fill(
        words, max(width, _LEAST_WIDTH), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _style(summary: Summary) -> str:
    return _STYLES[summary.verdict] if summary.mark == summary.verdict else _KNOWN_STYLE


def _table(view: Overview, width: int) -> Iterator[Text]:
    """Yield all requirements by chapter.

    Each requirement has its evidence, or the reason why it was not decided.
    """
    longest = max(len(summary.requirement) for summary in view.summaries)
    indent = " " * _INDENT
    for chapter, summaries in view.chapters.items():
        yield Text(f"\n{chapter}", "bold")
        for summary in summaries:
            name = f"{summary.requirement:<{longest}}" if summary.witnesses else summary.requirement
            witnesses = f"  {summary.witnesses:>6}" if summary.witnesses else ""
            yield Text(f"{summary.mark:<{_INDENT}}", _style(summary)) + Text(f"{name}{witnesses}", "default")
            words, more = summary.explanation, len(summary.scenarios) - _MOST_SCENARIOS
            if more > 0 and not summary.bad:
                words = f"{', '.join(summary.scenarios[:_MOST_SCENARIOS])} and {more} more"
            if summary.witness:
                words += f"; one of them: {summary.witness['first_seen']}"
            yield Text(_wrapped(words, width, first=indent, rest=indent), "dim")


def _undecided(view: Overview) -> Iterator[str]:
    """Yield the reasons of inconclusive requirements. If there are many, yield only their number."""
    undecided = [summary for summary in view.summaries if summary.verdict is Verdict.INCONCLUSIVE]
    if len(undecided) > _FEW:
        yield f"{len(undecided)} inconclusive: -v says why"
        return
    for summary in undecided:
        yield f"inconclusive: {summary.requirement}: {summary.explanation}"


def _bad_news(view: Overview, width: int, *, full: bool) -> Iterator[Text]:
    """Yield each cause of violations, with its consequences.

    For each cause, only the first scenario is shown. With `full`, all scenarios are shown. If there are many
    causes, the most serious causes are shown in detail, and all other causes in one line each.
    """
    causes = list(view.shown)
    many = bool(view.start_here) and not full
    if many:
        yield Text(view.start_here, "bold")
    for summary in causes[:FIRST_CAUSES] if many else causes:
        for row in summary.shown if full else summary.shown[:1]:
            verdict = Verdict(row["verdict"])
            crash = f"{verdict}  {row['requirement']}[{row['scenario']}]\n{row['message']}"
            text = Text(crash if verdict is Verdict.HARNESS_ERROR else failure(row, width))
            text.stylize(_STYLES[verdict], 0, len(verdict))
            yield text
        names = [] if full else [row["scenario"] for row in summary.shown[1:]]
        more = ", … (-v lists all)" if len(names) > _MOST_SCENARIOS else ""
        worker = "the worker's own: it answers the same request in the same way" if summary.of_worker else ""
        also = f"also in {', '.join(names[:_MOST_SCENARIOS])}{more}" if names else ""
        for words in filter(None, (worker, also, summary.following)):
            yield Text(_wrapped(words, width, first="  ", rest="  "), "dim")
    if many:
        yield Text("\n").join(_in_lines(causes[FIRST_CAUSES:], width))


def _in_lines(causes: Sequence[Summary], width: int) -> Iterator[Text]:
    """Yield one line for each cause, and the command that shows the details."""
    for summary in causes[:_MOST_LINES]:
        row = summary.shown[0]
        found = (row.get("exhibit") or row)["message"]
        text = Text(f"{row['verdict']}  {row['requirement']}  in {row['scenario']}: {found}")
        text.stylize(_STYLES[Verdict(row["verdict"])], 0, len(row["verdict"]))
        text.truncate(max(width, _LEAST_WIDTH), overflow="ellipsis")
        yield text
    more = len(causes) - _MOST_LINES
    yield Text(f"{f'and {more} more; ' if more > 0 else ''}-v shows each with its events", "dim")


def _known(view: Overview) -> Iterator[str]:
    """Yield the known failures, grouped by reason."""
    scenarios: dict[tuple[str, str], list[str]] = {}
    for row in view.known:
        scenarios.setdefault((row["requirement"], row["known_because"]), []).append(row["scenario"])
    for (requirement, reason), names in scenarios.items():
        where = names[0] if len(names) == 1 else f"{len(names)} scenarios"
        yield f"known: {requirement} in {where}: {reason}"


def _faults(view: Overview) -> Iterator[str]:
    """Yield the wrong entries of the baseline. Stale entries are listed together."""
    stale = [fault["requirement"] for fault in view.faults if fault["kind"] == "stale"]
    if len(stale) > 1:
        names = list(dict.fromkeys(stale))
        entries = f"{counted(len(names), 'requirement')}, {counted(len(stale), 'entry')}"
        yield f"stale: no longer failing: {entries}: {', '.join(names)}"
    for fault in view.faults:
        if fault["kind"] != "stale" or len(stale) == 1:
            yield f"{fault['kind']}: {fault['message']}"


def _circumstances(report: Mapping[str, Any], *, full: bool) -> Iterator[tuple[str, str]]:
    """Yield lines about the circumstances of the run, each with its style."""
    target = report["target"]
    if full:
        yield from ((f"asked: {dialect}: {why}", "dim") for dialect, why in target["detected"].items())
        yield from ((f"not asked: {dialect}: {why}", "dim") for dialect, why in target["left_out"].items())
    elif target["detected"]:
        yield f"asked: {', '.join(target['detected'])}", "dim"
    elif target["left_out"]:
        yield f"asked: none of {len(target['left_out'])} kinds of endpoints (-v tells why)", "dim"
    yield from ((f"remark: {remark}", "yellow") for remark in target["remarks"])
    if full:
        yield from ((f"rule: {rule}", "dim") for rule in target["rules"])
        yield from ((f"not asked: {name}: {why}", "dim") for name, why in target["not_asked"].items())
        for name, source in target["sources"].items():
            declared = "declared" if source["declared"] else ""
            words = "; ".join(filter(None, (source["seen"] or "not seen", source["advertised"], declared)))
            yield f"capability: {name}: {words}", "dim"


def print_report(console: Console, report: Mapping[str, Any], *, verbosity: int = 0, work: str = "") -> None:
    """Print a JSON report.

    If `verbosity` is below 0, only failures and the last line are printed. If it is above 0, every
    requirement is printed with its reason. `work`: a line about the requests and the files of the run.
    """
    view, width, full, quiet = overview(report), console.width, verbosity > 0, verbosity < 0

    def show(text: Text) -> None:
        console.print(text, soft_wrap=True)

    def paragraph(words: str, style: str = "") -> None:
        show(Text(_wrapped(words, width), style))

    if full and view.summaries:
        for text in _table(view, width):
            show(text)
        console.print()
    for text in _bad_news(view, width, full=full):
        show(text)
        console.print()
    if not quiet:
        for words in (*_known(view), *view.flaky):
            paragraph(words, _KNOWN_STYLE)
    for words in () if quiet or full else _undecided(view):
        paragraph(words, _STYLES[Verdict.INCONCLUSIVE])
    for words in _faults(view):
        paragraph(words, "bold red")
    if not quiet:
        for words, style in _circumstances(report, full=full):
            paragraph(words, style)
    for words in view.profiles:
        paragraph(words)
    if not quiet and view.levels:
        paragraph(view.levels)
    if full:
        for level in filter(kept, report.get("levels", ())):
            paragraph(f"level: {level['title']}: {level['means']}", "dim")
    if not quiet and (judged := report.get("judged", {})).get("of"):
        paragraph(f"judged {judged['requirements']} of {judged['of']} requirements")
    if not quiet and work:
        show(Text(work))
    show(Text(view.last_line, style="bold"))
