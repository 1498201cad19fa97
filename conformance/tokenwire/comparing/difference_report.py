"""A whole comparison, as data: verdicts, and what differs in answers, gathered over all exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenwire.comparing.answers import Difference, differences
from tokenwire.comparing.side import Side
from tokenwire.comparing.verdicts import VerdictDifference, compared, verdict_differences
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Answer
from tokenwire.target.death import DIED
from tokenwire.target.determinism import AnswerPair, side_by_side

_SURVIVAL = "requests-do-not-break-the-server"
LABELS = ("A", "B")
"""What the two sides are called."""


@dataclass(frozen=True)
class Finding:
    """One difference, and all exchanges that show it."""

    first: Difference
    exchanges: tuple[str, ...]


@dataclass(frozen=True)
class DifferenceReport:
    """What differs between two sides."""

    one: str
    other: str
    verdicts: tuple[VerdictDifference, ...]
    findings: tuple[Finding, ...]
    requirements: int
    """That both sides have decided."""
    exchanges: int
    """That both sides hold."""
    repeated: int
    """Of these, those whose values could be compared: both sides repeat themselves."""
    only_one: tuple[str, ...] = ()
    """Exchanges that only the first side holds."""
    only_other: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Why less could be compared than meets the eye, and what to do."""

    @property
    def differ(self) -> bool:
        return any(each.decides for each in self.verdicts) or any(
            each.first.decides for each in self.findings
        )

    @property
    def exit_status(self) -> int:
        """0 the same, 1 different, 4 where there was nothing to compare."""
        if self.differ:
            return ExitStatus.VIOLATION
        return ExitStatus.CONFORMS if self.requirements or self.exchanges else ExitStatus.NOTHING_EVALUATED


def _by_name(stream: Answer) -> tuple[str, str]:
    return "", stream.exchange.name


def _gathered(found: Iterator[Difference]) -> Iterator[Finding]:
    """Differences of one kind and subject together; those without a subject stand for themselves."""
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for each in found:
        key = each.subject or f"{each.exchange}: {each.message}"
        side = each.message if each.kind == "field" else ""
        groups.setdefault((each.kind, key, side), []).append(each)
    for group in groups.values():
        yield Finding(group[0], tuple(dict.fromkeys(each.exchange for each in group)))


_MOST_FIELDS = 3
"""Of one new object, that are told one by one."""


def _folded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Fields that only one side has, those of one object together: a new object is one difference."""
    objects: dict[tuple[str, str, tuple[str, ...]], list[Finding]] = {}
    for finding in findings:
        first = finding.first
        alone = first.kind != "field"
        parent = first.subject if alone else first.subject.rpartition("/")[0]
        key = (parent, first.message, (first.exchange,) if alone else finding.exchanges)
        objects.setdefault((*key[:2], (first.kind, *key[2])), []).append(finding)
    for (parent, message, _), group in objects.items():
        if not parent or group[0].first.kind != "field" or len(group) <= _MOST_FIELDS:
            yield from group
        else:
            told = replace(group[0].first, subject=f"{parent}/*", message=f"{message}: {len(group)} fields")
            yield Finding(told, group[0].exchanges)


def _death(report: Mapping[str, Any]) -> str:
    """What ended the asking before its end, in words; empty where nothing did."""
    if broken_off := report["target"].get("broken_off"):
        return str(broken_off)
    died = (
        seen["message"]
        for row in report["verdicts"]
        if row["requirement"] == _SURVIVAL
        for seen in row.get("evidence", ())
        if seen.get("actual") == DIED
    )
    return next(died, "")


def _hints(one: Side, other: Side) -> Iterator[str]:
    for label, side in zip(LABELS, (one, other), strict=True):
        if why := _death(side.report):
            yield f"{label} was broken off: {why}"
    spoken = [sorted(side.report["target"].get("dialects", ())) for side in (one, other)]
    if all(spoken) and spoken[0] != spoken[1]:
        told = " and ".join(
            f"{label} in {', '.join(names)}" for label, names in zip(LABELS, spoken, strict=True)
        )
        yield f"the sides were asked differently, {told}: --dialect NAME asks both alike"


def compare_sides(one: Side, other: Side) -> DifferenceReport:
    """All in which two sides differ."""
    pairs: list[AnswerPair] = []
    for run in one.runs.keys() & other.runs.keys():
        pairs += side_by_side(one.runs[run], other.runs[run], _by_name)
    names = [
        {(run, stream.exchange.name) for run, streams in side.runs.items() for stream in streams}
        for side in (one, other)
    ]
    held = tuple({name for _, name in each} or None for each in names)
    only = [
        tuple(f"{run}: {name}" if run else name for run, name in sorted(names[at] - names[1 - at]))
        for at in (0, 1)
    ]
    both = bool(one.runs and other.runs)
    found = (each for pair in pairs for each in differences(pair.load(), LABELS))
    return DifferenceReport(
        one.name,
        other.name,
        tuple(verdict_differences(one.report, other.report, (held[0], held[1]))),
        tuple(sorted(_folded(_gathered(found)), key=lambda finding: not finding.first.decides)),
        compared(one.report, other.report),
        len(pairs),
        sum(pair.repeats for pair in pairs),
        only_one=only[0] if both else (),
        only_other=only[1] if both else (),
        hints=tuple(_hints(one, other)),
    )


def as_json(report: DifferenceReport) -> Mapping[str, Any]:
    """The comparison as one JSON value; its last key shows a reader that nothing was cut off."""
    return {
        "one": report.one,
        "other": report.other,
        "same": not report.differ,
        "compared": {
            "requirements": report.requirements,
            "exchanges": report.exchanges,
            "repeated": report.repeated,
        },
        "verdicts": [asdict(each) for each in report.verdicts],
        "differences": [
            {**asdict(each.first), "decides": each.first.decides, "exchanges": list(each.exchanges)}
            for each in report.findings
        ],
        "only_one": list(report.only_one),
        "only_other": list(report.only_other),
        "hints": list(report.hints),
        "footer": True,
    }
