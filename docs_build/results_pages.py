"""The table of servers and requirements, and a page of evidence for each capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

from docs_build import requirement_pages
from docs_build.page import Page, fenced, in_cell, inert, link
from docs_build.results import Cell, Column
from tokenwire.explanation import explain
from tokenwire.judging.verdict import MOST_TELLING_FIRST, Verdict
from tokenwire.profile import dated_levels
from tokenwire.report.overview import kept, level_in_words
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

{legend}

A verdict speaks of what the capture holds. Where too few requests were recorded to decide, a cell says so,
and nothing is said about the server.
"""


def _page_of(markdown: str) -> str:
    """The address of a page, seen from the folder of the table's own page."""
    return f"../{markdown.removesuffix('.md')}/"


def _link(column: Column, row: Requirement, cell: Cell) -> str:
    verdict = cell.verdict
    title = escape(f"{row.id} on {column.title}: {verdict.value}", quote=True)
    to = f"{_page_of(column.uri)}#{row.id}"
    return f'<td class="tw-{verdict.value.lower()}"><a href="{to}" title="{title}">{_MARKS[verdict]}</a></td>'


def _row(row: Requirement, columns: Sequence[Column]) -> str:
    name = f'<th scope="row"><a href="{_page_of(requirement_pages.uri(row.id))}">{row.id}</a></th>'
    return f"<tr>{name}{''.join(_link(column, row, column.cells[row.id]) for column in columns)}</tr>"


def _table(columns: Sequence[Column]) -> str:
    groups = [
        (key, len(list(group))) for key, group in groupby(columns, key=lambda one: (one.server, one.version))
    ]
    servers = "".join(
        f'<th colspan="{width}">{escape(f"{name} {version}")}</th>' for (name, version), width in groups
    )
    cases = "".join(
        f'<th class="tw-case"><a href="{_page_of(one.uri)}">{escape(one.title)}</a></th>' for one in columns
    )
    body = []
    for chapter, rows in groupby(load_requirements().values(), key=lambda row: row.chapter):
        group = list(rows)
        title = escape(explain(group[0].id).passage.chapter)
        body.append(
            f'<tr class="tw-chapter" id="{chapter}"><th colspan="{len(columns) + 1}">{title}</th></tr>'
        )
        body += [_row(row, columns) for row in group]
    head = f"<tr><th></th>{servers}</tr><tr><th></th>{cases}</tr>"
    return (
        f'<div class="tw-results"><table class="tw-table"><thead>{head}</thead><tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _place(cell: Cell) -> str:
    where = [f"exchange `{cell.exchange}`"]
    where += [f"event {cell.event}"] if cell.event is not None else []
    where += [f"`{cell.pointer}`"] if cell.pointer else []
    return ", ".join(where)


def _why(cell: Cell) -> str:
    """Why there is no PASS; of a PASS a witness, folded."""
    if not cell.exchange:
        return escape(cell.message, quote=False)
    event = f", event {cell.event}" if cell.event is not None else ""
    pointer = f", <code>{inert(cell.pointer)}</code>" if cell.pointer else ""
    place = f"<code>{inert(cell.exchange)}</code>{event}, at {cell.time:.3f} s{pointer}"
    return f"<details><summary>{place}</summary><code>{inert(cell.excerpt)}</code></details>"


def _level(level: dict[str, Any]) -> str:
    """A level, with its promise where it holds."""
    promise = f": {level['means']}" if kept(level) else ""
    return f"- **Tokenwire {level['date']} v{level['version']} {level_in_words(level)}**{promise}"


def _levels(column: Column) -> list[str]:
    """How many MUSTs of each level the capture shows to hold, and what that lets a client rely on."""
    told = dated_levels({name: cell.verdict for name, cell in column.cells.items()}, column.families)
    lines = [_level(one.as_json()) for one in told if one.shown]
    return ["\n".join(lines)] if lines else []


def _capture(column: Column) -> Page:
    """The evidence of one capture: what was violated, with its event; then all else, in a line each."""
    counts = Counter(cell.verdict for cell in column.cells.values())
    told = ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in MOST_TELLING_FIRST if counts[verdict]
    )
    flags = " ".join(column.flags)
    started = f"started with `{flags}`" if flags else "started without flags of its own"
    parts = [
        f"# {column.title}",
        f"{column.exchanges} exchanges with {column.server} {column.version}, {started}. {told}.",
        *_levels(column),
        f"```console\n$ tokenwire replay fixtures/{column.capture}\n```",
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
    """The table, and the evidence."""
    legend = ", ".join(f"**{mark}** {verdict.value}" for verdict, mark in _MARKS.items())
    yield Page(TABLE, _INTRODUCTION.format(legend=legend) + "\n" + _table(columns) + "\n")
    for column in columns:
        yield _capture(column)
