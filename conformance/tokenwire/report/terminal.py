"""The report on the terminal: a line for each chapter, then what needs a reader, then one line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import (
    Console,
)
from rich.text import Text

from tokenwire.judging.verdict import Verdict
from tokenwire.report.failure import failure
from tokenwire.report.overview import (
    Summary,
    baseline_faults,
    counts,
    flaky,
    following_in_words,
    in_order,
    levels_in_words,
    numbers,
    outcome,
    profiles_in_words,
    summaries,
    title,
)

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
_INDENT = 14
"""The width of the longest verdict, and a gap."""


def _wrapped(words: str, width: int, *, first: str = "", rest: str = "  ") -> str:
    """Words in lines that fit, all but the first of them indented."""
    return textwrap.fill(
        words, max(width, 40), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _style(summary: Summary) -> str:
    return _STYLES[summary.verdict] if summary.mark == summary.verdict else _KNOWN_STYLE


def _by_chapter(every: Iterable[Summary]) -> dict[str, list[Summary]]:
    chapters: dict[str, list[Summary]] = {}
    for summary in every:
        chapters.setdefault(summary.chapter, []).append(summary)
    return chapters


def _chapters(every: Sequence[Summary]) -> Text:
    """How many requirements of each chapter got which verdict, a line each."""
    chapters = _by_chapter(every)
    room = max(map(len, chapters)) + 2
    lines = []
    for chapter, own in chapters.items():
        styles = {summary.mark: _style(summary) for summary in own}
        told = [Text(f"{count} {mark}", styles[mark]) for mark, count in counts(own).items()]
        lines.append(Text(f"{chapter:<{room}}") + Text(", ").join(told))
    return Text("\n").join(lines)


def _table(every: Sequence[Summary], width: int) -> Iterator[Text]:
    """All requirements by chapter: where something was seen, and one witness; where nothing was, why."""
    longest = max(len(summary.requirement) for summary in every)
    for chapter, own in _by_chapter(every).items():
        yield Text(f"\n{chapter}", "bold")
        for summary in own:
            name = f"{summary.requirement:<{longest}}" if summary.witnesses else summary.requirement
            witnesses = f"  {summary.witnesses:>6}" if summary.witnesses else ""
            yield Text(f"{summary.mark:<{_INDENT}}", _style(summary)) + Text(f"{name}{witnesses}", "default")
            told, more = summary.told, len(summary.scenarios) - _MOST_SCENARIOS
            if more > 0 and not summary.bad:
                told = f"{', '.join(summary.scenarios[:_MOST_SCENARIOS])} and {more} more"
            if summary.witness:
                told += f"; one of them: {summary.witness['first_seen']}"
            indent = " " * _INDENT
            yield Text(_wrapped(told, width, first=indent, rest=indent), "dim")


def _undecided(every: Iterable[Summary], width: int) -> Iterator[Text]:
    """What a reader may be able to have decided: each reason once, and below it what it is the reason for."""
    reasons: dict[str, list[str]] = {}
    for summary in every:
        if summary.verdict is Verdict.INCONCLUSIVE:
            reasons.setdefault(summary.told, []).append(summary.requirement)
    for reason, names in reasons.items():
        told = Text(_wrapped(f"{Verdict.INCONCLUSIVE}  {reason}", width, rest=" " * _INDENT))
        told.stylize(_STYLES[Verdict.INCONCLUSIVE], 0, len(Verdict.INCONCLUSIVE))
        indent = " " * _INDENT
        yield told + Text(f"\n{_wrapped(', '.join(names), width, first=indent, rest=indent)}", "dim")


def _bad_news(
    report: Mapping[str, Any], every: Sequence[Summary], width: int, *, full: bool
) -> Iterator[Text]:
    """Each cause of failures: in the first scenario of its requirement, or in all of them if `full`; then
    what follows from it.
    """
    for summary in in_order(report, every):
        for row in summary.own if full else summary.own[:1]:
            verdict = Verdict(row["verdict"])
            if verdict is Verdict.HARNESS_ERROR:
                told = Text(f"{verdict}  {row['requirement']}[{row['scenario']}]\n{row['message']}")
            else:
                told = Text(failure(row, width))
            told.stylize(_STYLES[verdict], 0, len(verdict))
            yield told
        notes = []
        if len(summary.own) > 1 and not full:
            names = [row["scenario"] for row in summary.own[1:]]
            more = ", … (-v tells all)" if len(names) > _MOST_SCENARIOS else ""
            notes.append(f"also in {', '.join(names[:_MOST_SCENARIOS])}{more}")
        notes.append(following_in_words(report, summary.requirement))
        for words in filter(None, notes):
            yield Text(_wrapped(words, width, first="  ", rest="  "), "dim")


def _known(every: Sequence[Summary]) -> Iterator[str]:
    """What a baseline knows, each reason with all of its scenarios."""
    for summary in every:
        reasons: dict[str, list[str]] = {}
        for row in summary.known:
            reasons.setdefault(row["known_because"], []).append(row["scenario"])
        for reason, names in reasons.items():
            where = names[0] if len(names) == 1 else f"{len(names)} scenarios"
            yield f"known: {summary.requirement} in {where}: {reason}"


def _faults(report: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the baseline: all that no longer fails together, anything else by itself."""
    stale = [fault["requirement"] for fault in baseline_faults(report) if fault["kind"] == "stale"]
    if len(stale) > 1:
        yield f"stale: no longer failing: {', '.join(dict.fromkeys(stale))}"
    for fault in baseline_faults(report):
        if fault["kind"] != "stale" or len(stale) == 1:
            yield f"{fault['kind']}: {fault['message']}"


def _circumstances(report: Mapping[str, Any], *, full: bool) -> Iterator[tuple[str, str]]:
    """How the run came about, each line with its style."""
    target = report["target"]
    if full:
        yield from ((f"asked: {dialect}: {why}", "dim") for dialect, why in target["detected"].items())
        yield from ((f"not asked: {dialect}: {why}", "dim") for dialect, why in target["left_out"].items())
    elif target["detected"]:
        yield f"asked: {', '.join(target['detected'])}", "dim"
    elif target["left_out"]:
        yield f"not asked: {', '.join(target['left_out'])} (-v tells why)", "dim"
    yield from ((f"remark: {remark}", "yellow") for remark in target["remarks"])
    if full:
        yield from ((f"not asked: {name}: {why}", "dim") for name, why in target["not_asked"].items())
        for name, told in target["sources"].items():
            declared = "declared" if told["declared"] else ""
            words = "; ".join(filter(None, (told["seen"] or "not seen", told["advertised"], declared)))
            yield f"capability: {name}: {words}", "dim"


def summary_line(report: Mapping[str, Any]) -> str:
    """The last line: how many requirements got which verdict, and what that amounts to."""
    return f"{title(report)}: {outcome(report)} ({numbers(report)})"


def print_report(console: Console, report: Mapping[str, Any], *, verbosity: int = 0) -> None:
    """Print a JSON report. With `verbosity` below 0 only failures and the last line, above 0 every
    requirement and every reason.
    """
    every, width, full = summaries(report), console.width, verbosity > 0

    def tell(words: str, style: str = "") -> None:
        console.print(Text(_wrapped(words, width), style), soft_wrap=True)

    if full and every:
        for text in _table(every, width):
            console.print(text, soft_wrap=True)
        console.print()
    elif verbosity == 0 and every:
        console.print(_chapters(every), soft_wrap=True)
        console.print()
        if undecided := list(_undecided(every, width)):
            console.print(Text("\n").join(undecided), soft_wrap=True)
            console.print()
    for text in _bad_news(report, every, width, full=full):
        console.print(text, soft_wrap=True)
        console.print()
    if verbosity >= 0:
        for words in (*_known(every), *flaky(report)):
            tell(words, _KNOWN_STYLE)
    for words in _faults(report):
        tell(words, "bold red")
    if verbosity >= 0:
        for words, style in _circumstances(report, full=full):
            tell(words, style)
    for words in profiles_in_words(report):
        tell(words)
    if verbosity >= 0 and (words := levels_in_words(report)):
        tell(words)
    if full:
        for level in report.get("levels", ()):
            tell(f"level: {level['title']}: {level['means']}", "dim")
    if verbosity >= 0 and (judged := report.get("judged", {})).get("of"):
        tell(f"judged {judged['requirements']} of {judged['of']} requirements")
    console.print(Text(summary_line(report), style="bold"), soft_wrap=True)
