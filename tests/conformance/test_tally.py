"""What a check saw, counted: tallies of parts of a run merge into that of the whole, whatever the parts."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import permutations
from operator import add
from pathlib import Path
from typing import Any

import pytest
from hand_made_stream import ids_stream
from hypothesis import given
from hypothesis import strategies as st
from test_checks_pairs import PAIRS

from tokenwire.checks.check import CHECKS, Check, Observation, Target, look_at_each, observe
from tokenwire.judging.judge import Run
from tokenwire.judging.tally import NOTHING, Growing, Tally, merged, tally
from tokenwire.record import Place, Stream
from tokenwire.replay import replay
from tokenwire.requirement import Level
from tokenwire.target.determinism import Comparison

FIXTURES = Path(__file__).parents[2] / "fixtures"


def observed(answer: int, event: int, value: int) -> Observation:
    """One that holds for 0, differs for 1, and shows but a condition for 2."""
    place = Place(f"generate/{answer}", event)
    seen = observe(place, expected=False, actual=value == 1)
    return seen._replace(condition_only=value == 2)


answers = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4), max_size=6)


def tallies(told: Sequence[Sequence[tuple[int, int]]]) -> list[Tally]:
    """The tally of each answer; the one at position 3 says nothing, and so witnesses nothing."""

    def look(at: int) -> Iterator[Observation]:
        yield from (observed(at, event, value) for event, value in told[at])

    return [tally(look, at, position=at, empty_answers=frozenset({"generate/3"})) for at in range(len(told))]


@given(answers, st.randoms(use_true_random=False), st.integers(0, 6))
def test_tallies_merge_in_any_order_and_grouping(told: Any, shuffled: random.Random, cut: int) -> None:
    parts = tallies(told)
    whole = reduce(add, parts, NOTHING)
    shuffled.shuffle(parts)
    assert merged(parts) == whole
    assert merged(parts[:cut]) + merged(parts[cut:]) == whole
    assert whole + NOTHING == NOTHING + whole == whole


def test_of_many_violations_of_one_answer_the_first_of_each_gravity_are_kept_and_all_are_counted() -> None:
    """A server may write millions: each is some kilobyte here."""

    def look() -> Iterator[Observation]:
        for event in range(1000):
            seen = observed(0, event, 1)
            yield seen._replace(level=Level.SHOULD, by_chance=event % 2 == 1)
        yield observed(0, 1000, 1)

    seen = tally(look, position=0)
    assert seen.witnesses == 1001
    assert len(seen.differing) == 201
    assert sum(one.observation.witnesses for one in seen.differing) == 1001
    assert [one.observation.place.event for one in seen.differing] == [*range(200), 1000]
    assert [one.observation.witnesses for one in seen.differing[-3:]] == [401, 401, 1]


def grown(parts: Iterable[Tally]) -> Tally:
    growing = Growing()
    for part in parts:
        growing.add(part)
    return growing.whole


@given(answers)
def test_parts_that_come_one_by_one_make_the_tally_of_all(told: Any) -> None:
    assert grown(tallies(told)) == merged(tallies(told))


def test_of_several_crashes_the_first_of_the_run_is_told_in_whatever_order_they_come() -> None:
    first, second = Tally(crash=((1, 0), "first")), Tally(crash=((2, 0), "second"))
    for parts in permutations([first, second, Tally(saw=True)]):
        assert grown(parts) == merged(parts) == Tally(saw=True, crash=((1, 0), "first"))


@given(answers)
def test_a_merged_tally_counts_what_its_parts_saw(told: Any) -> None:
    whole = merged(tallies(told))
    every = [observed(at, event, value) for at, own in enumerate(told) for event, value in own]
    telling = [one for one in every if one.place.exchange != "generate/3" and not one.condition_only]
    holding = [one for one in telling if one.holds]
    furthest = max(holding, key=lambda one: one.place.event or 0, default=None)
    assert whole.saw == bool(every)
    assert whole.witnesses == len(telling)
    assert (whole.furthest.observation if whole.furthest else None) == furthest
    assert [seen.observation for seen in whole.differing] == [one for one in every if not one.holds]


def test_a_check_that_raises_keeps_what_it_saw_before() -> None:
    def breaks(answer: int) -> Iterator[Observation]:
        yield observed(answer, 0, 0)
        raise KeyError("oops")

    first, second = (tally(breaks, at, position=at) for at in (0, 1))
    assert first.witnesses == 1
    assert (second + first).crash == first.crash is not None
    assert "oops" in (second + first).crash[1]  # type: ignore[index]  # the line above


def one_by_one(
    things: Sequence[Any], surely: Iterable[bool], look: Callable[[Any], Observation]
) -> Iterator[Observation]:
    """What `look_at_each` stands for."""
    assert len(list(surely)) == len(things)
    return map(look, things)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let all checks look at all that they look at."""

    def patch() -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("tokenwire.checks.") and hasattr(module, "look_at_each"):
                monkeypatch.setattr(module, "look_at_each", one_by_one)

    return patch


def seen_by(check: Check, subject: Stream | Comparison | tuple[Stream, ...], target: Target) -> Tally:
    look = check.on_run or check.on_comparison or check.on_stream
    assert look is not None
    return tally(look, subject, target, position=0)


def counted(one: Tally) -> Any:
    """All of a tally but in which place among the others each was seen."""
    furthest = one.furthest.observation._replace(witnesses=1) if one.furthest else None
    return one.saw, one.witnesses, furthest, [seen.observation for seen in one.differing], one.crash


def test_a_glance_sees_what_a_look_at_each_thing_sees_in_every_pair(slowly: Callable[[], None]) -> None:
    subjects = [(pair.requirement, pair.good, pair.target) for pair in PAIRS]
    subjects += [(pair.requirement, pair.bad, pair.bad_target or pair.target) for pair in PAIRS]
    at_a_glance = [counted(seen_by(CHECKS[name], *subject)) for name, *subject in subjects]
    slowly()
    assert [counted(seen_by(CHECKS[name], *subject)) for name, *subject in subjects] == at_a_glance


@pytest.mark.parametrize(
    "capture",
    ["sglang/0.5.23/F3_mirror_incr_int4.jsonl.gz", "sglang/0.5.23/S3_retract_stream.jsonl.gz"],
)
def test_a_glance_sees_what_a_look_at_each_thing_sees_in_an_answer(
    capture: str, slowly: Callable[[], None]
) -> None:
    (run,) = replay([FIXTURES / capture]).runs

    def everything() -> dict[str, Any]:
        return {
            f"{name} in {stream.exchange.name}": counted(seen_by(check, stream, run.target))
            for name, check in CHECKS.items()
            if check.on_stream is not None
            for stream in run.heard
        }

    at_a_glance = everything()
    slowly()
    assert everything() == at_a_glance


def test_what_stands_for_many_is_the_furthest_and_of_one_event_the_first() -> None:
    places = [Place("generate/one", event, pointer) for event, pointer in ((0, "/0"), (1, "/0"), (1, "/1"))]

    def look(place: Place) -> Observation:
        return observe(place, expected=1, actual=1)

    (seen,) = look_at_each(places, [True] * 3, look)
    assert (seen.place, seen.witnesses) == (places[1], 3)
    looked, stands = look_at_each(places, [True, False, True], look)
    assert (looked.place, looked.witnesses) == (places[1], 1)
    assert (stands.place, stands.witnesses) == (places[2], 2)


def test_what_is_not_sure_is_looked_at_and_may_hold_or_not() -> None:
    (stream,) = Run((ids_stream([1], [2], [3]),)).streams
    seen = list(
        look_at_each(
            stream.events,
            [False, True, False],
            lambda event: observe(event.place, expected=True, actual=event.index != 2),
        )
    )
    assert [(one.place.event, one.holds, one.witnesses) for one in seen] == [
        (0, True, 1),
        (2, False, 1),
        (1, True, 1),
    ]
