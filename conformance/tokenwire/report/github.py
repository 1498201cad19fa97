"""Output for GitHub Actions: annotations in the log, and a summary of the workflow step."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.report.failure import failure
from tokenwire.report.overview import FIRST_CAUSES, overview
from tokenwire.report.templates import template

_COMMANDS = {Verdict.FAIL: "error", Verdict.HARNESS_ERROR: "error", Verdict.WARN: "warning"}
_MOST_ANNOTATIONS = 10
"""GitHub shows at most this number of annotations of one kind for a step."""
_MOST_FAILURES = 30
_MOST_BYTES = 900_000
"""The most bytes of a summary. GitHub's limit is 1 MiB."""
_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.WARN: "⚠️", Verdict.HARNESS_ERROR: "💥"}


@contextmanager
def fenced(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Prevent GitHub Actions from executing text that is printed in this context as workflow commands.

    Outside of GitHub Actions, this context has no effect.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        yield
        return
    fence = secrets.token_hex(16)
    print(f"::stop-commands::{fence}", flush=True)
    try:
        yield
    finally:
        print(f"::{fence}::", flush=True)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _annotations(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a workflow command (an annotation) for each cause of violations."""
    view = overview(report)
    for summary in view.shown:
        row = summary.shown[0]
        name = f"{row['verdict']} {summary.requirement}"
        evidence = row["evidence"][0] if row["evidence"] else None
        seen = f" ({evidence['exchange']})" if evidence else ""
        words = f"{evidence['message'] if evidence else row['message']}{seen}\n{summary.sentence}"
        words += f"\n{summary.following}" if summary.following else ""
        yield f"::{_COMMANDS[Verdict(row['verdict'])]} title={_property(name)}::{_data(words)}"
    for fault in view.faults:
        name = f"baseline: {fault['kind']} {fault['requirement']}"
        yield f"::error title={_property(name)}::{_data(fault['message'])}"


def workflow_commands(report: Mapping[str, Any]) -> list[str]:
    """Return at most as many annotations as GitHub shows.

    If annotations are left out, the last line gives their number.
    """
    commands = list(_annotations(report))
    more = len(commands) - _MOST_ANNOTATIONS
    rest = [f"::notice title=tokenwire::{more} more are in the summary of the step"] if more > 0 else []
    return [*commands[:_MOST_ANNOTATIONS], *rest]


def _cell(text: str) -> str:
    """Escape text for a table cell, because text from the target must not become markup."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("`", "&#96;")
    return " ".join(escaped.split())


def _fenced_block(text: str) -> str:
    """Return a code block. Its fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def step_summary(report: Mapping[str, Any]) -> str:
    """Return the summary of the step as Markdown: the result in one line, the failures, and a folded table of
    all verdicts.
    """
    view = overview(report)
    text = template("tokenwire.report", "summary.md.jinja").render(
        vars(view),
        most=_MOST_FAILURES,
        start_here=view.start_here,
        first=FIRST_CAUSES,
        marks=_MARKS,
        cell=_cell,
        fenced_block=_fenced_block,
        failure=failure,
    )
    text = text.rstrip("\n") + "\n"
    if len(text.encode()) <= _MOST_BYTES:
        return text
    return text.encode()[:_MOST_BYTES].decode(errors="ignore") + "\n\n(cut: the report is longer)\n"
