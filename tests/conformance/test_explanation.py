"""What is told of a requirement is what its row and its chapter say."""

from __future__ import annotations

import pytest

from tokenwire.explanation import NoSuchRequirement, explain
from tokenwire.requirement import load_requirements
from tokenwire.spec_files import spec_root


@pytest.mark.parametrize("requirement", load_requirements())
def test_every_requirement_can_be_explained(requirement):
    told = explain(requirement)
    page = (spec_root() / f"{told.requirement.chapter}.md").read_text("utf-8")
    assert f"# {told.passage.chapter}\n" in page
    for words in (told.passage.before, told.passage.after):
        for paragraph in words.split("\n\n"):
            assert paragraph in page
    assert told.requirement.sentence not in told.passage.after
    assert told.needs
    assert requirement in told.alone


def test_sentences_that_stand_together_share_what_follows():
    first, second = explain("prompt-ids-are-the-input-ids"), explain("prompt-ids-match-their-count")
    assert first.passage == second.passage
    assert first.passage.section == "Prompt ids"
    assert "No beginning-of-sequence id is added" in first.passage.after
    assert 'title="violation of prompt-ids-are-the-input-ids"' in first.passage.after


def test_a_sentence_has_not_what_follows_the_next_one():
    told = explain("prompt-ids-in-every-choice")
    assert told.passage.after.startswith("A batch is split into sub-requests")
    assert "A key with null" not in told.passage.after
    assert told.passage.before == ""


def test_what_a_pass_needs():
    assert explain("one-mode-per-stream").needs == (
        "5 observations over the whole run, none of them violated; a target that shows stream, output-ids"
    )


def test_an_unknown_id_is_answered_by_what_was_probably_meant():
    with pytest.raises(NoSuchRequirement, match="did you mean 'one-mode-per-stream'"):
        explain("one-mode-per-streem")
    with pytest.raises(NoSuchRequirement, match="tokenwire list requirements"):
        explain("zzz")
