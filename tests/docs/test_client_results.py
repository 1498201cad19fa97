"""The page of clients: each red cell has a reason, or there is no page."""

from __future__ import annotations

import pytest
from docs_build.client_results import Reason, load_reasons, page

from tokenwire_clients.session import Session
from tokenwire_clients.vectors import sentences


def report(held):
    session = Session("some 1.0 adapter")
    session.take("openai-chat", "text", held)
    return {"some 1.0 adapter": session.document()}


def cells(lines, sentence):
    (row,) = (line for line in lines if line.startswith("<tr") and f"<th>{sentence} (MUST)</th>" in line)
    named = row.partition("</th>")[2].removesuffix("</tr>")
    return named.replace(' data-name="some 1.0 adapter"', "")


def test_each_verdict_names_its_client(tmp_path):
    right = report({"choices": [{"text": "Tokens come in pieces, of any size."}]})
    made = page(right, {}, tmp_path)
    assert made.count(' data-name="some 1.0 adapter">') == made.count('<td class="tw-')


def test_a_red_cell_without_a_reason_makes_no_page(tmp_path):
    wrong = report({"choices": [{"text": "Tok", "finish": "stop"}]})
    with pytest.raises(ValueError, match=r"has no reason why some 1\.0 adapter violates every-delta-is-kept"):
        page(wrong, {}, tmp_path)
    made = page(wrong, {"some": {"every-delta-is-kept": Reason("It stops early.")}}, tmp_path)
    assert "| `every-delta-is-kept` | openai-chat | 1 | text: wrong text" in made
    assert "| Ours. It stops early. |" in made


def test_a_reason_is_proved_by_the_source_or_makes_no_page(tmp_path):
    wrong = report({"choices": [{"text": "Tok", "finish": "stop"}]})
    reasons = {"some": {"every-delta-is-kept": Reason("It stops.", "some/stream.py", "if small: break")}}
    source = tmp_path / "some" / "lib" / "some" / "stream.py"
    source.parent.mkdir(parents=True)
    source.write_text("for event in events:\n    if small: break\n", "utf-8")
    assert "It stops. `some/stream.py`, line 2: `if small: break`" in page(wrong, reasons, tmp_path)
    source.write_text("for event in events:\n    hold(event)\n", "utf-8")
    with pytest.raises(ValueError, match="does not contain 'if small: break'"):
        page(wrong, reasons, tmp_path)


def test_what_was_not_tried_is_empty_and_what_does_not_apply_is_a_dash(tmp_path):
    right = report({"choices": [{"text": "Tokens come in pieces, of any size."}]})
    lines = page(right, {}, tmp_path).splitlines()
    assert cells(lines, "every-delta-is-kept") == '<td class="tw-pass">✓</td>'
    assert cells(lines, "data-lines-are-joined") == "<td></td>"
    session = Session("some 1.0 adapter")
    session.take("openai-chat", "logprobs", {"choices": [{"text": "Tokens come in pieces, of any size."}]})
    session.take("openai-chat", "long", {"given_up": "after 60 s of the processor"})
    lines = page({"some 1.0 adapter": session.document()}, {}, tmp_path).splitlines()
    assert cells(lines, "lists-stay-in-step") == '<td class="tw-unsupported">–</td>'
    assert cells(lines, "long-streams-are-read") == '<td class="tw-inconclusive">?</td>'
    assert any("openai-chat/long was given up after 60 s" in line for line in lines)


def test_each_reason_is_about_a_sentence():
    reasons = load_reasons()
    assert {name for rows in reasons.values() for name in rows} <= set(sentences())
    assert all(
        bool(reason.file) == bool(reason.code) for rows in reasons.values() for reason in rows.values()
    )
