"""Tokenwire in Python: five functions.

Options have the names of the fields of `Settings`. Reports have the format of `tokenwire check --json`
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
    """The server cannot be checked.

    The message says what was found at the server's address, and how to continue.
    """


def check(target: str, **options: Any) -> Report:
    """Send requests to a server and judge its answers: `check(url, budget="quick", profile=["rl"])`.

    Raises NotReachedError, or ValueError for an invalid option.
    """
    settings = _settings(options, target=target)
    return _report(_asked(settings), settings)


def record(target: str, folder: Path | str, **options: Any) -> int:
    """Send requests to a server and record the answers without judging them.

    Return the number of recorded answers. Raises the same exceptions as `check`.
    """
    subject = _asked(_settings(options, target=target), Path(folder))
    return sum(len(run.streams) for run in subject.runs)


def replay(*captures: Path | str, **options: Any) -> Report:
    """Judge recorded answers. Raises CaptureError or OSError, or ValueError if the captures contain no
    exchange.
    """
    settings = _settings(options)
    named_dialects(settings.dialect)
    subject = read_captures([*map(Path, captures)], tokenizer=tokenizer_in(settings.tokenizer))
    return _report(subject, settings)


def compare(one: Path | str, other: Path | str) -> Mapping[str, Any]:
    """Compare two recordings, or two JSON reports. Raises the same exceptions as `replay`."""
    result: Mapping[str, Any] = command_module("compare").compare_files(one, other)
    return result


def failures(report: Report) -> list[str]:
    """Return the failures and warnings of a report as text, the most severe first."""
    return [
        failure(row) for summary in overview(report).shown for row in summary.shown[:1] if "exhibit" in row
    ]


def _settings(options: Mapping[str, Any], **given: Any) -> Settings:
    settings = Settings.of({**options, **given})
    if unknown := sorted(name for name in options if not hasattr(settings, name)):
        raise ValueError(
            f"{unknown[0]!r} is not an option; the options are the fields of tokenwire.settings.Settings"
        )
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
