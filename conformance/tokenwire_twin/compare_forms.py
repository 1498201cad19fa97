"""Formats a comparison for CI workflows: as JUnit XML, and as the summary of a workflow step."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tokenwire.wire.inert import inert
from tokenwire_twin.difference import Gravity
from tokenwire_twin.difference_report import DifferenceReport
from tokenwire_twin.families import Family
from tokenwire_twin.verdicts import VerdictDifference

_MOST_ROWS = 60
"""The most differences in a summary. The JSON report has all differences."""
_SUITE = "tokenwire compare"


def _seen(row: Family | VerdictDifference) -> str:
    """Describe how often and where a difference was seen, or why the verdicts differ."""
    if isinstance(row, VerdictDifference):
        return f"A: {row.why_one or row.one or '-'}\nB: {row.why_other or row.other or '-'}"
    places = ", ".join(f"{count} at {dialect}" for dialect, count in row.at.items())
    return f"{places}\n{row.example.exchange}: {row.example.message}\n" + "\n".join(row.exchanges)


def _rows(report: DifferenceReport) -> list[Family | VerdictDifference]:
    """Return the differences that count, and the known differences, with the most serious first."""
    return [row for row in report.rows if row.decides or row.known]


def as_junit(report: DifferenceReport) -> str:
    """Return the comparison as JUnit XML. A new difference is a failure, a known one is a skipped test."""
    rows = _rows(report)
    failures = sum(not row.known for row in rows) + len(report.faults)
    skipped = str(sum(bool(row.known) for row in rows))
    count = str(len(rows) + len(report.faults) or 1)
    suite = ET.Element("testsuite", name=_SUITE, tests=count, failures=str(failures), skipped=skipped)
    for row in rows:
        subject = row.gravity if isinstance(row, Family) else Gravity.ROWS
        case = ET.SubElement(suite, "testcase", classname=str(subject), name=inert(row.name))
        if row.known:
            ET.SubElement(case, "skipped", message=inert(f"known: {row.known}"))
        else:
            ET.SubElement(case, "failure", message="A and B differ").text = inert(_seen(row))
    for fault in report.faults:
        case = ET.SubElement(suite, "testcase", classname="known differences", name=inert(fault))
        ET.SubElement(case, "failure", message="the entry does not hold").text = inert(fault)
    if not rows and not report.faults:
        ET.SubElement(suite, "testcase", classname=_SUITE, name="A and B are the same")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _cell(text: str) -> str:
    return inert(text).replace("\\", "\\\\").replace("|", "\\|").replace("`", "'").replace("\n", " ")


def as_summary(report: DifferenceReport, outcome: str) -> str:
    """Return the comparison as Markdown, for the summary of a workflow step."""
    lines = [
        f"### tokenwire compare: {_cell(outcome)}",
        "",
        f"A: `{_cell(report.one)}`, B: `{_cell(report.other)}`",
    ]
    rows = _rows(report)
    if rows:
        lines += ["", "| subject | difference | seen | known |", "|---|---|---|---|"]
    for row in rows[:_MOST_ROWS]:
        subject = row.gravity if isinstance(row, Family) else Gravity.ROWS
        seen = f"{row.count:,}" if isinstance(row, Family) else ""
        lines.append(f"| {subject} | `{_cell(row.name)}` | {seen} | {_cell(row.known)} |")
    if len(rows) > _MOST_ROWS:
        lines += ["", f"{len(rows) - _MOST_ROWS} more are in the JSON report."]
    lines += [f"- {_cell(fault)}" for fault in report.faults]
    return "\n".join(lines) + "\n"
