"""A whole comparison, as data: verdicts, and what differs in answers, gathered over all exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tokenwire.comparing.answers import Difference, differences
from tokenwire.comparing.side import Side
from tokenwire.comparing.verdicts import VerdictDifference, compared, verdict_differences
from tokenwire.judging.check import Comparison
from tokenwire.judging.determinism import side_by_side
from tokenwire.judging.verdict import ExitStatus
from tokenwire.record import Stream

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


def _by_name(stream: Stream) -> tuple[str, str]:
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


def compare_sides(one: Side, other: Side) -> DifferenceReport:
    """All in which two sides differ."""
    pairs: list[Comparison] = []
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
    found = (each for pair in pairs for each in differences(pair, LABELS))
    return DifferenceReport(
        one.name,
        other.name,
        tuple(verdict_differences(one.report, other.report, (held[0], held[1]))),
        tuple(sorted(_gathered(found), key=lambda finding: not finding.first.decides)),
        compared(one.report, other.report),
        len(pairs),
        sum(pair.repeats for pair in pairs),
        *(only if one.runs and other.runs else ((), ())),
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
        "footer": True,
    }
