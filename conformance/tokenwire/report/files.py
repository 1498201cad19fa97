"""Writes the reports: one file for each format, and the outputs for a GitHub workflow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exc
from typing import Any

from tokenwire.disk import system_says, unfinished, write_whole
from tokenwire.judging.judge import Judgement
from tokenwire.report.badge import badge
from tokenwire.report.document import as_json
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.junit import fold
from tokenwire.report.overview import title
from tokenwire.report.page import page
from tokenwire.report.reproduction import body_file, body_of
from tokenwire.report.sarif import sarif
from tokenwire.report.trace import trace


@dataclass(frozen=True)
class Outputs:
    """The path of the report in each format. None for a format that is not requested."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    badge: Path | None = None
    trace: Path | None = None

    @classmethod
    def within(cls, folder: Path) -> Outputs:
        """Return paths in one folder for all formats except the trace.

        The trace is left out because it is large.
        """
        return cls(
            folder / "report.json",
            folder / "report.xml",
            folder / "report.html",
            folder / "report.sarif",
            folder / "badge.json",
        )

    def or_else(self, other: Outputs) -> Outputs:
        """Return these paths. A missing path is replaced by the path in `other`."""
        return Outputs(**{form: file or getattr(other, form) for form, file in vars(self).items()})

    @property
    def bodies(self) -> Path | None:
        """Return the folder for request bodies beside a report; None if no report contains commands."""
        shows = next(filter(None, (self.html, self.json, self.junit)), None)
        return shows.parent / "bodies" if shows is not None else None

    def files(self) -> Iterator[Path]:
        """Yield the paths of all files to write."""
        yield from filter(None, vars(self).values())


def write_reports(
    report: Mapping[str, Any], outputs: Outputs, judgements: Sequence[Judgement] = ()
) -> list[str]:
    """Write the report in each requested format, except JUnit, which pytest has already written.

    Return an error message for each file that could not be written. The answers in `judgements` become the
    playbacks of the HTML page, and the trace. Without `judgements`, the page has no playbacks.
    """
    junit = outputs.junit if outputs.junit and unfinished(outputs.junit).exists() else None
    forms: list[tuple[Path | None, Callable[[Path], str]]] = [
        (outputs.json, lambda _: as_json(report)),
        (outputs.html, lambda _: page(report, judgements)),
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
        except Exception:  # a bug in one format must not prevent reports in other formats
            problems.append(f"{path} was not written: this is a bug of tokenwire\n{format_exc()}")
    return problems


def write_bodies(judgements: Iterable[Judgement], folder: Path | None) -> list[str]:
    """Write the request bodies that commands in the report use.

    Return an error message for each file that could not be written.
    """
    problems = []
    for judgement in judgements:
        for seen in judgement.violations[:1]:
            stream = judgement.run.by_exchange.get(seen.place.exchange)
            exchange = stream.exchange.load() if folder is not None and stream is not None else None
            if folder is None or exchange is None or not (name := body_file(exchange)):
                continue
            try:
                write_whole(folder / name, body_of(exchange) or b"")
            except OSError as error:
                problems.append(f"{folder / name} was not written: {system_says(error)}")
    return problems


def append_step_summary(report: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Append the summary to the file that GitHub Actions names.

    Return an error message if the file cannot be written.
    """
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(report))
    except OSError as error:
        return [f"the summary of the step, {summary}, was not written: {system_says(error)}"]
    return []


def workflow_lines(report: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the workflow commands (annotations) to print. There are none outside of GitHub Actions."""
    return workflow_commands(report) if environment.get("GITHUB_ACTIONS") == "true" else []
