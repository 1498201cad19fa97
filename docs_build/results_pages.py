"""The table of servers and requirements, and a page of evidence for each capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from docs_build.page import Page, page_of
from docs_build.requirement_pages import chapters
from docs_build.results import Cell, Column
from tokenwire.judging.verdict import MOST_TELLING_FIRST, Verdict
from tokenwire.profile import Standing, dated_levels
from tokenwire.report.document import leading
from tokenwire.requirement import Requirement, load_requirements

TABLE = "results/index.md"
_UNDECIDED = {Verdict.UNSUPPORTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE}


@dataclass(frozen=True)
class _Release:
    """All captures of one release."""

    title: str
    columns: Sequence[Column]

    @cached_property
    def telling(self) -> Mapping[str, tuple[Column, Cell]]:
        """The cell with the most informative verdict for each requirement."""
        return {
            name: min(
                ((column, column.cells[name]) for column in self.columns),
                key=lambda pair: MOST_TELLING_FIRST.index(pair[1].verdict),
            )
            for name in load_requirements()
        }

    @cached_property
    def levels(self) -> list[Standing]:
        families = {family for column in self.columns for family in column.families}
        return dated_levels({name: cell.verdict for name, (_, cell) in self.telling.items()}, families)

    @property
    def gravest(self) -> list[tuple[Column, Requirement, Cell]]:
        """The requirements that the release fails, in the order of a report."""
        rows = load_requirements()
        failing = [
            (column, rows[name], cell)
            for name, (column, cell) in self.telling.items()
            if cell.verdict is Verdict.FAIL and cell.shown
        ]
        return sorted(failing, key=lambda item: leading(item[1]))


def _releases(columns: Sequence[Column]) -> list[_Release]:
    grouped: dict[str, list[Column]] = {}
    for column in columns:
        grouped.setdefault(f"{column.server} {column.version}", []).append(column)
    return [_Release(title, item) for title, item in grouped.items()]


def _differs(name: str, releases: Sequence[_Release]) -> bool:
    """Return True if the verdicts on releases differ, or if one of them is FAIL."""
    decided = {release.telling[name][1].verdict for release in releases} - _UNDECIDED
    return len(decided) > 1 or Verdict.FAIL in decided


def _capture(column: Column) -> Page:
    """Return the evidence of one capture: first the violations with their events, and then one line for each
    other requirement.
    """
    counts = Counter(cell.verdict for cell in column.cells.values())
    levels = dated_levels({name: cell.verdict for name, cell in column.cells.items()}, column.families)
    return page_of(
        "capture",
        column.uri,
        column=column,
        counts=[(verdict, counts[verdict]) for verdict in MOST_TELLING_FIRST if counts[verdict]],
        levels=[level.as_json() for level in levels if level.shown],
        rows=load_requirements(),
    )


def pages(columns: Sequence[Column]) -> Iterator[Page]:
    """Yield the table, and the pages of evidence."""
    releases = _releases(columns)
    alike = {name for name in load_requirements() if not _differs(name, releases)}
    yield page_of("results", TABLE, releases=releases, chapters=chapters(), alike=alike)
    yield from map(_capture, columns)
