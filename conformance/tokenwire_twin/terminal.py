"""A comparison on the terminal: different verdicts, then answers, then a summary."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenwire.record import Place
from tokenwire.report.wording import cut, where
from tokenwire_twin.difference_report import LABELS, DifferenceReport, Finding
from tokenwire_twin.verdicts import VerdictDifference

_LONGEST_REASON = 160
_MOST_NAMED = 3


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _verdicts(rows: Sequence[VerdictDifference]) -> Table:
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("requirement", *LABELS, "why"):
        shown.add_column(title, no_wrap=title != "why")
    for row in rows:
        reasons = [why for why in (row.why_one, row.why_other) if why]
        why = cut(" / ".join(reasons), _LONGEST_REASON)
        shown.add_row(Text(row.requirement), row.one or "-", row.other or "-", Text(why, "dim"))
    return shown


def _place(label: str, place: Place | None, excerpt: str) -> str:
    return f"\n    {label}: {where(place)}  {cut(excerpt, _LONGEST_REASON)}" if place is not None else ""


def _finding(finding: Finding) -> Text:
    first = finding.first
    words = " ".join(filter(None, (first.kind, first.subject)))
    text = Text.assemble(
        (words, "bold red" if first.decides else "bold"),
        f": {first.message}\n    in {_named(finding.exchanges)}",
    )
    if first.decides:
        sides = zip(LABELS, (first.one, first.other), first.excerpts, strict=True)
        text.append("".join(_place(*side) for side in sides), "dim")
    return text


def print_difference(console: Console, report: DifferenceReport, *, verbose: bool = False) -> None:
    """Print a comparison. `verbose` includes remarks: undecided verdicts, cuts, different requests."""
    for label, name in zip(LABELS, (report.one, report.other), strict=True):
        console.print(Text(f"{label}: {name}"), soft_wrap=True)
    console.print()
    rows = [row for row in report.verdicts if row.decides or verbose]
    if rows:
        console.print(_verdicts(rows))
        console.print()
    for finding in report.findings:
        if finding.first.decides or verbose:
            console.print(_finding(finding), soft_wrap=True)
    for label, names in zip(LABELS, (report.only_one, report.only_other), strict=True):
        if names:
            console.print(
                Text(f"only in {label}: {len(names)} exchanges ({_named(names)})", "dim"), soft_wrap=True
            )
    undecided = sum(not row.decides for row in report.verdicts)
    remarks = sum(not finding.first.decides for finding in report.findings)
    if not verbose and undecided + remarks:
        hint = f"{undecided} verdicts that one side could not decide and {remarks} remarks: -v tells them"
        console.print(Text(hint, "dim"), soft_wrap=True)
    outcome = "different" if report.differ else "the same, as far as could be compared"
    if not report.requirements and not report.exchanges:
        outcome = "nothing could be compared"
    for hint in report.hints:
        console.print(Text(f"mind: {hint}", "yellow"), soft_wrap=True)
    short = "; not all was asked or compared" if report.hints else ""
    console.print(Text(f"A and B: {outcome} ({_counted(report)}){short}", "bold"), soft_wrap=True)


def _counted(report: DifferenceReport) -> str:
    """Describe the numbers of differences and of comparisons."""
    verdicts = sum(row.decides for row in report.verdicts)
    answers = sum(finding.first.decides for finding in report.findings)
    differing = f"{verdicts} verdicts and {answers} things in answers; " if report.differ else ""
    return (
        f"{differing}compared: {report.requirements} requirements, {report.exchanges} exchanges, "
        f"{report.repeated} of them by value"
    )
