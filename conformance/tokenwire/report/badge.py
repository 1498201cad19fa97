"""The JSON from which a badge server, such as shields.io, draws a badge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.report.overview import KNOWN, baseline_faults, counts, summaries

_COLOURS = {ExitStatus.CONFORMS: "brightgreen", ExitStatus.VIOLATION: "red"}


def badge(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the badge for a JSON report.

    It shows the number of satisfied MUSTs of the first level, and the number of violated requirements.
    """
    number = counts(summaries(report))
    levels = [_in_short(level) for level in report.get("levels", ()) if level["shown"]]
    message = next(iter(levels), f"{number[Verdict.PASS]} passed")
    version = report["tool"]["spec"]
    if levels:
        version = f"{report['levels'][0]['date']} v{report['tool']['profiles']}"
    if known := number[f"{KNOWN} {Verdict.FAIL}"]:
        message = f"{known} known, {message}"
    if violated := number[Verdict.FAIL]:
        message = f"{violated} violated, {message}"
    if baseline_faults(report):
        message = f"baseline does not match, {message}"
    if report["exit_status"] not in _COLOURS:
        message = "not evaluated"
    return {
        "schemaVersion": 1,
        "label": f"tokenwire {version}",
        "message": message,
        "color": _COLOURS.get(report["exit_status"], "lightgrey"),
    }


def _in_short(level: Mapping[str, Any]) -> str:
    """Describe briefly how many MUSTs of a level are satisfied and how many are undecided."""
    undecided = f" ({len(level['undecided'])} undecided)" if level["undecided"] else ""
    return f"{level['title']} {level['holds']}/{level['of']}{undecided}"
