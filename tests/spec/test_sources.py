"""Every statement of the source documents leads to requirements that exist, or to a reason."""

from __future__ import annotations

import re

import pytest

DOCUMENTS = {"27205": 30, "23751": 40, "25634": 30}
"""Pull request to the least number of statements that its report makes."""


@pytest.fixture(scope="module")
def statements(prose):
    """(document, number, statement, slugs, reason) of each row of the tables."""
    row = re.compile(r"^\| (\d+)-(\d+) \|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
    return [
        (document, int(number), text.strip(), re.findall(r"`([^`]+)`", slugs), reason.strip())
        for document, number, text, slugs, reason in row.findall(prose["sources.md"])
    ]


def test_no_row_escapes_the_reader(prose, statements):
    rows = [line for line in prose["sources.md"].splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len(statements)


@pytest.mark.parametrize(("document", "least"), DOCUMENTS.items())
def test_statements_are_numbered_without_gap(statements, document, least):
    numbers = [number for source, number, *_ in statements if source == document]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= least


def test_only_the_source_documents_are_traced(statements):
    assert {document for document, *_ in statements} == set(DOCUMENTS)


def test_every_slug_exists(statements, rows):
    known = {row["id"] for row in rows}
    unknown = {
        f"{document}-{number:02}": set(slugs) - known
        for document, number, _, slugs, _ in statements
        if set(slugs) - known
    }
    assert unknown == {}


def test_every_statement_has_a_requirement_or_a_reason(statements):
    assert [
        f"{d}-{n:02}" for d, n, text, slugs, reason in statements if not text or not (slugs or reason)
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_requirement_that_cites_a_source_is_traced_to_a_statement_of_it(statements, rows, document):
    traced = {slug for source, _, _, slugs, _ in statements if source == document for slug in slugs}
    citing = {row["id"] for row in rows if f"sgl-project/sglang PR #{document}" in row["upstream"]}
    assert citing
    assert citing - traced == set()
