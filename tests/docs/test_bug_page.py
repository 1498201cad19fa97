"""Every bug is on the page of bugs, with requirements that are there and threads that can be opened."""

from __future__ import annotations

from collections import Counter

from docs_build.bug_page import CLASSES, bugs, page
from docs_build.threads import linked

from tokenwire.requirement import load_requirements


def test_every_bug_is_shown_once():
    content = page().content
    assert [content.count(f"\n| {bug.id} | ") for bug in bugs()] == [1] * 230


def test_what_catches_a_bug_is_a_requirement():
    known = load_requirements()
    assert {row for bug in bugs() for row in bug.rows} <= set(known)
    for bug in bugs():
        assert bug.caught in CLASSES
        assert bool(bug.rows) or bug.caught in {"no-row", "no-bug", "not-asked"}, bug.id
        assert bool(bug.note) or bug.caught == "run", bug.id


def test_every_bug_names_a_thread():
    for bug in bugs():
        assert bug.threads
        assert all(linked(thread) != thread for thread in bug.threads), bug.id


def test_the_counts_are_those_of_the_bugs():
    content = page().content
    for name, count in Counter(bug.caught for bug in bugs()).items():
        assert f"| {CLASSES[name]} | {count} |" in content
