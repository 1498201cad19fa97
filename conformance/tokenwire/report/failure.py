"""Renders a violation as plain text: the requirement, the violation, the events around it, and commands to
repeat it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterator, Mapping
from typing import Any

from rich.cells import cell_len

WIDTH = 120
"""The default width of lines, in characters."""
_LABEL = 14
_LEAST_ROOM = 20


def _column(label: str, words: str, width: int) -> list[str]:
    """Return text after a label, wrapped as a column. A word that is longer than the column is divided."""
    return textwrap.wrap(
        words,
        max(width, _LABEL + _LEAST_ROOM),
        initial_indent=f"  {label:<{_LABEL - 2}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )


def _verbatim(label: str, text: str, width: int) -> list[str]:
    """Return the lines of a text from the server after a label. Spaces are kept."""
    room = max(width - _LABEL, _LEAST_ROOM)
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    return [f"{'' if n else f'  {label}':<{_LABEL}}{part}" for n, part in enumerate(parts)]


def _caret(shown: Mapping[str, Any], width: int) -> list[str]:
    """Return a line with a caret directly below the first wrong character of a text."""
    index = shown["differs_at"]
    if index is None or len(shown["actual"]) > width - _LABEL:
        return []
    return [f"{' ' * _LABEL}{' ' * cell_len(shown['actual'][:index])}^"]


def _within(text: str, mark: list[int] | None, room: int) -> tuple[str, list[int] | None]:
    """Shorten a text so that the text fits into the line and its marked part stays visible."""
    if len(text) <= room:
        return text, mark
    if mark is None:
        return f"{text[: room - 2]} …", None
    before = "… "
    start = min(max(0, mark[0] - (room - mark[1] + mark[0]) // 2), len(text) - room)
    # The ellipsis must not replace the beginning of the marked part.
    start = min(start, max(0, mark[0] - len(before)))
    before = before if start else ""
    after = " …" if start + room < len(text) else ""
    kept = text[start + len(before) : start + room - len(after)]
    return f"{before}{kept}{after}", [mark[0] - start, min(mark[1] - start, room - len(after))]


def _event_lines(events: list[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yield a line for each event.

    Below the event with the violation, a further line marks the wrong part.
    """
    digits = max((len(str(event["index"])) for event in events), default=1)
    for event in events:
        head = f" {'>' if event['illegal'] else ' '} {event['index']:>{digits}}  {event['time']:.3f} s  "
        text, mark = _within(event["excerpt"], event["mark"], max(width - len(head), _LEAST_ROOM))
        yield head + text
        if mark is not None and (event["illegal"] or len(events) == 1):
            yield f"{' ' * (len(head) + cell_len(text[: mark[0]]))}{'^' * cell_len(text[slice(*mark)])}"


def failure(row: Mapping[str, Any], width: int = WIDTH, without: Container[str] = ()) -> str:
    """Render the violation of a requirement in one scenario as plain text.

    `row`: the requirement's entry in the JSON report. `without`: labels of the parts to leave out. Commands
    may exceed the width, because users copy them. Raises ValueError if the entry has no violation.
    """
    shown = row.get("exhibit")
    if shown is None:
        raise ValueError(f"{row['requirement']} has no violation; its verdict is {row['verdict']}")
    labelled = {
        "sentence": _column("sentence", row["sentence"], width),
        "found": _column("found", shown["message"], width) if shown["message"] else [],
        "expected": _verbatim("expected", shown["expected"], width),
        "actual": [*_verbatim("actual", shown["actual"], width), *_caret(shown, width)],
        "first seen": _column("first seen", shown["first_seen"], width),
        "looks like": _column("looks like", ", ".join(shown["upstream"]), width) if shown["upstream"] else [],
    }
    commands = {"curl": shown["curl"], "again": shown["again"]}
    lines = [
        f"{row['verdict']}  {row['requirement']}  in {row['scenario']}",
        *(line for label, lines in labelled.items() if label not in without for line in lines),
        *([""] if shown["events"] else []),
        *_event_lines(shown["events"], width),
        *(line for place in shown["related"] for line in _column("beside", place, width)),
        *textwrap.wrap(
            shown["others"], width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        ),
        "",
        *(f"  {command}" for label, command in commands.items() if command and label not in without),
    ]
    return "\n".join(lines).rstrip()
