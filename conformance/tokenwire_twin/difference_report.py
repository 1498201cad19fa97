"""A comparison as data: its sides, different verdicts, and differences of answers over all exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenwire.judging.beside import side_by_side
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import ExitStatus, exit_status
from tokenwire.record import Answer
from tokenwire.replay import replay
from tokenwire.report.document import SURVIVAL, document, read_report
from tokenwire.report.subject import ASKED_ANYWAY, Subject
from tokenwire.target.death import DIED
from tokenwire.target.determinism import AnswerPair
from tokenwire_twin.answers import Difference, differences
from tokenwire_twin.verdicts import VerdictDifference, compared, verdict_differences

LABELS = ("A", "B")
"""The names of the two sides."""


@dataclass(frozen=True)
class Side:
    """A report, with the answers behind it if they are available."""

    name: str
    report: Mapping[str, Any]
    runs: Mapping[str, tuple[Answer, ...]] = field(default_factory=dict)
    """The answers of each run, by file name; an empty name for a single run."""


def side_of(name: str, subject: Subject) -> Side:
    """Judge a subject."""
    judgements = judge(subject.runs)
    report = document(subject, judgements, exit_status(judgement.verdict for judgement in judgements))
    alone = len(subject.runs) == 1
    runs = {"" if alone else Path(run.name).name: run.streams for run in subject.runs}
    return Side(name, report, runs)


def read_side(name: str) -> Side:
    """Return a JSON report, or a recording, which is judged. Raises UsageError, OSError."""
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        return side_of(name, replay([path]))
    return Side(str(path), read_report(path))


@dataclass(frozen=True)
class Finding:
    """One difference, with all exchanges that show it."""

    first: Difference
    exchanges: tuple[str, ...]


@dataclass(frozen=True)
class DifferenceReport:
    """The differences between two sides."""

    one: str
    other: str
    verdicts: tuple[VerdictDifference, ...]
    findings: tuple[Finding, ...]
    requirements: int
    """The number of requirements that both sides decided."""
    exchanges: int
    """The number of exchanges that both sides have."""
    repeated: int
    """Exchanges whose values were compared, because both sides repeat themselves."""
    only_one: tuple[str, ...] = ()
    """Exchanges that only the first side has."""
    only_other: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """The reasons why the comparison is incomplete, and the way out."""

    @property
    def differ(self) -> bool:
        return any(verdict.decides for verdict in self.verdicts) or any(
            finding.first.decides for finding in self.findings
        )

    @property
    def exit_status(self) -> int:
        """Return 0 for equal, 1 for different, 4 if there was nothing to compare."""
        if self.differ:
            return ExitStatus.VIOLATION
        return ExitStatus.CONFORMS if self.requirements or self.exchanges else ExitStatus.NOTHING_EVALUATED


def _gathered(found: Iterator[Difference]) -> Iterator[Finding]:
    """Yield differences grouped by kind and subject; those without a subject are separate findings."""
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for difference in found:
        key = difference.subject or f"{difference.exchange}: {difference.message}"
        side = difference.message if difference.kind == "field" else ""
        groups.setdefault((difference.kind, key, side), []).append(difference)
    for group in groups.values():
        yield Finding(group[0], tuple(dict.fromkeys(difference.exchange for difference in group)))


_MOST_FIELDS = 3
"""The most fields of a new object to list separately."""


def _folded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, with the fields of an object that only one side has as one finding."""
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
            first = replace(group[0].first, subject=f"{parent}/*", message=f"{message}: {len(group)} fields")
            yield Finding(first, group[0].exchanges)


def _death(report: Mapping[str, Any]) -> str:
    """Describe the reason why the run ended early; empty if it did not."""
    if broken_off := report["target"].get("broken_off"):
        return str(broken_off)
    died = (
        seen["message"]
        for row in report["verdicts"]
        if row["requirement"] == SURVIVAL
        for seen in row.get("evidence", ())
        if seen.get("actual") == DIED
    )
    return next(died, "")


def _hints(first: Side, second: Side) -> Iterator[str]:
    for label, side in zip(LABELS, (first, second), strict=True):
        if why := _death(side.report):
            yield f"{label} was broken off: {why}"
        if why := side.report["target"].get("cut_off"):
            yield f"{label} was cut short: {why}"
    spoken = [sorted(side.report["target"].get("dialects", ())) for side in (first, second)]
    if all(spoken) and spoken[0] != spoken[1]:
        dialects = " and ".join(
            f"{label} in {', '.join(names)}" for label, names in zip(LABELS, spoken, strict=True)
        )
        yield f"the sides were asked differently, {dialects}: --dialect NAME asks both alike"


def compare_sides(first: Side, second: Side) -> DifferenceReport:
    """Compare two sides."""
    pairs: list[AnswerPair] = []
    for run in first.runs.keys() & second.runs.keys():
        pairs += side_by_side(first.runs[run], second.runs[run], lambda answer: ("", answer.exchange.name))
    scenarios = [
        {
            (run, stream.exchange.name): stream.exchange.scenario
            for run, streams in side.runs.items()
            for stream in streams
        }
        for side in (first, second)
    ]
    names = [scenarios[side].keys() for side in (0, 1)]
    exchanges = [{name for _, name in keys} or None for keys in names]
    # A recording holds what every run asks of every endpoint, a live side only what it judges.
    only = [
        tuple(
            f"{run}: {name}" if run else name
            for run, name in sorted(names[side] - names[1 - side])
            if scenarios[side][run, name] not in ASKED_ANYWAY
        )
        for side in (0, 1)
    ]
    both = bool(first.runs and second.runs)
    found = (difference for pair in pairs for difference in differences(pair.load(), LABELS))
    return DifferenceReport(
        first.name,
        second.name,
        tuple(verdict_differences(first.report, second.report, (exchanges[0], exchanges[1]))),
        tuple(sorted(_folded(_gathered(found)), key=lambda finding: not finding.first.decides)),
        compared(first.report, second.report),
        len(pairs),
        sum(pair.repeats for pair in pairs),
        only_one=only[0] if both else (),
        only_other=only[1] if both else (),
        hints=tuple(_hints(first, second)),
    )


def as_json(report: DifferenceReport) -> Mapping[str, Any]:
    """Return the comparison as one JSON value. Its last key shows that nothing was cut off."""
    return {
        "one": report.one,
        "other": report.other,
        "same": not report.differ,
        "compared": {
            "requirements": report.requirements,
            "exchanges": report.exchanges,
            "repeated": report.repeated,
        },
        "verdicts": [asdict(verdict) for verdict in report.verdicts],
        "differences": [
            {
                **asdict(finding.first),
                "decides": finding.first.decides,
                "exchanges": list(finding.exchanges),
            }
            for finding in report.findings
        ],
        "only_one": list(report.only_one),
        "only_other": list(report.only_other),
        "hints": list(report.hints),
        "footer": True,
    }
