"""Where two values differ, and what is the same up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.checks.difference import first_difference, observe_sequence, observe_text
from tokenwire.record import Place
from tokenwire.target.alike import alike

PLACE = Place("one")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(json_values)
def test_a_value_is_like_itself(value: Any) -> None:
    assert alike(value, value)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (-0.5, -0.5004),
        (0, -0.0004),
        ([-0.5, 7, None], [-0.5004, 7, None]),
        ({"logprob": -0.5}, {"logprob": -0.5004}),
        (10**400, 10**400),
    ],
)
def test_what_is_alike(first: object, other: object) -> None:
    assert alike(first, other)
    assert alike(other, first)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (-0.5, -0.502),
        (7, 8),
        (True, 1),
        (False, None),
        ("a", "b"),
        (-0.5, None),
        (-0.5, "-0.5"),
        ([1], [1, 1]),
        ([1], {"0": 1}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
        (10**400, 1.5),
    ],
)
def test_what_is_not_alike(first: object, other: object) -> None:
    assert not alike(first, other)
    assert not alike(other, first)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_first_difference_is_the_first(first: list[int], other: list[int]) -> None:
    position = first_difference(first, other)
    if position is None:
        assert first == other
    else:
        assert first[:position] == other[:position]
        assert first[position : position + 1] != other[position : position + 1]


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        ([1, 2], [1, 3], "id 1 is 3, but 2 in the request"),
        ([1, 2], [1], "id 1 is missing: 1 instead of the 2 of the request"),
        ([1], [1, 2], "id 1 is too much: 2 instead of the 1 of the request"),
        ([1], [True], "id 0 is True, but 1 in the request"),
    ],
)
def test_a_difference_is_told_with_its_place(expected: list[int], actual: list[int], message: str) -> None:
    seen = observe_sequence(PLACE, "id", expected=expected, actual=actual, source="the request")
    assert (seen.holds, seen.message) == (False, message)


def test_a_difference_in_a_long_text_is_shown_from_a_little_before() -> None:
    text = "0123456789" * 10
    seen = observe_text(PLACE, expected=text, actual=text[:50] + "X" + text[51:], source="the other")
    assert (seen.expected, seen.actual) == (
        "8901234567890123456789" + "01234567890123",
        "890123456789X1234567890123456789" + "0123",
    )
    assert seen.message == "the text differs from the other at character 50"
