"""A failure as the user sees it: six lines, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _event_line(event: Mapping[str, Any]) -> str:
    mark = ">" if event["illegal"] else " "
    span = f"{event['start']:>7}-{event['end']:<7}"
    return f" {mark} {event['index']:>4}  {event['time']:8.3f} s  {span}  {event['excerpt']}"


def failure(row: Mapping[str, Any]) -> str:
    """All that a violated requirement tells in one scenario, as plain text; from its row of the JSON report.

    Raises ValueError for a row without a violation.
    """
    shown = row.get("exhibit")
    if shown is None:
        raise ValueError(f"{row['requirement']} has no violation to show; its verdict is {row['verdict']}")
    lines = [
        f"{row['verdict']}  {row['requirement']}  in {row['scenario']}",
        f"  sentence    {row['sentence']}",
        f"  expected    {shown['expected']}",
        f"  actual      {shown['actual']}" + (f"  ({shown['message']})" if shown["message"] else ""),
        f"  first seen  {shown['first_seen']}",
        f"  looks like  {', '.join(shown['upstream']) or 'nothing that the catalogue knows'}",
        "",
        *map(_event_line, shown["events"]),
        *(f"   related    {place}" for place in shown["related"]),
        *([f"   {shown['others']}"] if shown["others"] else []),
        "",
    ]
    return "\n".join([*lines, *(f"  {command}" for command in (shown["curl"], shown["again"]) if command)])
