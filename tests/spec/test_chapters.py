"""Chapters and rows say the same: sentence by sentence, word by word."""

from __future__ import annotations

import re

import pytest

CONVENTIONS = re.compile(r"<!-- conventions -->.*?<!-- /conventions -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
KEY_WORDS = re.compile(r"\b(MUST|SHALL|SHOULD|MAY|REQUIRED|RECOMMENDED|OPTIONAL)\b")


def test_every_row_stands_in_its_chapter_word_for_word(rows, sentences):
    stated = {(page, name, level, sentence) for page, name, level, sentence in sentences}
    expected = {(f"{row['chapter']}.md", row["id"], row["level"], row["sentence"]) for row in rows}
    assert expected - stated == set(), "rows whose sentence their chapter does not state"
    assert stated - expected == set(), "sentences that no row holds"


def test_every_sentence_stands_once(sentences):
    ids = [name for _, name, _, _ in sentences]
    assert sorted(ids) == sorted(set(ids))


def loose_key_words(page: str) -> list[str]:
    """Lines that hold a capitalised key word outside requirements, conventions and code."""
    prose = CODE.sub("", CONVENTIONS.sub("", page))
    return [line for line in prose.splitlines() if KEY_WORDS.search(line) and not line.startswith("> **")]


def test_no_normative_word_stands_outside_a_requirement(prose):
    loose = {name: loose_key_words(page) for name, page in prose.items()}
    assert {name: lines for name, lines in loose.items() if lines} == {}


@pytest.mark.parametrize("line", ["A server MUST do this.", "> It SHOULD do that.", "- It is RECOMMENDED."])
def test_a_loose_key_word_would_be_found(line):
    assert loose_key_words(f"# A chapter\n\n{line}\n") == [line]


def test_conventions_and_code_are_free_of_the_rule():
    conventions = "<!-- conventions -->\nMUST\n<!-- /conventions -->\n"
    code = "`MUST`\n```text\nMUST\n```\n"
    assert loose_key_words(conventions + code + "> **a-slug** (MUST) It MUST.\n") == []


def test_links_within_the_specification_lead_somewhere(spec, prose):
    headings = {
        name: {
            re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-")
            for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        }
        for name, page in prose.items()
    }
    for name, page in prose.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", page):
            if "://" in target:
                continue
            file, _, anchor = target.partition("#")
            path = (spec / name).parent / file if file else spec / name
            assert path.exists(), f"{name}: {target}"
            if anchor:
                assert anchor in headings[str(path.resolve().relative_to(spec.resolve()))], (
                    f"{name}: {target}"
                )
