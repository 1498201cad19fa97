"""When a request is done, and which reason wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tokenwire_reference.request import FinishReason, SamplingParams
from tokenwire_reference.scheduling.stopping import StopRules

EOS = 0


def decode(token_ids: Sequence[int]) -> str:
    """Ids are letters, so that texts can be read: 1 is a, 2 is b, …; the end of sequence spells <end>."""
    return "".join("<end>" if i == EOS else chr(96 + i) for i in token_ids)


def ids(text: str) -> list[int]:
    return [ord(letter) - 96 for letter in text]


def finish_of(output_ids: list[int], **sampling: Any) -> FinishReason | None:
    """The first reason to stop while `output_ids` arrive one by one."""
    params = SamplingParams(**sampling)
    rules = StopRules(params, frozenset({EOS}), params.max_new_tokens or 0, decode)
    checked = (rules.check(output_ids[:end]) for end in range(1, len(output_ids) + 1))
    return next((reason for reason in checked if reason is not None), None)


STRING = FinishReason("stop", matched="cd")
LENGTH = FinishReason("length", length=4)


@pytest.mark.parametrize(
    ("output_ids", "sampling", "expected"),
    [
        (ids("abc"), {}, None),
        ([*ids("ab"), EOS], {}, FinishReason("stop", matched=EOS)),
        ([*ids("ab"), EOS], {"ignore_eos": True}, None),
        (ids("abc"), {"stop_token_ids": (3,)}, FinishReason("stop", matched=3)),
        (ids("abc"), {"stop_token_ids": (3,), "ignore_eos": True}, None),
        (ids("abcd"), {"stop": ("cd",)}, STRING),
        (ids("abcd"), {"stop": ("xx", "cd")}, STRING),
        (ids("abcd"), {"stop": ("cd", "bcd")}, STRING),
        (ids("abcd"), {"stop": ("cd",), "ignore_eos": True}, STRING),
        (ids("abcd"), {"stop": ("cd",), "stop_token_ids": (4,)}, STRING),
        (ids("abcd"), {"stop": ("cd",), "stop_regex": ("d",)}, STRING),
        (ids("abcd"), {"stop": ("cd",), "max_new_tokens": 4}, STRING),
        (ids("abcd"), {"stop_regex": ("b.d",)}, FinishReason("stop", matched="b.d")),
        (ids("abcd"), {"stop_regex": ("^d",)}, None),
        (ids("abcd"), {"stop_token_ids": (4,), "max_new_tokens": 4}, FinishReason("stop", matched=4)),
        (ids("abcd"), {"max_new_tokens": 4}, LENGTH),
        (ids("abcd"), {"stop": ("cd",), "min_new_tokens": 4}, STRING),
        ([EOS], {"stop": ("<end>",)}, FinishReason("stop", matched="<end>")),
        ([EOS], {"stop": ("d", "n")}, FinishReason("stop", matched="n")),  # "<en" would show the other
        (ids("a"), {"stop": ("",)}, FinishReason("stop", matched="")),
    ],
)
def test_reasons_and_their_order(
    output_ids: list[int], sampling: dict[str, Any], expected: FinishReason | None
) -> None:
    assert finish_of(output_ids, **sampling) == expected


@pytest.mark.parametrize(
    ("output_ids", "sampling", "expected"),
    [
        ([*ids("ab"), EOS, 3], {"ignore_eos": True, "stop_token_ids": (3,)}, FinishReason("stop", matched=3)),
        ([*ids("ab"), EOS], {"ignore_eos": True}, None),
        ([*ids("ab"), EOS], {"stop_token_ids": (3,)}, FinishReason("stop", matched=EOS)),
        (ids("abcd"), {"stop": ("cd",)}, STRING),
        (ids("abcd"), {"stop": ("cd",), "min_new_tokens": 3}, STRING),
        (ids("abcdxyz"), {"stop": ("cd",), "min_new_tokens": 4}, None),
        (ids("abcdxcd"), {"stop": ("cd",), "min_new_tokens": 4}, STRING),
    ],
)
def test_reasons_as_in_vllm(
    output_ids: list[int], sampling: dict[str, Any], expected: FinishReason | None
) -> None:
    assert finish_of(output_ids, vllm_stops=True, **sampling) == expected


def test_a_string_counts_from_the_first_token_after_the_minimum() -> None:
    params = SamplingParams(stop=("cc",), min_new_tokens=4, vllm_stops=True)
    rules = StopRules(params, frozenset({EOS}), 9, decode)
    reasons = [rules.check(ids("c" * count)) for count in range(1, 6)]
    assert [reason is not None for reason in reasons] == [False, False, False, False, True]


def test_a_zero_budget_is_spent_before_the_first_token() -> None:
    rules = StopRules(SamplingParams(max_new_tokens=0), frozenset({EOS}), 0, decode)
    assert rules.check([]) == FinishReason("length", length=0)


def test_a_stop_string_of_many_ids_is_found() -> None:
    long = "abcdefghijklmnopqrstuvwxyz" * 3
    assert finish_of(ids("zz" + long), stop=(long,)) == FinishReason("stop", matched=long)


def test_strings_need_a_tokenizer() -> None:
    for sampling in (SamplingParams(stop=("a",)), SamplingParams(stop_regex=("a",))):
        with pytest.raises(ValueError, match="use stop_token_ids"):
            StopRules(sampling, frozenset(), 5, None)


def test_a_broken_pattern_is_named() -> None:
    with pytest.raises(ValueError, match=r"stop_regex '\(' is not a regular expression"):
        StopRules(SamplingParams(stop_regex=("(",)), frozenset(), 5, decode)


def test_no_pattern_takes_exponential_time() -> None:
    """Python's own `re` doubles the time of this search with every letter: 2**200 steps here."""
    rules = StopRules(SamplingParams(stop_regex=("(a+)+b", "(.?.?.?.?.?)*\\b\\B#")), frozenset(), 999, decode)
    assert rules.check(ids("a" * 200)) is None
    assert rules.check(ids("a" * 200 + "b")) == FinishReason("stop", matched="(a+)+b")
