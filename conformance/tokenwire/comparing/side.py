"""One side of a comparison: a JSON report, and the answers behind it where there are any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import exit_status
from tokenwire.record import Answer
from tokenwire.report.document import document
from tokenwire.report.subject import Subject
from tokenwire.usage_error import UsageError


@dataclass(frozen=True)
class Side:
    """A report, with the answers behind it if they are at hand."""

    name: str
    report: Mapping[str, Any]
    runs: Mapping[str, tuple[Answer, ...]] = field(default_factory=dict)
    """The answers of each run, by the name of its file; empty name for a single run."""


def side_of(name: str, subject: Subject) -> Side:
    """Judge a subject."""
    judgements = judge(subject.runs)
    report = document(subject, judgements, exit_status(judgement.verdict for judgement in judgements))
    alone = len(subject.runs) == 1
    runs = {"" if alone else Path(run.name).name: run.streams for run in subject.runs}
    return Side(name, report, runs)


def side_from_report(path: Path) -> Side:
    """Read a JSON report. Raises UsageError, OSError."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get("verdicts"), list):
        raise UsageError(f"{path} is no report of tokenwire; give a file that `tokenwire check --json` wrote")
    return Side(str(path), report)
