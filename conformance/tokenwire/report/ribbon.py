"""The token ribbon: rows that compare the entries of an answer with the expected entries, position by
position. There is a column for each position of the reference. Surplus entries have columns of their own
between these columns. Therefore a missing id is shown as one hole, and the ids after the hole are not shown
as different.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import takewhile, zip_longest
from typing import Any

from tokenwire.report.finding import window
from tokenwire.report.wording import cut, first_few
from tokenwire.target.alike import alike
from tokenwire.wire.inert import inert

_MOST_ALIGNED = 240
"""The most entries that are aligned.

The limit is necessary because the time grows with the square of their number.
"""
_MOST_COLUMNS = 120
_BEFORE_FOCUS = 40
"""The number of columns that are shown before the first fault."""
_LONGEST_WORDS = 14
_MOST_POSITIONS = 4


class State(StrEnum):
    """The result for one position of a row."""

    SAME = "same"
    SHIFT = "shift"
    """The entry is correct, but its index in its array differs from the expected index."""
    HOLE = "hole"
    LATER = "later"
    """The entry has not been delivered yet: the stream goes on after this event."""
    DOUBLE = "double"
    """A surplus entry that is equal to an expected entry, such as a repeated id."""
    EXTRA = "extra"
    """A surplus entry that is not expected anywhere."""
    DIFFERS = "differs"


_WORDS = {
    State.HOLE: "missing",
    State.DOUBLE: "delivered twice",
    State.EXTRA: "too many",
    State.DIFFERS: "different",
    State.SHIFT: "at another index",
    State.LATER: "not yet delivered",
}
_WRONG = (State.HOLE, State.DOUBLE, State.EXTRA, State.DIFFERS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of a row. `index`: the index of the entry in its array; None if the entry is missing."""

    state: State
    index: int | None = None


@dataclass(frozen=True)
class Aligned:
    """An array, aligned with its reference."""

    cells: tuple[Cell, ...]
    """One cell for each position of the reference."""
    before: dict[int, tuple[Cell, ...]]
    """Surplus entries, by the position of the reference before which they are inserted."""

    @property
    def sound(self) -> bool:
        """True if no entry is missing, different or surplus."""
        return not self.before and all(cell.state not in _WRONG for cell in self.cells)


@dataclass(frozen=True)
class RibbonRow:
    """A row of the ribbon: one array of one answer."""

    name: str
    entries: Sequence[Any]
    aligned: Aligned
    events: Sequence[int] = ()
    """The playback step that delivered each entry. Empty for an answer without a playback."""

    @property
    def faults(self) -> str:
        """A description of all faults in the row; empty if there are none."""
        before = ((position, cell) for position, cells in self.aligned.before.items() for cell in cells)
        cells = [*enumerate(self.aligned.cells), *before]
        clauses = []
        for state in (*_WRONG, State.SHIFT):
            if positions := [position for position, cell in cells if cell.state is state]:
                named = list(map(str, dict.fromkeys(positions)))
                where = f"position{'s' * (len(named) > 1)} {first_few(named, _MOST_POSITIONS)}"
                clauses.append(f"{len(positions)} {_WORDS[state]} ({where})")
        return "; ".join(clauses)


def _key(entry: Any) -> Hashable:
    """Return a key for comparing entries. Logprobs are rounded."""
    if isinstance(entry, float):
        return round(entry, 2)
    if isinstance(entry, list | tuple):
        return tuple(map(_key, entry))
    if isinstance(entry, dict):
        return tuple((name, _key(value)) for name, value in entry.items())
    return (type(entry).__name__, entry)


def _align(
    reference: Sequence[Any], entries: Sequence[Any], known: Counter[Hashable], offset: int = 0
) -> Aligned:
    """Align entries with a reference.

    `known`: all expected entries. `offset`: the index of the first entry in its array.
    """
    # Equal entries at both ends are skipped first, because the matcher takes quadratic time.
    head = sum(1 for _ in takewhile(lambda pair: alike(*pair), zip(reference, entries, strict=False)))
    longest = min(len(reference), len(entries)) - head
    backwards = zip(reversed(reference), reversed(entries), strict=False)
    tail = min(longest, sum(1 for _ in takewhile(lambda pair: alike(*pair), backwards)))
    wanted = [_key(entry) for entry in reference[head : len(reference) - tail]]
    found = [_key(entry) for entry in entries[head : len(entries) - tail]]
    cells = [Cell(State.SAME, offset + index) for index in range(head)]
    before: dict[int, tuple[Cell, ...]] = {}
    most = _MOST_ALIGNED
    blocks = SequenceMatcher(None, wanted[:most], found[:most], autojunk=False).get_opcodes()
    # Entries beyond the limit of the matcher are compared position by position.
    rest = ("replace", min(most, len(wanted)), len(wanted), min(most, len(found)), len(found))
    for tag, first, last, start, end in (*blocks, rest):
        for n in range(last - first):
            index = head + start + n
            if start + n >= end:
                cells.append(Cell(State.HOLE))
            elif tag == "equal" or alike(reference[head + first + n], entries[index]):
                cells.append(Cell(State.SAME, offset + index))
            else:
                cells.append(Cell(State.DIFFERS, offset + index))
        surplus = tuple(
            Cell(State.DOUBLE if known[found[n]] else State.EXTRA, offset + head + n)
            for n in range(start + (last - first), end)
        )
        if surplus:
            before[len(cells)] = (*before.get(len(cells), ()), *surplus)
    cells += [Cell(State.SAME, offset + len(entries) - tail + n) for n in range(tail)]
    return Aligned(tuple(cells), before)


def align(reference: Sequence[Any], entries: Sequence[Any], *, ended: bool = True) -> Aligned:
    """Align an array with a reference.

    If the array has not `ended`, missing entries at its end are marked `LATER`.
    """
    aligned = _align(reference, entries, Counter(map(_key, reference)))
    cells = [
        Cell(State.SHIFT, cell.index) if cell.state is State.SAME and cell.index != position else cell
        for position, cell in enumerate(aligned.cells)
    ]
    lacking = (
        0 if ended else sum(1 for _ in takewhile(lambda cell: cell.state is State.HOLE, reversed(cells)))
    )
    cells[len(cells) - lacking :] = [Cell(State.LATER)] * lacking
    return Aligned(tuple(cells), aligned.before)


def align_parts(reference: Sequence[Any], parts: Sequence[tuple[int, Sequence[Any]]]) -> Aligned:
    """Align a series with a reference, event by event.

    For each event, `parts` has the number of ids and the entries.
    """
    cells: list[Cell] = []
    before: dict[int, tuple[Cell, ...]] = {}
    known = Counter(map(_key, reference))
    offset = 0
    for count, part in parts:
        aligned = _align(reference[len(cells) : len(cells) + count], part, known, offset)
        for position, surplus in aligned.before.items():
            here = len(cells) + position
            before[here] = (*before.get(here, ()), *surplus)
        cells += aligned.cells
        offset += len(part)
    return Aligned((*cells, *(Cell(State.HOLE) for _ in reference[len(cells) :])), before)


def words_of(entry: Any) -> str:
    """Return a short text for an entry. The text of a logprob entry is its logprob."""
    while isinstance(entry, list | tuple) and entry and isinstance(entry[0], float | list | tuple):
        entry = entry[0]
    if isinstance(entry, dict) and isinstance(entry.get("logprob"), int | float):
        entry = entry["logprob"]
    if isinstance(entry, float):
        return f"{entry:.3f}"
    if not isinstance(entry, str) or not entry.strip():
        entry = json.dumps(entry, ensure_ascii=False, default=str)
    return inert(cut(entry, _LONGEST_WORDS))


def _columns(rows: Sequence[RibbonRow]) -> Iterator[tuple[int | None, list[Cell | None]]]:
    """Yield the columns.

    A column has a position (None for surplus entries), and the cell of each row (None for a row without a
    cell there).
    """
    length = max(len(row.aligned.cells) for row in rows)
    for position in range(length + 1):
        for cells in zip_longest(*(row.aligned.before.get(position, ()) for row in rows)):
            yield None, list(cells)
        if position < length:
            cells_here = [row.aligned.cells[position : position + 1] for row in rows]
            yield position, [next(iter(cell), None) for cell in cells_here]


def ribbon(unit: str, rows: Sequence[RibbonRow], focus: int) -> dict[str, Any]:
    """Return the rows as JSON for the page.

    At most `_MOST_COLUMNS` columns are included. They are the columns around the first fault, or around
    `focus` if there is no fault.
    """
    columns = list(_columns(rows))
    wrong = (
        n for n, (_, cells) in enumerate(columns) if any(cell and cell.state in _WRONG for cell in cells)
    )
    middle = next(wrong, next((n for n, (position, _) in enumerate(columns) if position == focus), 0))
    part = window(len(columns), middle, most=_MOST_COLUMNS, before=_BEFORE_FOCUS)
    shown = columns[part]
    return {
        "unit": unit,
        "before": part.start,
        "after": len(columns) - part.start - len(shown),
        "columns": [position for position, _ in shown],
        "rows": [
            {
                "name": inert(row.name),
                "faults": row.faults,
                "cells": [_embedded(row, cells[number]) for _, cells in shown],
            }
            for number, row in enumerate(rows)
        ],
    }


def _embedded(row: RibbonRow, cell: Cell | None) -> list[Any] | None:
    """Return a cell as JSON for the script: its text, its state, and the step that delivered it."""
    if cell is None:
        return None
    if cell.index is None:
        return ["", cell.state.value]
    words = [words_of(row.entries[cell.index]), cell.state.value]
    return [*words, row.events[cell.index]] if row.events else words
