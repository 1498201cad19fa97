"""The reference answers every recorded request as the recorded server did, but for deliberate differences.

Asked is everything that is valid by the specification. Compared are status, JSON paths and types, and for
greedy requests also ids, texts, finishes, usage and logprobs. `reference/DIFFERENCES.md` lists what differs
on purpose and why; the table in it is what this test reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from deliberate_differences import Deliberate, fits, read_deliberate_differences
from recorded_walk import Walk, captures, walk_alike

FLAGS = {captured.name: captured.flags for captured in captures()}


@pytest.fixture(scope="module")
def walk(serve_reference) -> Callable[[str], Walk]:
    """What came of a capture, by its name; those of equal flags are walked together."""

    @cache
    def alike(flags: tuple[str, ...]) -> dict[str, Walk]:
        return walk_alike(serve_reference, flags)

    return lambda name: alike(FLAGS[name])[name]


@pytest.fixture(scope="module")
def walks(walk: Callable[[str], Walk]) -> dict[str, Walk]:
    return {name: walk(name) for name in FLAGS}


@pytest.fixture(scope="module")
def deliberate() -> list[Deliberate]:
    return read_deliberate_differences()


@pytest.mark.parametrize("capture", FLAGS)
def test_what_was_recorded_is_answered_alike(
    capture: str,
    walk: Callable[[str], Walk],
    deliberate: list[Deliberate],
    capsys: pytest.CaptureFixture[str],
) -> None:
    walked = walk(capture)
    explained = {found for found in walked.differences if any(row.explains(found) for row in deliberate)}
    with capsys.disabled():
        print(
            f"\n{capture}: {walked.asked} exchanges compared,",
            f"{walked.invalid} not valid by the specification,",
            f"{walked.values.compared} values compared, {len(explained)} deliberate differences",
            end=" ",
        )
    unexplained = sorted(map(str, walked.differences - explained))
    assert unexplained == [], "\n".join(unexplained)
    assert walked.asked > 0


def test_every_deliberate_difference_is_still_there(
    walks: dict[str, Walk], deliberate: list[Deliberate]
) -> None:
    found = [difference for walked in walks.values() for difference in walked.differences]
    unneeded = []
    for row in deliberate:
        explained = [difference for difference in found if row.explains(difference)]
        exchanges = [difference.exchange for difference in explained]
        whats = [difference.what for difference in explained]
        unneeded += [
            (row.title, pattern)
            for patterns, texts in ((row.exchanges, exchanges), (row.differences, whats))
            for pattern in patterns
            if not any(fits([pattern], text) for text in texts)
        ]
    assert not unneeded


def test_the_walk_goes_everywhere(walks: dict[str, Walk]) -> None:
    assert len(walks) == 28
    assert sum(walked.asked for walked in walks.values()) > 1850
    assert sum(walked.values.compared for walked in walks.values()) > 100_000
