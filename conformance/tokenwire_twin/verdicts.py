"""The verdicts of two reports side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import Summary, summaries

_UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.NOT_TESTABLE, Verdict.HARNESS_ERROR})
"""Verdicts without evidence about the server."""

_Exchanges = Collection[str] | None
"""The exchange names of a side; None if it has none, as a report."""


@dataclass(frozen=True)
class VerdictDifference:
    """A requirement with different verdicts in two reports."""

    requirement: str
    level: str
    one: str
    """The verdict of the first side; empty if it did not judge the requirement."""
    other: str
    why_one: str
    why_other: str
    decides: bool
    """True if both sides decided, so that the servers differ; otherwise one of the runs observed too
    little.
    """


def _why(summary: Summary | None) -> str:
    if summary is None:
        return "not judged"
    if summary.bad:
        first = summary.bad[0]
        evidence = first.get("evidence") or []
        place = f"{evidence[0]['exchange']}: " if evidence else ""
        return f"{place}{first['message']}"
    return summary.reason


def _decided(summary: Summary | None, report: Mapping[str, Any], exchanges: _Exchanges) -> bool:
    """True if a verdict decides something that the other side could show, too.

    UNSUPPORTED decides if the run showed that absence can be trusted. A violation does not if the other side
    has none of its exchanges.
    """
    if summary is None or summary.verdict in _UNDECIDED:
        return False
    if summary.verdict is Verdict.UNSUPPORTED:
        honesty = report["target"].get("honesty") or [{"trusted": False}]
        return all(found["trusted"] for found in honesty)
    shown_in = {found["exchange"] for row in summary.bad for found in row.get("evidence") or ()}
    return exchanges is None or not shown_in or any(name in exchanges for name in shown_in)


def verdict_differences(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    exchanges: tuple[_Exchanges, _Exchanges] = (None, None),
) -> Iterator[VerdictDifference]:
    """Yield the different verdicts of two JSON reports, in the order of the specification.

    `exchanges`: the exchange names of each side.
    """
    ours = {summary.requirement: summary for summary in summaries(first)}
    theirs = {summary.requirement: summary for summary in summaries(second)}
    for requirement in ours | theirs:
        mine, yours = ours.get(requirement), theirs.get(requirement)
        verdicts = [summary.verdict if summary is not None else None for summary in (mine, yours)]
        if verdicts[0] is verdicts[1]:
            continue
        yield VerdictDifference(
            requirement,
            next(summary.level for summary in (mine, yours) if summary is not None),
            one=verdicts[0] or "",
            other=verdicts[1] or "",
            why_one=_why(mine),
            why_other=_why(yours),
            decides=_decided(mine, first, exchanges[1]) and _decided(yours, second, exchanges[0]),
        )


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> int:
    """Return the number of requirements that both sides decided."""
    decided = [
        {summary.requirement for summary in summaries(report) if summary.verdict not in _UNDECIDED}
        for report in (first, second)
    ]
    return len(decided[0] & decided[1])
