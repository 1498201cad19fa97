"""The report in SARIF 2.1.0, a common format of static analysis tools."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tokenwire.judging.verdict import Verdict
from tokenwire.report.overview import Row, Summary, baseline_faults, summaries, title

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Verdict.FAIL: "error", Verdict.WARN: "warning"}


def _rule(summary: Summary) -> dict[str, Any]:
    return {
        "id": summary.requirement,
        "shortDescription": {"text": summary.sentence or summary.requirement},
        "defaultConfiguration": {"level": "error" if summary.level == "MUST" else "warning"},
        "properties": {"chapter": summary.chapter, "tags": [summary.chapter, summary.level]},
    }


def _location(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return a byte range in an exchange. The exchange is named by the file that `--record` writes."""
    exchange, event = evidence["exchange"], evidence["event"]
    place = exchange if event is None else f"{exchange}#{event}"
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(f"{exchange}.jsonl"), "uriBaseId": "CAPTURE"},
            "region": {
                "byteOffset": evidence["start"],
                "byteLength": evidence["end"] - evidence["start"],
                "snippet": {"text": evidence["excerpt"]},
            },
        },
        "logicalLocations": [{"fullyQualifiedName": f"{place}{evidence['pointer']}"}],
    }


def _fingerprints(row: Row) -> dict[str, str]:
    """Return fingerprints that are equal in every run.

    A cause is identified only by its requirement, because timing may decide in which scenario the cause
    appears first. A known failure is identified also by its scenario.
    """
    known = bool(row.get("known"))
    identity = f"{row['requirement']}\n{row['scenario']}" if known else row["requirement"]
    name = "requirementAndScenario/v1" if known else "cause/v1"
    return {name: hashlib.sha256(identity.encode()).hexdigest()[:32]}


def _results(every: list[Summary]) -> Iterator[dict[str, Any]]:
    """Yield a result for each cause of violations, and for each known failure."""
    for position, summary in enumerate(every):
        for row in (*summary.shown[:1], *summary.known):
            verdict = Verdict(row["verdict"])
            suppressed = {"kind": "external", "status": "accepted", "justification": row.get("known_because")}
            if verdict not in _LEVELS or not row["evidence"]:
                continue
            first = row["evidence"][0]
            seen = [row] if row.get("known") else summary.shown
            scenarios = ", ".join(shown["scenario"] for shown in seen)
            also = f" {summary.following}." if summary.following and not row.get("known") else ""
            yield {
                "ruleId": summary.requirement,
                "ruleIndex": position,
                "level": _LEVELS[verdict],
                "message": {"text": f"{first['message']} (in {scenarios}). {summary.sentence}{also}"},
                "locations": [_location(first)],
                "partialFingerprints": _fingerprints(row),
                "suppressions": [suppressed] if row.get("known") else [],
            }


def _crashes(every: list[Summary]) -> list[dict[str, Any]]:
    """Return the crashes of checks in the format in which SARIF lists them, separate from the results."""
    return [
        {"level": "error", "message": {"text": row["message"]}, "descriptor": {"id": row["requirement"]}}
        for summary in every
        for row in summary.bad
        if Verdict(row["verdict"]) is Verdict.HARNESS_ERROR
    ]


def sarif(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON report as a SARIF log: a rule for each requirement, a result for each cause."""
    every = summaries(report)
    crashes = _crashes(every)
    invocation: dict[str, Any] = {
        "executionSuccessful": not crashes and report["exit_status"] in {0, 1},
        "exitCode": report["exit_status"],
    }
    baseline = [
        {"level": "error", "message": {"text": f"{fault['kind']}: {fault['message']}"}}
        for fault in baseline_faults(report)
    ]
    if crashes or baseline:
        invocation["toolExecutionNotifications"] = [*crashes, *baseline]
    driver = {
        "name": report["tool"]["name"],
        "semanticVersion": report["tool"]["version"],
        "rules": [_rule(summary) for summary in every],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "originalUriBaseIds": {"CAPTURE": {"description": {"text": "The folder that --record names."}}},
        "results": list(_results(every)),
        "properties": {"target": title(report)},
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
