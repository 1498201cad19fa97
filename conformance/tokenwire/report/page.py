"""The report as one page: one file, no network, no script, safe against whatever a server wrote.

Every value goes through the template engine's escaping, and the page forbids itself all scripts and all
loading; only its own style sheet and drawings are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import (
    Row,
    Summary,
    baseline_faults,
    causes_in_words,
    counts,
    flaky,
    following_in_words,
    in_order,
    outcome,
    summaries,
    title,
)
from tokenwire.report.plot import HEIGHT, WIDTH, Plot, plot

_THREAD = "https://github.com/{repository}/{kind}/{number}"
_KINDS = {"PR": "pull", "issue": "issues"}


@dataclass(frozen=True)
class _Failure:
    """One violated requirement in one scenario, with its drawing."""

    row: Row
    plot: Plot | None
    largest_read: int


def _thread(words: str) -> str:
    """The address of a thread that is named `owner/name PR #1`; empty for other words."""
    repository, _, rest = words.partition(" ")
    kind, _, number = rest.partition(" #")
    if kind not in _KINDS or not number.isdecimal():
        return ""
    return _THREAD.format(repository=repository, kind=_KINDS[kind], number=number)


def _failure(row: Row) -> _Failure:
    shown = row.get("exhibit")
    if shown is None:
        return _Failure(row, None, 0)
    illegal = [evidence["event"] for evidence in row["evidence"]]
    here = [
        one
        for one, evidence in zip(illegal, row["evidence"], strict=True)
        if one is not None and evidence["exchange"] == row["evidence"][0]["exchange"]
    ]
    largest = max((read["count"] for read in shown["reads"]), default=0)
    return _Failure(row, plot(shown["timeline"], here), largest)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tokenwire.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thread"] = _thread
    return environment.get_template("page.html.jinja")


def page(report: Mapping[str, Any]) -> str:
    """A JSON report as an HTML document."""
    every = summaries(report)
    number = counts(every)
    chapters: list[tuple[str, list[Summary]]] = [
        (chapter, list(rows)) for chapter, rows in groupby(every, key=lambda summary: summary.chapter)
    ]
    bad = [(summary, [_failure(row) for row in summary.own]) for summary in in_order(report, every)]
    folded = {
        cause["requirement"]: {
            row["requirement"]: row
            for row in reversed(report["verdicts"])
            if row.get("follows_from") == cause["requirement"]
        }
        for cause in report.get("causes", ())
    }
    return _template().render(
        report=report,
        title=title(report),
        outcome=outcome(report),
        counts=list(number.items()),
        known=[row for summary in every for row in summary.known],
        faults=baseline_faults(report),
        flaky=flaky(report),
        total=len(every),
        chapters=chapters,
        bad=bad,
        causes=causes_in_words(report),
        folded=folded,
        following={name: following_in_words(report, name) for name in folded},
        crashed=Verdict.HARNESS_ERROR,
        width=WIDTH,
        height=HEIGHT,
    )
