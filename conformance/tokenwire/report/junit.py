"""Rewrites the JUnit report of pytest, so that each cause of violations is one failure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import Summary, summaries


def fold(path: Path, report: Mapping[str, Any]) -> str:
    """Rewrite a JUnit file of pytest.

    Each cause of violations becomes a failure that lists its consequences. Each consequence becomes a skipped
    test that names its cause. Raises OSError.
    """
    first: dict[str, Summary] = {}
    follows: dict[str, str] = {}
    for summary in summaries(report):
        for row in summary.bad:
            name = f"{row['requirement']}[{row['scenario']}]"
            if row["verdict"] != Verdict.FAIL or name in first:
                continue
            if "follows_from" in row:
                follows[name] = row["follows_from"]
            elif summary in first.values():
                follows[name] = summary.requirement
            else:
                first[name] = summary
    document = ET.parse(path)  # pytest has just written this file
    for suite in document.iter("testsuite"):
        skipped = 0
        for case in suite.iter("testcase"):
            failure, name = case.find("failure"), case.get("name", "")
            if failure is None:
                continue
            if name in follows:
                case.remove(failure)
                ET.SubElement(case, "skipped", message=f"{Verdict.FAIL}: follows from {follows[name]}")
                skipped += 1
            elif name in first and first[name].following:
                failure.text = f"{failure.text or ''}\n\n  {first[name].following}"
        for count, change in (("failures", -skipped), ("skipped", skipped)):
            suite.set(count, str(int(suite.get(count, "0")) + change))
    ET.indent(document)  # pytest writes the file in one line
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(document.getroot(), encoding="unicode")
