"""A failure as the user sees it: six lines, then the evidence."""

from __future__ import annotations

from tokenwire.judge import Judgement
from tokenwire.report.exhibit import ShownEvent, exhibit
from tokenwire.report.subject import Subject


def _event_line(event: ShownEvent) -> str:
    mark = ">" if event.illegal else " "
    return f" {mark} {event.index:>4}  {event.time:8.3f} s  {event.start:>7}-{event.end:<7}  {event.excerpt}"


def failure(judgement: Judgement, subject: Subject) -> str:
    """All that a violated requirement tells in one scenario, as plain text.

    Raises ValueError for a judgement without a violation.
    """
    shown = exhibit(judgement, subject)
    requirement = judgement.requirement
    lines = [
        f"{judgement.verdict}  {requirement.id}  in {judgement.scenario}",
        f"  sentence    {requirement.sentence}",
        f"  expected    {shown.expected}",
        f"  actual      {shown.actual}" + (f"  ({shown.message})" if shown.message else ""),
        f"  first seen  {shown.first_seen}",
        f"  looks like  {', '.join(shown.upstream) or 'nothing that the catalogue knows'}",
        "",
        *map(_event_line, shown.events),
        *(f"   related    {place}" for place in shown.related),
        *([f"   {shown.others}"] if shown.others else []),
        "",
    ]
    return "\n".join([*lines, *(f"  {command}" for command in (shown.curl, shown.again) if command)])
