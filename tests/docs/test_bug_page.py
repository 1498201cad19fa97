"""Every bug is on the page of bugs, with requirements that are there and threads that can be opened."""

from __future__ import annotations

from collections import Counter

import pytest
from docs_build import requirement_pages
from docs_build.bug_page import CAUGHT, CLASSES, bugs, page
from docs_build.page import linked

from tokenwire.dialects.dialect import load_dialects
from tokenwire.explanation import explain
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import spec_root


def test_every_bug_is_shown_once():
    content = page().content
    assert [content.count(f"\n| {bug.id} | ") for bug in bugs()] == [1] * 261


def test_what_catches_a_bug_is_a_requirement():
    known = load_requirements()
    assert {row for bug in bugs() for row in bug.rows} <= set(known)
    for bug in bugs():
        assert bug.caught in CLASSES
        assert bool(bug.rows) or bug.caught in {"no-row", "no-bug", "not-asked"}, bug.id
        assert bool(bug.note) or bug.caught == "run", bug.id


def test_a_requirement_claims_the_bugs_that_the_list_says_it_catches_and_no_others():
    """Threads of a refactoring, or of a bug that nothing catches, may be named; they are not claimed."""
    claimed = "## Real bugs that it would have caught"
    for row in load_requirements().values():
        content = requirement_pages.page(explain(row.id)).content
        section = content.partition(claimed)[2].partition("\n## ")[0]
        due = [bug for bug in bugs() if row.id in bug.rows and bug.caught in CAUGHT]
        assert (claimed in content) is bool(due), row.id
        assert [bug.says in section for bug in due] == [True] * len(due), row.id
        assert section.count("\n- ") == len(due), row.id


@pytest.mark.parametrize("words", ["not in this version", "only looked for", "not held to"])
def test_no_reason_is_older_than_the_rows(words):
    """A reason says why a row cannot be, not that there is none yet."""
    sources = (spec_root() / "sources.md").read_text("utf-8")
    assert [bug.id for bug in bugs() if words in bug.note] == []
    assert words not in sources


def test_no_endpoint_without_a_dialect_has_one():
    paths = {dialect.endpoint.path for dialect in load_dialects().values()}
    stale = {bug.id for bug in bugs() if bug.note.endswith("has no dialect") and bug.note.split()[0] in paths}
    assert stale == set()


def test_every_bug_names_a_thread():
    for bug in bugs():
        assert bug.threads
        assert all(linked(thread) != thread for thread in bug.threads), bug.id


def test_the_counts_are_those_of_the_bugs():
    content = page().content
    for name, count in Counter(bug.caught for bug in bugs()).items():
        assert f"| {CLASSES[name]} | {count} |" in content
