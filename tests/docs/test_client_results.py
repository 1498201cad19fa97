"""The page of clients: each red cell has a reason, or there is no page."""

from __future__ import annotations

import pytest
from docs_build.client_results import page

from tokenwire.torture.session import Session


def report(held):
    session = Session("some 1.0 adapter")
    session.take("openai-chat", "text", held)
    return {"some 1.0 adapter": session.document()}


def test_a_red_cell_without_a_reason_makes_no_page():
    wrong = report({"choices": [{"text": "Tok", "finish": "stop"}]})
    with pytest.raises(ValueError, match=r"does not say why some 1\.0 adapter breaks every-delta-is-kept"):
        page(wrong, {})
    made = page(wrong, {"some": {"every-delta-is-kept": "It stops early."}})
    assert "| openai-chat | `every-delta-is-kept` | 1 |" in made
    assert "It stops early." in made


def test_what_was_not_tried_is_empty():
    right = report({"choices": [{"text": "Tokens come in pieces, of any size.", "finish": "stop"}]})
    lines = page(right, {}).splitlines()
    assert "| `every-delta-is-kept` (MUST) | ✓ |" in lines
    assert "| `data-lines-are-joined` (MUST) |  |" in lines
