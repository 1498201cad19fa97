"""Lists that no dialect knows: a sampler's only if they were seen to have an entry for each output id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from stream_builder import IDS, Reply, change, incremental, named, whole

from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.replay import remarks
from tokenwire.requirement import load_requirements

RED = {Verdict.FAIL, Verdict.WARN}
OUT_OF_STEP = {"customized-info-whole", "whole-accumulates"}


def attached(entries: Sequence[object], ids: Sequence[int] = IDS) -> Reply:
    return Reply(ids=tuple(ids), series={"histogram": list(entries)}, customized=frozenset({"histogram"}))


def answers(*sizes: tuple[int, int]) -> tuple[Stream, ...]:
    """Whole answers: of so many ids, and with so many entries."""
    return tuple(
        named(whole(attached(range(entries), IDS[:ids]), key=f"key-{n}"), f"generate/{n}")
        for n, (ids, entries) in enumerate(sizes)
    )


def red(run: Run) -> set[str]:
    rows = [row for row in load_requirements().values() if row.chapter in {"metadata", "delivery", "record"}]
    return {
        judgement.requirement.id
        for judgement in judge([run], rows)
        if judgement.verdict in RED and "histogram" in judgement.message
    }


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        (((6, 4), (5, 4), (4, 4)), set()),
        (((6, 3), (5, 3)), set()),
        (((6, 6), (5, 5), (4, 3)), OUT_OF_STEP),
        (((6, 6), (5, 5)), set()),
    ],
    ids=["in step by chance, once", "never in step", "in step twice", "always in step"],
)
def test_a_list_is_a_samplers_if_it_was_in_step_with_two_numbers_of_ids(
    sizes: tuple[tuple[int, int], ...], found: set[str]
) -> None:
    assert red(Run(answers(*sizes))) == found


def test_a_list_that_is_declared_has_to_be_in_step() -> None:
    out_of_step = Run(answers((6, 3), (5, 3)))
    assert red(replace(out_of_step, declared=frozenset({"customized-info"}))) == OUT_OF_STEP


def test_no_comparison_takes_an_unknown_list_for_a_series_and_a_remark_names_it() -> None:
    whole_answer = named(whole(attached([1, 2, 3])), "generate/whole")
    run = Run((whole_answer, named(incremental(Reply()), "generate/stream"), *answers((5, 3))))
    assert red(run) == set()
    assert any(words.endswith("each output id: histogram") for words in remarks(run))
    assert "histogram" in whole_answer.choices[0].series_names, "the answer itself stays as it was"


def traces(*lengths: int, seed: int = 1) -> tuple[Stream, ...]:
    """Whole answers of 1 to 6 ids, with a list of a length that has nothing to do with them."""
    drawn = Random(seed)
    every = answers(*((drawn.randint(1, 6), 0) for _ in range(200)))
    return tuple(change(answer, series={"histogram": [0] * drawn.choice(lengths)}) for answer in every)


@pytest.mark.parametrize("lengths", [range(6), range(4), (1, 2), (3, 4, 5, 6)], ids=repr)
def test_a_list_of_changing_length_is_no_samplers_though_it_is_in_step_with_several_numbers(
    lengths: Sequence[int],
) -> None:
    assert red(Run(traces(*lengths))) == set()


def test_a_samplers_list_that_loses_entries_now_and_then_is_red() -> None:
    """Most of its answers are right."""
    sizes = [(1 + n % 6, 1 + n % 6) for n in range(20)]
    assert red(Run(answers(*sizes, (6, 4), (5, 2), (4, 5)))) == OUT_OF_STEP
    assert red(Run(answers(*sizes[:4], *((6, 4) for _ in range(3))))) == OUT_OF_STEP
