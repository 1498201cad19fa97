"""The table of servers and requirements, and a page of evidence for each capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any

from docs_build import requirement_pages
from docs_build.page import Page, fenced, in_cell, inert, link
from docs_build.results import Cell, Column
from tokenwire.explanation import explain
from tokenwire.judging.verdict import MOST_TELLING_FIRST, Verdict
from tokenwire.profile import Standing, dated_levels
from tokenwire.report.document import leading
from tokenwire.report.overview import kept, level_in_words
from tokenwire.report.wording import cut
from tokenwire.requirement import Requirement, load_requirements

TABLE = "results/index.md"
_MARKS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.WARN: "!",
    Verdict.INFO: "i",
    Verdict.UNSUPPORTED: "·",
    Verdict.NOT_TESTABLE: "–",
    Verdict.INCONCLUSIVE: "?",
    Verdict.HARNESS_ERROR: "H",
}
_INTRODUCTION = """---
hide: [navigation, toc]
---

# Results

What the suite says about recorded servers, from the captures in `fixtures/`: every byte of the answers is in
the repository, and every cell can be judged again. A cell leads to what decided it.

A verdict speaks of what the captures of a release hold. Where too few requests were recorded to decide, a
cell says so, and the server is not judged. [Found in released servers](../found.md) tells what was
found, with its bytes.

## Releases by level

MUSTs of each [level](../spec/index.md#profiles) that hold, of those that apply; empty where the captures do
not show the level.

{levels}

## All requirements

The verdict that tells most of all captures of a release. {legend}

{table}

## Captures

{captures}
"""
_MOST_FINDINGS = 3
_LONGEST_FINDING = 110
_UNDECIDED = {Verdict.UNSUPPORTED, Verdict.NOT_TESTABLE, Verdict.INCONCLUSIVE}


def _page_of(markdown: str) -> str:
    """Return the address of a page, seen from the folder of the table's own page."""
    return f"../{markdown.removesuffix('.md')}/"


@dataclass(frozen=True)
class _Release:
    """All captures of one release: for each requirement the most telling one."""

    title: str
    columns: Sequence[Column]

    @cached_property
    def telling(self) -> Mapping[str, tuple[Column, Cell]]:
        """The most telling cell, by requirement."""
        return {
            name: min(
                ((column, column.cells[name]) for column in self.columns),
                key=lambda pair: MOST_TELLING_FIRST.index(pair[1].verdict),
            )
            for name in load_requirements()
        }

    @property
    def levels(self) -> list[Standing]:
        families = {family for column in self.columns for family in column.families}
        return dated_levels({name: cell.verdict for name, (_, cell) in self.telling.items()}, families)

    @property
    def gravest(self) -> list[tuple[Column, Requirement, Cell]]:
        """The requirements that it fails, in the order of a report."""
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


def _by_level(releases: Sequence[_Release]) -> str:
    """Return a row for each release: its levels, and the three gravest findings."""
    titles = [level.title for level in releases[0].levels] if releases else []
    lines = [f"| release | {' | '.join(titles)} | gravest findings |", "|---" * (len(titles) + 2) + "|"]
    for release in releases:
        levels = [
            f"{observation.holds} of {observation.of}" if observation.shown else ""
            for observation in release.levels
        ]
        found = [
            link(in_cell(_short(cell.message)), f"{column.uri}#{row.id}", TABLE)
            for column, row, cell in release.gravest[:_MOST_FINDINGS]
        ]
        lines.append(f"| {release.title} | {' | '.join(levels)} | {'<br>'.join(found)} |")
    return "\n".join(lines)


def _short(message: str) -> str:
    return inert(cut(message, _LONGEST_FINDING))


def _captures(releases: Sequence[_Release]) -> str:
    links = {
        release.title: ", ".join(link(in_cell(column.title), column.uri, TABLE) for column in release.columns)
        for release in releases
    }
    lines = [f"| {title} | {captures} |" for title, captures in links.items()]
    return "\n".join(["| release | captures |", "|---|---|", *lines])


def _link(release: _Release, row: Requirement) -> str:
    column, cell = release.telling[row.id]
    verdict = cell.verdict
    title = escape(f"{row.id} on {column.title}: {verdict.value}", quote=True)
    to = f"{_page_of(column.uri)}#{row.id}"
    return f'<td class="tw-{verdict.value.lower()}"><a href="{to}" title="{title}">{_MARKS[verdict]}</a></td>'


def _row(row: Requirement, releases: Sequence[_Release]) -> str:
    name = f'<th scope="row"><a href="{_page_of(requirement_pages.uri(row.id))}">{row.id}</a></th>'
    decided = {release.telling[row.id][1].verdict for release in releases} - _UNDECIDED
    alike = ' class="tw-alike"' if len(decided) < 2 and Verdict.FAIL not in decided else ""
    return f"<tr{alike}>{name}{''.join(_link(release, row) for release in releases)}</tr>"


def _table(releases: Sequence[_Release]) -> str:
    heads = "".join(f'<th class="tw-case">{escape(release.title)}</th>' for release in releases)
    body = []
    for chapter, rows in groupby(load_requirements().values(), key=lambda row: row.chapter):
        group = list(rows)
        title = escape(explain(group[0].id).passage.chapter)
        body.append(
            f'<tr class="tw-chapter" id="{chapter}"><th colspan="{len(releases) + 1}">{title}</th></tr>'
        )
        body += [_row(row, releases) for row in group]
    switch = '<label><input type="checkbox" class="tw-differ"> only rows that differ or fail</label>'
    lines = "\n".join([f"<thead><tr><th></th>{heads}</tr></thead><tbody>", *body, "</tbody>"])
    table = f'<table class="tw-table">{lines}</table>'
    return f'<div class="tw-matrix">{switch}\n<div class="tw-results">{table}</div></div>'


def _place(cell: Cell) -> str:
    where = [f"exchange `{cell.exchange}`"]
    where += [f"event {cell.event}"] if cell.event is not None else []
    where += [f"`{cell.pointer}`"] if cell.pointer else []
    return ", ".join(where)


def _why(cell: Cell) -> str:
    """Explain why there is no PASS, or show a witness of the PASS, folded."""
    if not cell.exchange:
        return escape(cell.message, quote=False)
    event = f", event {cell.event}" if cell.event is not None else ""
    pointer = f", <code>{inert(cell.pointer)}</code>" if cell.pointer else ""
    place = f"<code>{inert(cell.exchange)}</code>{event}, at {cell.time:.3f} s{pointer}"
    return f"<details><summary>{place}</summary><code>{inert(cell.excerpt)}</code></details>"


def _level(level: dict[str, Any]) -> str:
    """Return a level, with its promise where it holds."""
    promise = f": {level['means']}" if kept(level) else ""
    return f"- **Tokenwire {level['date']} v{level['version']} {level_in_words(level)}**{promise}"


def _levels(column: Column) -> list[str]:
    """Describe how many MUSTs of each level the capture shows to hold, and what a client may rely on."""
    levels = dated_levels({name: cell.verdict for name, cell in column.cells.items()}, column.families)
    lines = [_level(item.as_json()) for item in levels if item.shown]
    return ["\n".join(lines)] if lines else []


def _capture(column: Column) -> Page:
    """Return the evidence of one capture: what was violated, with its event; then all else, in a
    line each.
    """
    counts = Counter(cell.verdict for cell in column.cells.values())
    verdicts = ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in MOST_TELLING_FIRST if counts[verdict]
    )
    flags = " ".join(column.flags)
    started = f"started with `{flags}`" if flags else "started without flags of its own"
    tokenizer = f" --tokenizer {column.tokenizer}" if column.tokenizer else ""
    parts = [
        f"# {column.title}",
        f"{column.exchanges} exchanges with {column.server} {column.version}, {started}. {verdicts}.",
        *_levels(column),
        f"```console\n$ tokenwire replay fixtures/{column.capture}{tokenizer}\n```",
    ]
    shown = {name: cell for name, cell in column.cells.items() if cell.shown}
    if shown:
        parts.append("## What was violated")
    for name, cell in shown.items():
        sentence = load_requirements()[name].sentence
        parts += [
            f"### {name} {{ #{name} }}",
            f"{link(cell.verdict.value, requirement_pages.uri(name), column.uri)}: {sentence}",
            f"First seen in {_place(cell)}.",
            fenced(cell.shown, "text"),
        ]
    rows = "\n".join(
        f'| <a id="{name}"></a>{link(name, requirement_pages.uri(name), column.uri)} | {cell.verdict.value} '
        f"| {cell.witnesses or ''} | {in_cell(_why(cell))} |"
        for name, cell in column.cells.items()
        if not cell.shown
    )
    heads = "| requirement | verdict | witnesses | one of the witnesses, or why there is no verdict |"
    parts += ["## All else", f"{heads}\n|---|---|---|---|\n{rows}"]
    return Page(column.uri, "\n\n".join(parts) + "\n")


def pages(columns: Sequence[Column]) -> Iterator[Page]:
    """Yield the table, and the evidence."""
    legend = ", ".join(f"**{mark}** {verdict.value}" for verdict, mark in _MARKS.items())
    releases = _releases(columns)
    yield Page(
        TABLE,
        _INTRODUCTION.format(
            legend=legend, levels=_by_level(releases), table=_table(releases), captures=_captures(releases)
        ),
    )
    for column in columns:
        yield _capture(column)
