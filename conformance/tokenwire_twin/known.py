"""Files of known differences: families of differences that are tolerated, each with a reason.

An entry has the family's name and the dialects in which the difference is known. The same difference at
another endpoint is new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import tomlkit

from tokenwire.baselines.baseline_update import blocks_of, edited
from tokenwire.baselines.tolerance import unexplained
from tokenwire.foreign_files import parse_foreign_toml
from tokenwire.typed_table import suggestion, typed
from tokenwire.usage_error import UsageError
from tokenwire_twin.difference_report import DifferenceReport
from tokenwire_twin.families import Family
from tokenwire_twin.verdicts import VerdictDifference

_TABLE = "difference"
_HEAD = re.compile(rf"^\s*\[\[\s*{_TABLE}\s*\]\]")
_INTRODUCTION = """\
# Known differences. `tokenwire compare A B --known FILE` tolerates exactly these. An entry that covers
# nothing, that has expired, or that has no reason or no link, fails the comparison. Give each its reason and
# the address of an issue. `--update` rewrites this file, and keeps comments, reasons and links.
"""


@dataclass(frozen=True)
class KnownDifference:
    """An entry: a family of differences that is tolerated."""

    family: str
    """The name of the family, as the comparison prints it."""
    at: tuple[str, ...] = ()
    """The dialects in which the difference is known. Empty for a family without dialects."""
    seen: int = 0
    """The number of exchanges with this difference when the entry was written.

    The number is only informative.
    """
    reason: str = ""
    link: str = ""
    expires: date | None = None
    """The last day on which the difference is tolerated. None for no end."""

    def covers(self, name: str, at: Iterable[str]) -> bool:
        return self.family == name and frozenset(at) <= frozenset(self.at)

    @property
    def words(self) -> str:
        return f"{self.reason} ({self.link})"


@dataclass(frozen=True)
class KnownDifferences:
    """A file of known differences."""

    path: Path
    entries: tuple[KnownDifference, ...] = ()


@dataclass(frozen=True)
class Update:
    """An updated file of known differences, with the changes."""

    text: str
    kept: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


def read_known(path: Path) -> KnownDifferences:
    """Read a file of known differences. Raises UsageError."""
    try:
        return _parsed(path, path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"known differences {path} cannot be read: {error}; write them with "
            f"`tokenwire compare A B --known {path} --update`"
        ) from error


def _parsed(path: Path, text: str) -> KnownDifferences:
    """Return the entries in the text of a file. `path` is used in messages. Raises UsageError."""
    try:
        document = parse_foreign_toml(text)
    except ValueError as error:
        raise UsageError(f"known differences {path} is not TOML: {error}") from error
    for name in document.keys() - {_TABLE}:
        hint = suggestion(name, [_TABLE], f"write [[{_TABLE}]]")
        raise UsageError(f"known differences {path}: {name!r} is unknown; {hint}")
    tables = document.get(_TABLE, [])
    if not isinstance(tables, list):
        raise UsageError(f"known differences {path}: {_TABLE} is not a list of tables; write [[{_TABLE}]]")
    return KnownDifferences(path, tuple(_entries(path, tables)))


def _entries(path: Path, tables: list[Any]) -> Iterator[KnownDifference]:
    for number, table in enumerate(tables, start=1):
        where = f"known differences {path}, {_TABLE} {number}"
        try:
            yield typed(KnownDifference, table, where)
        except ValueError as error:
            raise UsageError(f"{error} (`--update` writes correct entries)") from error


_Row = Family | VerdictDifference


def _marked(rows: Iterable[_Row], entries: Iterable[KnownDifference]) -> Iterator[tuple[_Row, set[int]]]:
    """Yield each difference, with its reason if the difference is known, and with the positions of its
    entries in the file.
    """
    every = list(entries)
    for row in rows:
        covering = [
            (position, entry) for position, entry in enumerate(every) if entry.covers(row.name, row.at)
        ]
        known = covering[0][1].words if covering and row.decides else ""
        yield replace(row, known=known), {position for position, _ in covering}


def apply_known(
    report: DifferenceReport, known: KnownDifferences, *, complete: bool, today: date
) -> DifferenceReport:
    """Mark the known differences, and describe the entries that are wrong.

    `complete`: the comparison was complete, so an entry that covers no difference is wrong.
    """
    wrong = {
        position: next(iter(unexplained(entry.reason, entry.link, entry.expires, today)), None)
        for position, entry in enumerate(known.entries)
    }
    sound = [
        entry if wrong[n] is None else replace(entry, family="") for n, entry in enumerate(known.entries)
    ]
    families = list(_marked(report.families, sound))
    rows = list(_marked(report.verdicts, sound))
    covering = set().union(*(positions for _, positions in (*families, *rows)), ())
    faults = []
    for position, entry in enumerate(known.entries):
        words = ""
        if (found := wrong[position]) is not None:
            words = found[1]
        elif complete and position not in covering:
            words = "it covers nothing; remove it with --update"
        if words:
            faults.append(f"{_TABLE} {position + 1}, {entry.family}: {words}")
    return replace(
        report,
        families=tuple(row for row, _ in families if isinstance(row, Family)),
        verdicts=tuple(row for row, _ in rows if isinstance(row, VerdictDifference)),
        faults=tuple(faults),
        known_file=str(known.path),
    )


def updated(path: Path, report: DifferenceReport, *, reason: str = "", link: str = "") -> Update:
    """Return the file, updated from a comparison.

    A file that does not exist is created. Entries that cover no difference are removed. New families get
    `reason` and `link`. Raises UsageError if the file has entries in another form than `[[difference]]`.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    known = _parsed(path, text) if text else KnownDifferences(path)
    differing = [row for row in report.rows if row.decides or row.known]
    head, *blocks = blocks_of(text, _HEAD) if text else [_INTRODUCTION]
    if len(blocks) != len(known.entries):
        raise UsageError(f"known differences {path} cannot be edited: write each entry as [[{_TABLE}]]")
    kept, removed, covered = [], [], set()
    for block, entry in zip(blocks, known.entries, strict=True):
        mine = [row for row in differing if row.name == entry.family]
        if not mine or entry.family in covered:
            removed.append(entry.family)
            continue
        covered.add(entry.family)
        [values] = (_table(row) for row in mine[:1])
        kept.append(edited(block, **{name: values[name] for name in ("at", "seen") if name in values}))
    new = [row for row in differing if row.name not in covered]
    added = [tomlkit.dumps({_TABLE: [{**_table(row), "reason": reason, "link": link}]}) for row in new]
    text = "\n\n".join(part.strip("\n") for part in (head, *kept, *added) if part.strip("\n")) + "\n"
    return Update(text, len(kept), tuple(row.name for row in new), tuple(removed))


def _table(row: _Row) -> Mapping[str, Any]:
    """Return the values of a new entry for a difference."""
    table: dict[str, Any] = {"family": row.name}
    if row.at:
        table["at"] = sorted(row.at)
    return {**table, "seen": row.count} if isinstance(row, Family) else table
