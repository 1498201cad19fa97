"""What the chapters show is what they say it is: the judge reads every block."""

from __future__ import annotations

from pathlib import Path

import pytest
from worked_examples import WorkedExample, chapters, examples, with_recorded

from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.replay import read_run
from tokenwire.requirement import load_requirements

SHOWN = [
    (chapter.stem, example) for chapter in chapters() for example in examples(chapter.read_text("utf-8"))
]
RED = {Verdict.FAIL, Verdict.WARN, Verdict.INFO}


def violated(example: WorkedExample) -> set[str]:
    run, _ = read_run(example.exchanges, DialectResolver(example.exchanges), "example")
    assert run.streams or run.beside, "no dialect knows the exchange"
    judged = judge([run], list(load_requirements().values()))
    return {
        judgement.requirement.id for judgement in judged if judgement.verdict in RED and judgement.violations
    }


@pytest.mark.parametrize(
    ("chapter", "example"), SHOWN, ids=[f"{name}-{shown.caption}" for name, shown in SHOWN]
)
def test_a_block_is_what_its_caption_says(chapter, example):
    found = violated(example)
    if example.violated is None:
        assert found == set()
    else:
        assert example.violated in found
        assert load_requirements()[example.violated].chapter == chapter, "the row stands elsewhere"


@pytest.mark.parametrize("chapter", list(chapters()), ids=lambda path: path.stem)
def test_every_block_with_json_is_marked(chapter: Path):
    page = chapter.read_text("utf-8")
    assert "```json" not in page
    assert page.count("\n```text") == len(list(examples(page)))


def test_recorded_blocks_show_what_was_recorded():
    """After a change of a marker or a fixture: python tests/spec/worked_examples.py."""
    for chapter in chapters():
        page = chapter.read_text("utf-8")
        assert with_recorded(page) == page
