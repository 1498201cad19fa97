"""What a GitHub workflow shows: annotations among the lines of the log, and the summary of the step."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.report.failure import failure
from tokenwire.report.overview import Summary, overview

_COMMANDS = {Verdict.FAIL: "error", Verdict.HARNESS_ERROR: "error", Verdict.WARN: "warning"}
_MOST_ANNOTATIONS = 10
"""GitHub shows no more of one kind for a step."""
_MOST_FAILURES = 30
_MOST_BYTES = 900_000
"""A step's summary holds 1 MiB."""
_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.WARN: "⚠️", Verdict.HARNESS_ERROR: "💥"}


@contextmanager
def fenced(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Let a workflow's runner take no line within for a command. Prints nothing outside a workflow."""
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
    """One workflow command for each cause of violations, so that it shows on the page of the run."""
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
    """As many as GitHub shows, and one that says how many more there are."""
    commands = list(_annotations(report))
    more = len(commands) - _MOST_ANNOTATIONS
    rest = [f"::notice title=tokenwire::{more} more are in the summary of the step"] if more > 0 else []
    return [*commands[:_MOST_ANNOTATIONS], *rest]


def _cell(text: str) -> str:
    """Text as one cell of a table: what the target wrote must not become markup."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("`", "&#96;")
    return " ".join(escaped.split())


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any run of backticks within."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _table(summaries: Sequence[Summary]) -> Iterator[str]:
    yield "| | requirement | witnesses | scenarios, or why not |"
    yield "|---|---|---:|---|"
    for summary in summaries:
        mark = _MARKS.get(summary.verdict, "▫️") if summary.mark == summary.verdict else "🔕"
        cells = (
            f"{mark} {summary.mark}",
            summary.requirement,
            str(summary.witnesses or ""),
            _cell(summary.explanation),
        )
        yield f"| {' | '.join(cells)} |"


def step_summary(report: Mapping[str, Any]) -> str:
    """The summary of the step, in Markdown: one line, the failures, and the table folded away."""
    view = overview(report)
    parts = [f"## Tokenwire: {_cell(view.outcome)}", f"{_cell(view.title)}: {view.numbers}"]
    if view.levels:
        parts.append(_cell(view.levels))
    baseline = [
        *(f"**{fault['kind']}**: {_cell(fault['message'])}" for fault in view.faults),
        *map(_cell, view.flaky),
        *(
            f"known: `{row['requirement']}` in {_cell(row['scenario'])}: {_cell(row['known_because'])}"
            for row in view.known
        ),
    ]
    if baseline:
        parts.append("\n".join(f"- {line}" for line in baseline))
    for summary in view.shown[:_MOST_FAILURES]:
        row = summary.shown[0]
        details = failure(row) if "exhibit" in row else row["message"]
        details += f"\n\n  {summary.following}" if summary.following else ""
        head = f"{row['verdict']} <b>{summary.requirement}</b>: {_cell(summary.sentence)}"
        parts.append(_folded(head, _fenced(details)))
    if len(view.shown) > _MOST_FAILURES:
        parts.append(f"{len(view.shown) - _MOST_FAILURES} more violated requirements are in the report.")
    if view.summaries:
        table = "\n".join(_table(view.summaries))
        parts.append(_folded(f"All {len(view.summaries)} requirements", table))
    text = "\n\n".join(parts) + "\n"
    if len(text.encode()) <= _MOST_BYTES:
        return text
    return text.encode()[:_MOST_BYTES].decode(errors="ignore") + "\n\n(cut: the report is longer)\n"


def _folded(head: str, text: str) -> str:
    return f"<details><summary>{head}</summary>\n\n{text}\n\n</details>"
