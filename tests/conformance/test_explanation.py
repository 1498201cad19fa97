"""What is told of a requirement is what its row and its chapter say."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from tokenwire.commands.explain import page
from tokenwire.explanation import explain
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import spec_root
from tokenwire.usage_error import UsageError


@pytest.mark.parametrize("requirement", load_requirements())
def test_every_requirement_can_be_explained(requirement):
    explanation = explain(requirement)
    page = (spec_root() / f"{explanation.requirement.chapter}.md").read_text("utf-8")
    assert f"# {explanation.passage.chapter}\n" in page
    for words in (explanation.passage.before, explanation.passage.after):
        for paragraph in words.split("\n\n"):
            assert paragraph in page
    assert explanation.requirement.sentence not in explanation.passage.after
    assert explanation.needs
    assert requirement in explanation.alone


def test_sentences_that_stand_together_share_what_follows_but_not_each_others_examples():
    first, second = (
        explain("prompt-ids-are-the-input-ids").passage,
        explain("prompt-ids-match-their-count").passage,
    )
    assert first.section == second.section == "Prompt ids"
    assert "does not add a beginning-of-sequence id" in first.after
    assert "does not add a beginning-of-sequence id" in second.after
    assert 'title="violation of prompt-ids-are-the-input-ids"' in first.after
    assert "violation" not in second.after


@pytest.mark.parametrize("requirement", load_requirements())
def test_no_example_of_another_sentence_is_shown_and_none_is_announced(requirement):
    after = explain(requirement).passage.after
    assert set(re.findall(r'title="violation of ([a-z0-9-]+)"', after)) <= {requirement}
    assert not re.search(r":\n\n(?!```|\||- |[0-9]+\. |<)", after + "\n\n"), after


def test_a_sentence_has_not_what_follows_the_next_one():
    explanation = explain("prompt-ids-in-every-choice")
    assert explanation.passage.after.startswith("A server splits a batch into sub-requests")
    assert "A key with null" not in explanation.passage.after
    assert explanation.passage.before == ""


def test_what_a_pass_needs():
    assert explain("one-mode-per-stream").needs == (
        "5 observations, and no violation; a target that shows stream, output-ids"
    )


def test_an_unknown_id_is_answered_by_what_was_probably_meant():
    with pytest.raises(UsageError, match="did you mean 'one-mode-per-stream'"):
        explain("one-mode-per-streem")
    with pytest.raises(UsageError, match="tokenwire list requirements"):
        explain("zzz")


def test_facts_of_several_lines_stay_in_their_column():
    console = Console(width=80, file=StringIO(), force_terminal=False)
    console.print(page(explain("stop-string-not-shown")))
    lines = console.file.getvalue().splitlines()
    facts = lines[next(n for n, line in enumerate(lines) if line.startswith("chapter ")) :]
    assert {len(line) - len(line.lstrip()) for line in facts} == {0, 14}
