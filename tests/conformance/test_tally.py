"""What a check saw, counted: tallies of parts of a run merge into that of the whole, whatever the parts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.judging.tally import NOTHING, Tally, TallyBuilder, tally
from tokenwire.record import Place
from tokenwire.requirement import Level

FIXTURES = Path(__file__).parents[2] / "fixtures"


def observed(answer: int, event: int, value: int) -> Observation:
    """One that holds for 0, differs for 1, and shows but a condition for 2."""
    place = Place(f"generate/{answer}", event)
    seen = expect(place, False, value == 1)
    return seen._replace(condition_only=value == 2)


def built(parts: Iterable[Tally]) -> Tally:
    builder = TallyBuilder()
    for part in parts:
        builder.add(part)
    return builder.built


answers = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4), max_size=6)


def tallies(recorded: Sequence[Sequence[tuple[int, int]]]) -> list[Tally]:
    """The tally of each answer; the one at position 3 says nothing, and so witnesses nothing."""

    def check(position: int) -> Iterator[Observation]:
        yield from (observed(position, event, value) for event, value in recorded[position])

    return [
        tally(check, position, position=position, empty_answers=frozenset({"generate/3"}))
        for position in range(len(recorded))
    ]


@given(answers, st.randoms(use_true_random=False), st.integers(0, 6))
def test_tallies_merge_in_any_order_and_grouping(recorded: Any, shuffled: random.Random, cut: int) -> None:
    parts = tallies(recorded)
    whole = built(parts)
    shuffled.shuffle(parts)
    assert built(parts) == whole
    assert built([built(parts[:cut]), built(parts[cut:]), NOTHING]) == whole


def test_of_many_violations_of_one_answer_the_first_of_each_gravity_are_kept_and_all_are_counted() -> None:
    """A server may write millions: each is some kilobyte here."""

    def check() -> Iterator[Observation]:
        for event in range(1000):
            seen = observed(0, event, 1)
            yield seen._replace(level=Level.SHOULD, by_chance=event % 2 == 1)
        yield observed(0, 1000, 1)

    seen = tally(check, position=0)
    assert seen.witnesses == 1001
    assert len(seen.differing) == 201
    assert sum(counted.observation.witnesses for counted in seen.differing) == 1001
    assert [counted.observation.place.event for counted in seen.differing] == [*range(200), 1000]
    assert [counted.observation.witnesses for counted in seen.differing[-3:]] == [401, 401, 1]


def test_of_several_crashes_the_first_of_the_run_is_told_in_whatever_order_they_come() -> None:
    first, second = Tally(crash=((1, 0), "first")), Tally(crash=((2, 0), "second"))
    for parts in permutations([first, second, Tally(saw=True)]):
        assert built(parts) == Tally(saw=True, crash=((1, 0), "first"))


@given(answers)
def test_a_tally_counts_what_its_parts_saw(recorded: Any) -> None:
    whole = built(tallies(recorded))
    every = [
        observed(position, event, value) for position, item in enumerate(recorded) for event, value in item
    ]
    telling = [
        observation
        for observation in every
        if observation.place.exchange != "generate/3" and not observation.condition_only
    ]
    holding = [observation for observation in telling if observation.holds]
    furthest = max(holding, key=lambda observation: observation.place.event or 0, default=None)
    assert whole.saw == bool(every)
    assert whole.witnesses == len(telling)
    assert (whole.furthest.observation if whole.furthest else None) == furthest
    assert [seen.observation for seen in whole.differing] == [
        observation for observation in every if not observation.holds
    ]


def test_a_check_that_raises_keeps_what_it_saw_before() -> None:
    def breaks(answer: int) -> Iterator[Observation]:
        yield observed(answer, 0, 0)
        raise KeyError("oops")

    first, second = (tally(breaks, position, position=position) for position in (0, 1))
    assert first.witnesses == 1
    assert first.crash is not None
    assert built([second, first]).crash == first.crash
    assert "oops" in first.crash[1]


def test_what_was_left_out_is_counted_by_reason_and_is_nothing_that_was_seen() -> None:
    def check(answer: int) -> Iterator[Observation]:
        for event in range(answer):
            yield left_out(Place(f"generate/{answer}", event), "it was aborted")
        yield left_out(Place(f"generate/{answer}"), f"reason {answer}")

    parts = [tally(check, nth, position=nth) for nth in (1, 2)]
    for order in (parts, parts[::-1]):
        seen = built(order)
        assert (seen.saw, seen.witnesses) == (False, 0)
        assert [(entry.reason, entry.times, entry.exchange) for entry in seen.left_out] == [
            ("it was aborted", 3, "generate/1"),
            ("reason 1", 1, "generate/1"),
            ("reason 2", 1, "generate/2"),
        ]
