"""Tokenwire in Python: five functions.

Options have the names of `Settings`; reports are those of `tokenwire check --json`
(`spec/schemas/report.json`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenwire.asking.planning import planned, tokenizer_in
from tokenwire.asking.run import Progress, Unreached, interrogate
from tokenwire.commands.reporting import run_status
from tokenwire.dialects.dialect import named_dialects
from tokenwire.judging.judge import judge
from tokenwire.profile import selected, standing
from tokenwire.replay import replay as read_captures
from tokenwire.report.document import document, verdict_of_each
from tokenwire.report.failure import failure
from tokenwire.report.overview import overview
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings
from tokenwire.tools import command_module

__all__ = ["NotReachedError", "check", "compare", "failures", "record", "replay"]

Report = dict[str, Any]


class NotReachedError(RuntimeError):
    """The server cannot be asked; the message names what was found there, and the way out."""


def check(target: str, **options: Any) -> Report:
    """Send requests to a server and judge its answers: `check(url, budget="quick", profile=["rl"])`.

    Raises NotReachedError; ValueError for an option that fits nothing.
    """
    settings = _settings(options, target=target)
    return _report(_asked(settings), settings)


def record(target: str, folder: Path | str, **options: Any) -> int:
    """Send requests to a server, record the answers without judging, and return their number. Raises as
    `check`.
    """
    subject = _asked(_settings(options, target=target), Path(folder))
    return sum(len(run.streams) for run in subject.runs)


def replay(*captures: Path | str, **options: Any) -> Report:
    """Judge recorded answers. Raises CaptureError, OSError; ValueError for captures without an exchange."""
    settings = _settings(options)
    named_dialects(settings.dialect)
    subject = read_captures([*map(Path, captures)], tokenizer=tokenizer_in(settings.tokenizer))
    return _report(subject, settings)


def compare(one: Path | str, other: Path | str) -> Mapping[str, Any]:
    """Compare two recordings, or two JSON reports. Raises as `replay`."""
    result: Mapping[str, Any] = command_module("compare").compare_files(one, other)
    return result


def failures(report: Report) -> list[str]:
    """Return the failures and warnings of a report in the terminal's words, the gravest first."""
    return [
        failure(row) for summary in overview(report).shown for row in summary.shown[:1] if "exhibit" in row
    ]


def _settings(options: Mapping[str, Any], **given: Any) -> Settings:
    settings = Settings.of({**options, **given})
    if unknown := sorted(name for name in options if not hasattr(settings, name)):
        raise ValueError(f"{unknown[0]!r} is not an option; tokenwire.settings.Settings names them all")
    return settings


def _asked(settings: Settings, folder: Path | None = None) -> Subject:
    plan = replace(planned(settings), record=folder)
    subject = asyncio.run(interrogate(plan, Progress()))
    if isinstance(subject, Unreached):
        raise NotReachedError(subject.diagnosis)
    return subject


def _report(subject: Subject, settings: Settings) -> Report:
    judgements = judge(
        subject.runs, selected(settings.profile, settings.requirement), limit_s=settings.judge_limit
    )
    profiles = () if settings.requirement else settings.profile
    verdicts = verdict_of_each(judgements)
    standings = [standing(name, verdicts, subject.families) for name in profiles]
    status = run_status(judgements, standings, broken_off=bool(subject.broken_off), baseline_holds=True)
    return document(subject, judgements, status, profiles=standings)
