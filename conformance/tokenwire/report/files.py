"""Where a report goes: one file for each form that was asked for, and what a workflow of GitHub reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenwire.disk import system_says, unfinished, write_whole
from tokenwire.judging.judge import Judgement
from tokenwire.report.badge import badge
from tokenwire.report.document import as_json
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.junit import fold
from tokenwire.report.overview import title
from tokenwire.report.page import page
from tokenwire.report.playback import playbacks
from tokenwire.report.reproduction import body_file, body_of
from tokenwire.report.sarif import sarif
from tokenwire.report.trace import trace


@dataclass(frozen=True)
class Outputs:
    """The files to write; None for those that are not wanted."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    badge: Path | None = None
    trace: Path | None = None

    @classmethod
    def within(cls, folder: Path) -> Outputs:
        """All forms of the report, in one folder; the trace is of the run, and large."""
        return cls(
            folder / "report.json",
            folder / "report.xml",
            folder / "report.html",
            folder / "report.sarif",
            folder / "badge.json",
        )

    def beside(self, other: Outputs) -> Outputs:
        """These files, and those of the other where these have none."""
        return Outputs(**{form: file or getattr(other, form) for form, file in vars(self).items()})

    @property
    def bodies(self) -> Path | None:
        """The folder beside the report for what is too long for it; None where no report shows commands."""
        shows = next(filter(None, (self.html, self.json, self.junit)), None)
        return shows.parent / "bodies" if shows is not None else None

    def files(self) -> Iterator[Path]:
        """Those that are wanted."""
        yield from filter(None, vars(self).values())


def _shown(report: Mapping[str, Any]) -> set[int]:
    """The positions of the failures that a report shows: not what follows from another, nor what is known."""
    return {
        position
        for position, row in enumerate(report["verdicts"])
        if "exhibit" in row and "follows_from" not in row and not row.get("known")
    }


def write_reports(
    report: Mapping[str, Any], outputs: Outputs, judgements: Sequence[Judgement] = ()
) -> list[str]:
    """Write every form; a sentence for each that could not be written. pytest has begun the one for JUnit.

    The page walks through the streams of `judgements`, those that the report was made of, and the trace is of
    them; without, the page shows what the JSON report holds.
    """
    junit = outputs.junit if outputs.junit and unfinished(outputs.junit).exists() else None
    forms: list[tuple[Path | None, Callable[[Path], str]]] = [
        (outputs.json, lambda _: as_json(report)),
        (outputs.html, lambda _: page(report, playbacks(judgements, _shown(report)))),
        (outputs.sarif, lambda _: json.dumps(sarif(report), ensure_ascii=False, indent=1) + "\n"),
        (outputs.badge, lambda _: json.dumps(badge(report), ensure_ascii=False) + "\n"),
        (outputs.trace, lambda _: trace(title(report), judgements)),
        (junit, lambda path: fold(unfinished(path), report)),
    ]
    problems = []
    for path, text in forms:
        try:
            if path is not None:
                write_whole(path, text(path))
        except OSError as error:
            problems.append(f"{path} was not written: {system_says(error)}")
    return problems


def write_bodies(judgements: Iterable[Judgement], folder: Path | None) -> list[str]:
    """Write the bodies that the commands of a report name; a sentence for each that could not be written."""
    problems = []
    for judgement in judgements:
        for seen in judgement.violations[:1]:
            stream = judgement.run.by_exchange.get(seen.place.exchange)
            if folder is None or stream is None or not (name := body_file(stream.exchange)):
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(body_of(stream.exchange) or b"")
            except OSError as error:
                problems.append(f"{folder / name} was not written: {system_says(error)}")
    return problems


def tell_github(report: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Append to the summary of the step, where a workflow names its file: a sentence where that cannot be."""
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(report))
    except OSError as error:
        return [f"the summary of the step, {summary}, was not written: {system_says(error)}"]
    return []


def lines_for_github(report: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The lines to print for the page of a workflow; none outside of one."""
    return workflow_commands(report) if environment.get("GITHUB_ACTIONS") == "true" else []
