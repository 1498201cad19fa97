"""What requests of one family have in common."""

from __future__ import annotations

from typing import Any

import pytest

from tokenwire_twin.causes import asked_for, in_common

OTHERS = [{"prompt": [1, number], "temperature": 0, "stop": None} for number in range(12)]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ([{"prompt": [1], "n": 2}, {"prompt": [2], "n": 3}], "n of 2 to 3"),
        ([{"prompt": [1], "sampling_params": {"n": 2}}], "n of 2"),
        ([{"prompt": [1], "bad_words": ["a"]}, {"prompt": [1], "bad_words": ["b", "c"]}], "bad_words"),
        (
            [{"prompt": [[1], [2]]}, {"prompt": ["a", "b"]}],
            "prompt as a list of lists or a list of texts",
        ),
        ([{"prompt": [[1]]}] * 9 + [{"prompt": [1]}], "prompt as a list of lists (9 of 10)"),
        ([{"prompt": [[1]]}] * 7 + [{"prompt": [1]}] * 3, ""),
        ([{"prompt": [1], "temperature": 0}], ""),
        ([{"prompt": [1], "temperature": 2}], "temperature of 2"),
        ([{"a": 1, "b": 1, "c": 1, "d": 1}], ""),
        ([], ""),
    ],
)
def test_what_a_family_asks_for_and_no_other_request_does_is_named(
    family: list[dict[str, Any]], words: str
) -> None:
    assert in_common([*map(asked_for, family)], [*map(asked_for, OTHERS)]) == words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("invalid value: integer `-1`, expected u32 at line 1 column 1", "top_k of -1"),
        ("top_k must be positive", "top_k of -1"),
        ("bad request", "min_p of 2 and top_k of -1"),
        ("top_k and min_p are wrong", "min_p of 2 and top_k of -1"),
    ],
)
def test_only_the_field_that_the_server_names_is_the_cause(reason: str, words: str) -> None:
    family = [asked_for({"top_k": -1, "min_p": 2})]
    assert in_common(family, [*map(asked_for, OTHERS)], reason) == words


def test_few_other_requests_show_nothing() -> None:
    assert in_common([asked_for({"n": 2})], [*map(asked_for, OTHERS[:3])]) == ""
