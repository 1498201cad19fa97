"""A page for each requirement, and the list of all requirements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from docs_build.bug_page import CAUGHT, Bug, bugs, faults
from docs_build.page import Page, linked, page_of, requirement_uri
from docs_build.published import relinked
from docs_build.results import Column
from tokenwire.explanation import Explanation, explain
from tokenwire.judging.verdict import Verdict
from tokenwire.profile import load_profiles
from tokenwire.requirement import Requirement, load_requirements

LIST = "requirements/index.md"
VIOLATIONS = Path(__file__).with_name("violations")
"""Examples of violations, in one file for each requirement. `python -m proofs.violations` writes them."""
_JUDGED = {Verdict.PASS, Verdict.FAIL, Verdict.WARN}


def violation_of(requirement: str) -> Path:
    """Return the file with a violation of a requirement."""
    return VIOLATIONS / f"{requirement}.txt"


@cache
def chapters() -> list[tuple[str, str, list[Requirement]]]:
    """Return the file, the title and the requirements of each chapter."""
    grouped = groupby(load_requirements().values(), key=lambda row: row.chapter)
    found = [(chapter, list(rows)) for chapter, rows in grouped]
    return [(chapter, explain(rows[0].id).passage.chapter, rows) for chapter, rows in found]


def _mended(row: Requirement, real: Iterable[Bug]) -> dict[str, str]:
    """Return the public changes that fixed such a bug, each with a description of the bug."""
    words = {thread: bug.says for bug in real for thread in bug.threads}
    for known in (faults()[name] for name in row.kills if name in faults()):
        words = dict.fromkeys(known.upstream, known.does) | words
    words = dict.fromkeys(row.upstream, "") | words
    return {thread: fault for thread, fault in words.items() if " PR #" in thread}


def page(explanation: Explanation, results: Iterable[Column] = ()) -> Page:
    """Return the page of one requirement."""
    row, here = explanation.requirement, requirement_uri(explanation.requirement.id)
    names = list(load_requirements())
    place = names.index(row.id)
    prose = "\n\n".join(filter(None, (explanation.passage.before, explanation.passage.after)))
    cells = [(column, column.cells[row.id]) for column in results if row.id in column.cells]
    passed = (pair for pair in cells if pair[1].verdict is Verdict.PASS and pair[1].excerpt)
    real = [bug for bug in bugs() if row.id in bug.rows and bug.caught in CAUGHT]
    known = {thread for bug in real for thread in bug.threads}
    return page_of(
        "requirement",
        here,
        row=row,
        passage=explanation.passage,
        needs=explanation.needs,
        alone=explanation.alone,
        before=names[place - 1] if place else "",
        behind="".join(names[place + 1 : place + 2]),
        violation=violation_of(row.id).read_text("utf-8") if violation_of(row.id).exists() else "",
        right=next(passed, None),
        why=linked(relinked(prose, f"spec/{row.chapter}.md", here)),
        real=real,
        mended=_mended(row, real),
        seen=[pair for pair in cells if pair[1].verdict in _JUDGED],
        faults=faults(),
        others=[thread for thread in row.upstream if thread not in known],
        profiles=[name for name, ids in load_profiles().items() if row.id in ids] or [row.profile],
    )


def pages(results: Iterable[Column] = ()) -> Iterator[Page]:
    """Yield the list, and the page of each requirement."""
    columns = list(results)
    yield page_of("requirements", LIST, chapters=chapters())
    for requirement in load_requirements():
        yield page(explain(requirement), columns)
