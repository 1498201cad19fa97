"""The token ribbon: what an answer holds at each position, held against what belongs there.

All rows share their columns: one for each position of the reference, and between them room for what an answer
holds besides. Then a lost id is one hole, and not a difference of everything behind it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import takewhile
from typing import Any

from tokenwire.report.wording import cut, inert
from tokenwire.target.alike import alike

_MOST_ALIGNED = 240
"""Entries of which the alignment is searched; its time grows with their square."""
_MOST_COLUMNS = 120
_BEFORE_FOCUS = 40
"""How many of the columns that are kept stand before the first that is not as it should be."""
_LONGEST_WORDS = 14
_MOST_PLACES = 4


class State(StrEnum):
    """What is to be said of one position of one row."""

    SAME = "same"
    SHIFT = "shift"
    """The right entry, but at another index of its array."""
    HOLE = "hole"
    LATER = "later"
    """Not delivered by the event that is looked at: the stream goes on."""
    DOUBLE = "double"
    """An entry too many, which belongs to another position."""
    EXTRA = "extra"
    """An entry too many, which belongs nowhere."""
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
    """One position of one row; `index` is that in the row's own array, None where nothing stands there."""

    state: State
    index: int | None = None


@dataclass(frozen=True)
class Aligned:
    """A row on the positions of its reference."""

    at: tuple[Cell, ...]
    """One for each position."""
    before: dict[int, tuple[Cell, ...]]
    """What stands before a position besides; behind the last, under the number of positions."""

    @property
    def sound(self) -> bool:
        """Whether each position holds its entry, and nothing stands between."""
        return not self.before and all(cell.state not in _WRONG for cell in self.at)


@dataclass(frozen=True)
class Row:
    """One array of one answer."""

    name: str
    entries: Sequence[Any]
    aligned: Aligned
    events: Sequence[int] = ()
    """By which step of the playback each entry was there; empty where the row is not played."""

    @property
    def told(self) -> str:
        """What is wrong in the row, in words; empty where nothing is."""
        found: dict[State, list[int]] = {}
        for position, cell in enumerate(self.aligned.at):
            found.setdefault(cell.state, []).append(position)
        for position, cells in self.aligned.before.items():
            for cell in cells:
                found.setdefault(cell.state, []).append(position)
        clauses = []
        for state in (*_WRONG, State.SHIFT):
            if places := found.get(state):
                named = list(dict.fromkeys(places))
                some = ", ".join(map(str, named[:_MOST_PLACES]))
                some += ", …" if len(named) > _MOST_PLACES else ""
                clauses.append(f"{len(places)} {_WORDS[state]} (position{'s' * (len(named) > 1)} {some})")
        return "; ".join(clauses)


def _key(entry: Any) -> Hashable:
    """Equal for entries that are one, but for the digits that two computations differ in."""
    if isinstance(entry, float):
        return round(entry, 2)
    if isinstance(entry, list | tuple):
        return tuple(map(_key, entry))
    if isinstance(entry, dict):
        return tuple((name, _key(value)) for name, value in entry.items())
    return (type(entry).__name__, entry)


def _surplus(entry: Hashable, known: Counter[Hashable]) -> State:
    return State.DOUBLE if known[entry] else State.EXTRA


def align(reference: Sequence[Any], entries: Sequence[Any], *, ended: bool = True) -> Aligned:
    """Hold an array against what it should be. Unless it `ended`, what lacks at its end is not there yet."""
    head = sum(1 for _ in takewhile(lambda pair: alike(*pair), zip(reference, entries, strict=False)))
    longest = min(len(reference), len(entries)) - head
    backwards = zip(reversed(reference), reversed(entries), strict=False)
    tail = min(longest, sum(1 for _ in takewhile(lambda pair: alike(*pair), backwards)))
    wanted = [_key(entry) for entry in reference[head : len(reference) - tail]]
    found = [_key(entry) for entry in entries[head : len(entries) - tail]]
    at = [Cell(State.SAME, index) for index in range(head)]
    before: dict[int, list[Cell]] = {}
    known = Counter(map(_key, reference))

    def same(index: int) -> Cell:
        return Cell(State.SAME if index == len(at) else State.SHIFT, index)

    most = _MOST_ALIGNED
    blocks = SequenceMatcher(None, wanted[:most], found[:most], autojunk=False).get_opcodes()
    rest = ("replace", min(most, len(wanted)), len(wanted), min(most, len(found)), len(found))
    for tag, first, last, start, end in (*blocks, rest):
        for n in range(last - first):
            index = head + start + n
            if start + n >= end:
                at.append(Cell(State.HOLE))
            elif tag == "equal" or alike(reference[head + first + n], entries[index]):
                at.append(same(index))
            else:
                at.append(Cell(State.DIFFERS, index))
        surplus = range(start + (last - first), end)
        if surplus:
            before.setdefault(len(at), []).extend(Cell(_surplus(found[n], known), head + n) for n in surplus)
    for n in range(tail):
        at.append(same(len(entries) - tail + n))
    if not ended:
        for position in reversed(range(len(at))):
            if at[position].state is not State.HOLE:
                break
            at[position] = Cell(State.LATER)
    return Aligned(tuple(at), {position: tuple(cells) for position, cells in before.items()})


def align_parts(reference: Sequence[Any], parts: Sequence[tuple[int, Sequence[Any]]]) -> Aligned:
    """Hold what events bring against what belongs to their ids: each part with how many ids came with it."""
    at: list[Cell] = []
    before: dict[int, tuple[Cell, ...]] = {}
    known = Counter(map(_key, reference))
    index = 0

    def moved(cell: Cell, part: Sequence[Any]) -> Cell:
        if cell.index is None:
            return cell
        if cell.state in {State.DOUBLE, State.EXTRA}:
            return Cell(_surplus(_key(part[cell.index]), known), cell.index + index)
        if cell.state is State.DIFFERS:
            return Cell(cell.state, cell.index + index)
        return Cell(State.SAME, cell.index + index)

    for count, part in parts:
        first = len(at)
        aligned = align(reference[first : first + count], part)
        for position, cells in aligned.before.items():
            besides = tuple(moved(cell, part) for cell in cells)
            before[first + position] = (*before.get(first + position, ()), *besides)
        at += [moved(cell, part) for cell in aligned.at]
        index += len(part)
    return Aligned((*at, *(Cell(State.HOLE) for _ in reference[len(at) :])), before)


def words_of(entry: Any) -> str:
    """An entry in a few letters: of logprob entries, the first number."""
    while isinstance(entry, list | tuple) and entry and isinstance(entry[0], float | list | tuple):
        entry = entry[0]
    if isinstance(entry, dict) and isinstance(entry.get("logprob"), int | float):
        entry = entry["logprob"]
    if isinstance(entry, float):
        return f"{entry:.3f}"
    said = entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False, default=str)
    if isinstance(entry, str) and not entry.strip():
        said = json.dumps(entry, ensure_ascii=False)
    return inert(cut(said, _LONGEST_WORDS))


def _columns(rows: Sequence[Row]) -> Iterator[tuple[int | None, list[Cell | None]]]:
    """Each column: its position, or None between two, and a cell of each row, where it has one."""
    length = max(len(row.aligned.at) for row in rows)
    for position in range(length + 1):
        besides = [row.aligned.before.get(position, ()) for row in rows]
        for n in range(max(map(len, besides))):
            yield None, [cells[n] if n < len(cells) else None for cells in besides]
        if position < length:
            yield (
                position,
                [row.aligned.at[position] if position < len(row.aligned.at) else None for row in rows],
            )


def ribbon(unit: str, rows: Sequence[Row], focus: int) -> dict[str, Any]:
    """The rows as the page embeds them, at most `_MOST_COLUMNS` of their columns: around the first that is
    not as it should be, or else around the position `focus`.
    """
    columns = list(_columns(rows))
    wrong = (
        n for n, (_, cells) in enumerate(columns) if any(cell and cell.state in _WRONG for cell in cells)
    )
    middle = next(wrong, next((n for n, (position, _) in enumerate(columns) if position == focus), 0))
    first = max(0, min(middle - _BEFORE_FOCUS, len(columns) - _MOST_COLUMNS))
    kept = columns[first : first + _MOST_COLUMNS]

    def shown(row: Row, cell: Cell | None) -> list[Any] | None:
        if cell is None:
            return None
        if cell.index is None:
            return ["", cell.state.value]
        words = [words_of(row.entries[cell.index]), cell.state.value]
        return [*words, row.events[cell.index]] if row.events else words

    return {
        "unit": unit,
        "before": first,
        "after": len(columns) - first - len(kept),
        "columns": [position for position, _ in kept],
        "rows": [
            {
                "name": inert(row.name),
                "told": row.told,
                "cells": [shown(row, cells[number]) for _, cells in kept],
            }
            for number, row in enumerate(rows)
        ],
    }
