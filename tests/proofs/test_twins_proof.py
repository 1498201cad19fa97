"""The proof of twins, with few tokens: its pairs are what their names say, and a wrong outcome is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proofs.twins import PAIRS, main, measured, measured_inside

from tokenwire_twin.twin_numbers import Outcome


@pytest.mark.parametrize(
    ("pair", "outcome"),
    [("same", Outcome.SAME), ("int4", Outcome.OTHER), ("int8 in float32", Outcome.OTHER)],
)
def test_a_pair_has_the_outcome_of_its_name(pair: str, outcome: Outcome) -> None:
    assert measured_inside(PAIRS[pair], 0, 300).outcome is outcome
    assert outcome in PAIRS[pair].may


def test_a_pair_is_compared_through_two_servers() -> None:
    """Messages and ends are asked of servers alone."""
    report = measured(PAIRS["template"], 0, 130)
    assert report.outcome is Outcome.AROUND
    assert [part.name for part in report.parts if part.differing] == ["template"]


def test_an_outcome_that_a_pair_may_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--inside", "--seeds", "0", "--pair", "same", "--tokens", "130"]
    assert main(asked) == 0
    monkeypatch.setitem(PAIRS, "same", replace(PAIRS["same"], may=frozenset({Outcome.OTHER})))
    assert main(asked) == 1
