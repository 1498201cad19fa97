"""The badge: what a badge server's endpoint asks for, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.report.overview import KNOWN, baseline_faults, counts, summaries

_COLOURS = {ExitStatus.CONFORMS: "brightgreen", ExitStatus.VIOLATION: "red"}


def badge(report: Mapping[str, Any]) -> dict[str, Any]:
    """The badge of a JSON report: how many requirements passed, and how many were violated."""
    number = counts(summaries(report))
    message = f"{number[Verdict.PASS]} passed"
    if known := number[f"{KNOWN} {Verdict.FAIL}"]:
        message = f"{known} known, {message}"
    if violated := number[Verdict.FAIL]:
        message = f"{violated} violated, {message}"
    if baseline_faults(report):
        message = f"baseline does not hold, {message}"
    if report["exit_status"] not in _COLOURS:
        message = "not evaluated"
    return {
        "schemaVersion": 1,
        "label": f"tokenwire {report['tool']['spec']}",
        "message": message,
        "color": _COLOURS.get(report["exit_status"], "lightgrey"),
    }
