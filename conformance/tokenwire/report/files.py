"""Where a report goes: one file for each form that was asked for, and what a workflow of GitHub reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenwire.report.badge import badge
from tokenwire.report.document import as_json
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.page import page
from tokenwire.report.sarif import sarif


@dataclass(frozen=True)
class Outputs:
    """The files that a caller wants; None for those that nobody wants."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    badge: Path | None = None

    @classmethod
    def within(cls, folder: Path) -> Outputs:
        """All forms, in one folder."""
        return cls(
            folder / "report.json",
            folder / "report.xml",
            folder / "report.html",
            folder / "report.sarif",
            folder / "badge.json",
        )

    def beside(self, other: Outputs) -> Outputs:
        """These files, and those of the other where these have none."""
        return Outputs(
            self.json or other.json,
            self.junit or other.junit,
            self.html or other.html,
            self.sarif or other.sarif,
            self.badge or other.badge,
        )


def _texts(report: Mapping[str, Any], outputs: Outputs) -> Iterator[tuple[Path, str]]:
    if outputs.json is not None:
        yield outputs.json, as_json(report)
    if outputs.html is not None:
        yield outputs.html, page(report)
    if outputs.sarif is not None:
        yield outputs.sarif, json.dumps(sarif(report), ensure_ascii=False, indent=1) + "\n"
    if outputs.badge is not None:
        yield outputs.badge, json.dumps(badge(report), ensure_ascii=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file in one piece: a reader never sees half of it, and a full disk costs no older one.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def write_reports(report: Mapping[str, Any], outputs: Outputs) -> list[str]:
    """Write every form but JUnit, which pytest writes; a sentence for each that could not be written."""
    problems = []
    for path, text in _texts(report, outputs):
        try:
            write_whole(path, text)
        except OSError as error:
            problems.append(f"{path} was not written: {error.strerror or error}")
    return problems


def tell_github(report: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Append to the summary of the step, where a workflow names its file; the lines to print for its page.

    Nothing outside a workflow. Raises OSError.
    """
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(step_summary(report))
    return workflow_commands(report) if environment.get("GITHUB_ACTIONS") == "true" else []
