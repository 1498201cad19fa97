"""The verdicts of two reports side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import Summary, summaries

_UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.NOT_TESTABLE, Verdict.HARNESS_ERROR})
"""Say nothing of the server."""

Held = Collection[str] | None
"""The names of the exchanges of a side; None where it holds none, as a report does."""


@dataclass(frozen=True)
class VerdictDifference:
    """A requirement on which two reports do not say the same."""

    requirement: str
    level: str
    one: str
    """The verdict of the first side; empty where it says nothing of the requirement at all."""
    other: str
    why_one: str
    why_other: str
    decides: bool
    """Both sides have decided: the servers differ. Otherwise one of the runs saw too little."""


def _why(summary: Summary | None) -> str:
    if summary is None:
        return "not judged"
    if summary.bad:
        first = summary.bad[0]
        evidence = first.get("evidence") or []
        place = f"{evidence[0]['exchange']}: " if evidence else ""
        return f"{place}{first['message']}"
    return summary.reason


def _decided(summary: Summary | None, report: Mapping[str, Any], held: Held) -> bool:
    """Whether a verdict says something of the server that could be seen on the other side too.

    UNSUPPORTED does where the run has shown that the server's silence can be trusted. A violation does not
    where the other side was never asked what shows it.
    """
    if summary is None or summary.verdict in _UNDECIDED:
        return False
    if summary.verdict is Verdict.UNSUPPORTED:
        honesty = report["target"].get("honesty") or [{"trusted": False}]
        return all(each["trusted"] for each in honesty)
    shown_in = {one["exchange"] for row in summary.bad for one in row.get("evidence") or ()}
    return held is None or not shown_in or any(name in held for name in shown_in)


def verdict_differences(
    one: Mapping[str, Any], other: Mapping[str, Any], held: tuple[Held, Held] = (None, None)
) -> Iterator[VerdictDifference]:
    """Where two JSON reports differ, in the order of the specification. `held`: what each side was asked."""
    ours = {summary.requirement: summary for summary in summaries(one)}
    theirs = {summary.requirement: summary for summary in summaries(other)}
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
            decides=_decided(mine, one, held[1]) and _decided(yours, other, held[0]),
        )


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """How many requirements both sides have decided."""
    decided = [
        {summary.requirement for summary in summaries(report) if summary.verdict not in _UNDECIDED}
        for report in (one, other)
    ]
    return len(decided[0] & decided[1])
