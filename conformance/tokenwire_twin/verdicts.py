"""Compares the verdicts of two reports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.failure_kind import lasting_words, without_quoted
from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import Summary, summaries
from tokenwire_twin.families import SURELY_SEEN_IN

_UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.NOT_TESTABLE, Verdict.HARNESS_ERROR})
"""Verdicts that do not say anything about the server."""

_VIOLATED = (Verdict.FAIL, Verdict.WARN)

_COUNT = re.compile(r"(?<![\w.+-])(?<!choice )(?<!event )(?<!position )(?<!entry )(?<!id )\d{1,4}(?![\w.])")
"""Matches a number in a message that counts something. Numbers that name a place are skipped."""
_Exchanges = Collection[str] | None
"""The exchange names of a side. None if the names are unknown, as in a JSON report."""
Violations = Mapping[str, Mapping[str, str]]
"""The message of a violation, by requirement and exchange."""


@dataclass(frozen=True)
class VerdictDifference:
    """A requirement with different verdicts, or one that both sides violate in different ways."""

    requirement: str
    level: str
    one: str
    """The verdict of the first side. Empty if the first side did not judge the requirement."""
    other: str
    why_one: str
    why_other: str
    shown: bool
    """True if both sides decided, so that the servers differ.

    False if one of the runs observed too little to decide.
    """
    at: tuple[str, ...] = ()
    """The dialects in which violations were seen."""
    follows: str = ""
    """The requirement of which these violations are a consequence; empty if there is none."""
    known: str = ""
    """The reason why the difference is known, with a link; empty if it is new."""
    count: int = 0
    """The number of exchanges with the difference. 0 if the number is unknown."""
    message: str = ""
    """The message of one violation, without the name of the exchange."""

    @property
    def worst(self) -> str:
        """The more serious of the two verdicts. Empty if neither verdict is a violation."""
        return next((bad for bad in _VIOLATED if bad in (self.one, self.other)), "")

    @property
    def broken_by(self) -> str:
        """The side that violates the requirement: `A`, `B` or `both`; empty if none does."""
        broken = [verdict in _VIOLATED for verdict in (self.one, self.other)]
        return "both" if all(broken) else "AB"[broken.index(True)] if any(broken) else ""

    @property
    def name(self) -> str:
        """The name of the difference in a file of known differences."""
        return f"row {self.requirement}: {self.one or '-'} in A, {self.other or '-'} in B"

    @property
    def decides(self) -> bool:
        """True if the sides count as different because of this requirement."""
        return self.shown and not self.known


@dataclass(frozen=True)
class _Why:
    """The reason for a verdict: the message of a violation with its exchange, or a text."""

    exchange: str
    message: str

    def __str__(self) -> str:
        return f"{self.exchange}: {self.message}" if self.exchange else self.message


def _why(summary: Summary | None) -> _Why:
    if summary is None:
        return _Why("", "not judged")
    if summary.bad:
        first = summary.bad[0]
        evidence = first.get("evidence") or []
        return _Why(evidence[0]["exchange"] if evidence else "", first["message"])
    return _Why("", summary.reason)


def _decided(summary: Summary | None, report: Mapping[str, Any], exchanges: _Exchanges) -> bool:
    """True if a verdict can be compared with the verdict of the other side.

    UNSUPPORTED counts only if the run showed that missing fields can be trusted. A violation does not count
    if the other side has none of the violating exchanges.
    """
    if summary is None or summary.verdict in _UNDECIDED:
        return False
    if summary.verdict is Verdict.UNSUPPORTED:
        honesty = report["target"].get("honesty") or [{"trusted": False}]
        return all(found["trusted"] for found in honesty)
    shown_in = {found["exchange"] for row in summary.bad for found in row.get("evidence") or ()}
    return exchanges is None or not shown_in or any(name in exchanges for name in shown_in)


def _surely(
    violated: Collection[str], exchanges: tuple[_Exchanges, _Exchanges], beside: Collection[str]
) -> bool:
    """True if chance does not explain violations.

    One violation in a comparable exchange is sufficient, and so are many violations. Violations in exchanges
    that only one side has do not count.
    """
    shared = [name for name in violated if all(side is None or name in side for side in exchanges)]
    return len(shared) >= SURELY_SEEN_IN or any(name not in beside for name in shared)


def _distinct(words: str) -> tuple[str, list[str]]:
    """Return the message of a violation without names and quoted texts, and the numbers in it that count
    something.
    """
    return lasting_words(words), _COUNT.findall(without_quoted(words))


def _dialects(*violated: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.partition("/")[0] for found in violated for name in found if "/" in name))


def _follows(summary: Summary | None) -> str:
    causes = {row.get("follows_from") for row in summary.bad} if summary is not None else {None}
    return str(next(iter(causes))) if len(causes) == 1 and None not in causes else ""


def verdict_differences(
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    exchanges: tuple[_Exchanges, _Exchanges] = (None, None),
    violations: tuple[Violations | None, Violations | None] = (None, None),
    beside: Collection[str] = (),
) -> Iterator[VerdictDifference]:
    """Yield the requirements with different verdicts in two JSON reports, and those that both violate
    differently.

    They are in the order of the specification. `exchanges`: the exchange names of each side. `beside`:
    exchanges that are not comparable, because chance had an influence or the requests differ.
    """
    first, second = reports
    ours = {summary.requirement: summary for summary in summaries(first)}
    theirs = {summary.requirement: summary for summary in summaries(second)}
    for requirement in ours | theirs:
        mine, yours = ours.get(requirement), theirs.get(requirement)
        verdicts = [summary.verdict if summary is not None else None for summary in (mine, yours)]
        violated = [dict(found.get(requirement, {})) if found is not None else {} for found in violations]
        whys, count = (_why(mine), _why(yours)), len({*violated[0], *violated[1]})
        if verdicts[0] is verdicts[1]:
            failed = verdicts[0] is Verdict.FAIL
            apart = _apart(violated[0], violated[1], exchanges, beside) if failed else None
            if apart is None:
                continue
            whys, count, shown = (apart.one, apart.other), apart.count, True
            message = apart.message
        else:
            shown = _decided(mine, first, exchanges[1]) and _decided(yours, second, exchanges[0])
            found = {**violated[0], **violated[1]}
            shown = shown and {*verdicts} != {Verdict.PASS, Verdict.INFO}
            shown = shown and (not found or _surely(found, exchanges, beside))
            message = whys[verdicts[0] not in _VIOLATED].message
        known = next(summary for summary in (mine, yours) if summary is not None)
        yield VerdictDifference(
            requirement,
            known.level,
            one=verdicts[0] or "",
            other=verdicts[1] or "",
            why_one=str(whys[0]),
            why_other=str(whys[1]),
            shown=shown,
            at=_dialects(*violated),
            follows=_follows(mine) or _follows(yours),
            count=count,
            message=message,
        )


@dataclass(frozen=True)
class _Apart:
    """The difference between two sides that violate the same requirement."""

    one: _Why
    other: _Why
    count: int
    """The number of exchanges with this difference."""
    message: str


def _apart(
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    exchanges: tuple[_Exchanges, _Exchanges],
    beside: Collection[str],
) -> _Apart | None:
    """Return a message for each side if the two sides violate a requirement differently.

    Return None if there is no difference. The sides differ if the messages differ in the same exchange, or if
    only one side violates the requirement in many exchanges.
    """
    if not (ours and theirs) or exchanges[0] is None or exchanges[1] is None:
        return None
    names = [name for name in {**ours, **theirs} if name in exchanges[0] and name in exchanges[1]]
    names = [name for name in names if name not in beside]
    alone = [[name for name in names if name not in other] for other in (theirs, ours)]
    both = [
        name
        for name in names
        if name in ours and name in theirs and _distinct(ours[name]) != _distinct(theirs[name])
    ]
    # The side with more violations of its own comes first.
    many = sorted((few for few in alone if len(few) >= SURELY_SEEN_IN), key=len, reverse=True)
    shown = [*(name for few in many for name in few), *both]
    if not shown:
        return None
    name = shown[0]
    words = _in_answers(len(alone[0]), len(alone[1]), len(both))
    if name in both:
        example = f"{ours[name]} in A, {theirs[name]} in B"
    else:
        example = f"{ours[name]} in A" if name in ours else f"{theirs[name]} in B"
    kept = "it holds in this exchange"
    return _Apart(
        _Why(name, ours.get(name, kept)),
        _Why(name, theirs.get(name, kept)),
        len(alone[0]) + len(alone[1]) + len(both),
        f"{words}; {example}",
    )


def _in_answers(first: int, second: int, both: int) -> str:
    """Describe in how many answers A alone, B alone, and both in different ways violate a requirement."""
    counts = {"A": first, "B": second}
    alone = [label for label, count in counts.items() if count]
    if not both and len(alone) == 1:
        return f"{alone[0]} breaks it in {counts[alone[0]]} more answers"
    parts = [f"{label} alone in {counts[label]}" for label in alone]
    return ", ".join([*parts, *([f"both differently in {both}"] if both else [])])


def decided_by_both(first: Mapping[str, Any], second: Mapping[str, Any]) -> int:
    """Return the number of requirements that both sides decided."""
    decided = [
        {summary.requirement for summary in summaries(report) if summary.verdict not in _UNDECIDED}
        for report in (first, second)
    ]
    return len(decided[0] & decided[1])
