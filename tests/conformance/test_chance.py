"""The statistics that excuse a difference between answers, and the page that explains them."""

from __future__ import annotations

import re
from itertools import product
from math import comb
from pathlib import Path

import pytest

from tokenwire.judging.chance import AGAIN, OFTEN, fisher

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "when-a-difference-is-excused.md"
_ROW = re.compile(r"^\| (\d+) of (\d+) \| (\d+) of (\d+) \| ([\d.]+) \| (\w+) \|$", re.MULTILINE)


def test_the_probability_is_that_of_all_tables_with_as_many_differences_or_more() -> None:
    for compared, repetitions in product(range(7), range(7)):
        for differing, contradictions in product(range(compared + 1), range(repetitions + 1)):
            every = differing + contradictions
            ways = sum(
                comb(compared, some) * comb(repetitions, every - some) for some in range(differing, every + 1)
            )
            due = ways / comb(compared + repetitions, every)
            assert fisher(differing, compared, contradictions, repetitions) == due


def test_a_run_with_thousands_of_differences_is_weighed() -> None:
    """Its numbers of ways have no place in a float."""
    assert fisher(200, 5000, 3, 5000) < 1e-50
    assert fisher(2500, 5000, 2500, 5000) == pytest.approx(0.5, abs=0.01)
    assert fisher(3, 5000, 2500, 5000) == pytest.approx(1.0)


def test_the_guide_computes_as_the_judge_does() -> None:
    rows = _ROW.findall(GUIDE.read_text("utf-8"))
    assert len(rows) >= 4
    for *numbers, probability, verdict in rows:
        differing, compared, contradictions, repetitions = map(int, numbers)
        found = fisher(differing, compared, contradictions, repetitions)
        assert f"{found:.3f}" == probability
        fails = "FAIL" if found < 0.01 else "WARN" if not contradictions else "INCONCLUSIVE"
        assert verdict == fails


def test_the_guide_names_how_often_an_answer_is_asked_for_again() -> None:
    text = " ".join(GUIDE.read_text("utf-8").split())
    words = {2: "twice", 6: "six times"}
    assert f"It repeats them {words[AGAIN]}, or" in text
    assert f"{words[OFTEN]} if any request of the run" in text
