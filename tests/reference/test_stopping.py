"""When a request is done, and which reason wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import re2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizers import sentencepiece

from tokenwire_reference.core.detokenizer import Detokenizer, Spelling, spelling
from tokenwire_reference.core.request import FinishReason, SamplingParams
from tokenwire_reference.core.stopping import (
    LONGEST_MATCH,
    MOST_STEPS,
    StopPattern,
    StopRules,
    may_become_stop,
)

EOS = 0


def decode(token_ids: Sequence[int]) -> str:
    """Ids are letters, so that texts can be read: 1 is a, 2 is b, …; the end of sequence spells <end>."""
    return "".join("<end>" if i == EOS else chr(96 + i) for i in token_ids)


def ids(text: str) -> list[int]:
    return [ord(letter) - 96 for letter in text]


def test_patterns_are_compiled_once_for_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of 4,096 on the engine's thread, they made all others wait 16 s."""
    compiled: list[str] = []
    compile_pattern = StopPattern.__init__
    monkeypatch.setattr(
        StopPattern,
        "__init__",
        lambda self, pattern: compiled.append(pattern) or compile_pattern(self, pattern),
    )
    for sample in range(3):
        rules_of(SamplingParams(stop_regex=("once", "[o]nly"), sampling_seed=sample))
    assert compiled == ["once", "[o]nly"]


def rules_of(params: SamplingParams) -> StopRules:
    detokenizer = Detokenizer(Spelling(decode))
    return StopRules(params, frozenset({EOS}), params.max_new_tokens or 0, detokenizer)


def finish_of(output_ids: list[int], **sampling: Any) -> FinishReason | None:
    """The first reason to stop while `output_ids` arrive one by one."""
    params = SamplingParams(**sampling)
    rules = rules_of(params)
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
        (ids("abc"), {"stop_token_ids": (3,), "ignore_stop_token_ids": True}, None),
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
    least = sampling.get("min_new_tokens", 0)
    assert finish_of(output_ids, min_tokens_before_stop=least, **sampling) == expected


def test_a_string_counts_from_the_first_token_after_the_minimum() -> None:
    params = SamplingParams(stop=("cc",), min_new_tokens=4, min_tokens_before_stop=4)
    rules = rules_of(params)
    reasons = [rules.check(ids("c" * count)) for count in range(1, 6)]
    assert [reason is not None for reason in reasons] == [False, False, False, False, True]


def test_a_zero_budget_is_spent_before_the_first_token() -> None:
    rules = rules_of(SamplingParams(max_new_tokens=0))
    assert rules.check([]) == FinishReason("length", length=0)
    assert rules_of(SamplingParams(max_new_tokens=0, stop=("a",))).check([]) == rules.check([])


def test_a_stop_string_of_many_ids_is_found() -> None:
    long = "abcdefghijklmnopqrstuvwxyz" * 3
    assert finish_of(ids("zz" + long), stop=(long,)) == FinishReason("stop", matched=long)


def test_strings_need_a_tokenizer() -> None:
    for sampling in (SamplingParams(stop=("a",)), SamplingParams(stop_regex=("a",))):
        with pytest.raises(ValueError, match="use stop_token_ids"):
            StopRules(sampling, frozenset(), 5, None)


def test_a_broken_pattern_is_named() -> None:
    with pytest.raises(ValueError, match=r"stop_regex '\(' is not a regular expression"):
        rules_of(SamplingParams(stop_regex=("(",)))


def test_no_pattern_takes_exponential_time() -> None:
    """Python's own `re` doubles the time of this search with every letter: 2**200 steps here."""
    rules = rules_of(SamplingParams(stop_regex=("(a+)+b", "(.?.?.?.?.?)*\\b\\B#"), max_new_tokens=999))
    assert rules.check(ids("a" * 200)) is None
    assert rules.check(ids("a" * 200 + "b")) == FinishReason("stop", matched="(a+)+b")


def test_what_may_become_a_stop_string_is_held_back_until_it_did_or_did_not() -> None:
    """The end of sequence spells <end>; ids are looked at one by one, as the engine does."""
    rules = rules_of(SamplingParams(stop=("cd", "e<")))
    held = [rules.hold_back([*ids("acceca"), EOS][:end]) for end in range(1, 8)]
    assert held == [False, True, True, True, True, False, False]


def test_what_is_looked_at_does_not_grow_with_the_output() -> None:
    rules = rules_of(SamplingParams(stop=("zy",), max_new_tokens=10_000))
    output_ids: list[int] = []
    for _ in range(1000):
        output_ids += ids("abcdefgh")
        assert rules.check(output_ids) is None
    assert len(rules._text.of(output_ids, 2)[0]) < 1000  # type: ignore[union-attr]
    assert rules.check([*output_ids, *ids("zy")]) == FinishReason("stop", matched="zy")


BYTE_OR_WORD = sentencepiece()


def searched(monkeypatch: pytest.MonkeyPatch, detokenizer: Detokenizer, output_ids: list[int]) -> list[int]:
    """How many bytes of the text a stop pattern is looked for in, at each id."""
    lengths = []

    def match(pattern: StopPattern, text: bytes, start: int, new: int) -> bool:
        lengths.append(len(text))
        return False

    monkeypatch.setattr(StopPattern, "ends_in", match)
    rules = StopRules(SamplingParams(stop_regex=("(?s)begin.*end",)), frozenset(), 10**6, detokenizer)
    for count in range(1, len(output_ids) + 1):
        assert rules.check(output_ids[:count]) is None
    return lengths


@pytest.mark.parametrize("piece", ["ab", "b" * 200, "\u8a9e" * 30])
def test_a_pattern_that_may_match_forever_is_not_looked_for_in_all_of_a_long_text(piece, monkeypatch) -> None:
    detokenizer = Detokenizer(Spelling(lambda ids: piece * len(ids)))
    lengths = searched(monkeypatch, detokenizer, [1] * 5000)
    assert max(lengths) <= len("\u8a9e".encode()) * (LONGEST_MATCH + len(piece) + 1)


@pytest.mark.parametrize("words", [0, 5000])
def test_a_long_run_of_byte_tokens_is_not_looked_through_again(words, monkeypatch) -> None:
    word, letter = BYTE_OR_WORD.convert_tokens_to_ids(["a", "<0x61>"])
    detokenizer = Detokenizer(spelling(BYTE_OR_WORD, skip_special_tokens=True))
    output_ids = [word] * words + [letter] * 5000
    assert max(searched(monkeypatch, detokenizer, output_ids)) == LONGEST_MATCH + 2


@pytest.mark.parametrize(
    ("pattern", "before", "text", "matches"),
    [
        ("begin.*end", "z", "begin" + "x" * (LONGEST_MATCH - 8) + "end", True),
        ("(?s)begin.*end", "\u8a9e", "begin" + "\n" * (LONGEST_MATCH - 8) + "end", True),
        (r"(?:\A|^)x+", "z", "x" * (2 * LONGEST_MATCH), False),
        (r"\bxx*y", "z", "x" * (2 * LONGEST_MATCH) + "y", False),
        (r"\bxx*y", " ", "x" * (LONGEST_MATCH - 1) + "y", True),
        (r"(?m:^)xx*y", "z\n", "x" * (LONGEST_MATCH - 1) + "y", True),
    ],
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_a_match_of_the_longest_length_is_found_anywhere(
    pattern: str, before: str, text: str, matches: bool, at_once: int
) -> None:
    """What stands right before it counts, too: where a text is cut, it does not begin."""
    shown = before * 5000 + text
    pieces = [shown[start : start + at_once] for start in range(0, len(shown), at_once)]
    detokenizer = Detokenizer(Spelling(lambda ids: "".join(pieces[i] for i in ids)))
    params = SamplingParams(stop_regex=(pattern,))
    rules = StopRules(params, frozenset(), 10**6, detokenizer)
    ends = [count for count in range(1, len(pieces) + 1) if rules.check(range(count)) is not None]
    assert ends == [len(pieces)] * matches


def test_patterns_that_are_too_large_together_are_refused() -> None:
    """So the shortest match of a pattern that is taken is not longer than what is looked at."""
    rules_of(SamplingParams(stop_regex=("a{999}",) * 4))
    with pytest.raises(ValueError, match=f"at most {MOST_STEPS} are allowed"):
        rules_of(SamplingParams(stop_regex=("a{999}",) * 5))


def test_a_pattern_is_looked_for_in_all_that_a_wrong_byte_unmakes() -> None:
    letter, wrong, word = BYTE_OR_WORD.convert_tokens_to_ids(["<0x61>", "<0xFF>", "\u8a9e"])
    rules = StopRules(
        SamplingParams(stop_regex=("^\ufffd",)),
        frozenset(),
        10**6,
        Detokenizer(spelling(BYTE_OR_WORD, skip_special_tokens=True)),
    )
    output_ids = [*[letter] * 100, wrong, word]
    ends = [count for count in range(1, len(output_ids) + 1) if rules.check(output_ids[:count]) is not None]
    assert ends == [len(output_ids)]


@settings(max_examples=200)
@given(st.sampled_from(["a", "b|\ufffd", r"[^a]$", "\u8a9e$", "ab", "\ufffd+a", r"\Ba"]), st.data())
def test_a_pattern_is_looked_for_in_what_byte_tokens_say_until_a_wrong_byte_unmakes_it(
    pattern: str, data: st.DataObject
) -> None:
    names = ["<0x61>", "<0x62>", "<0xE8>", "<0xAA>", "<0x9E>", "<0xFF>", "a", "\u8a9e", "</s>"]
    known = [BYTE_OR_WORD.convert_tokens_to_ids(name) for name in names]
    output_ids = data.draw(st.lists(st.sampled_from(known), max_size=12))
    spelled = spelling(BYTE_OR_WORD, skip_special_tokens=True)
    rules = StopRules(SamplingParams(stop_regex=(pattern,)), frozenset(), 99, Detokenizer(spelled))
    for count in range(1, len(output_ids) + 1):
        shown = Detokenizer(spelled)
        matches = re2.search(pattern, shown.push(output_ids[:count]) + shown.tail) is not None
        assert (rules.check(output_ids[:count]) is not None) == matches
        if matches:
            break


PIECES = ["a", "b", "ab", "\n", " ", "a\n\nb", ".", "7", "\u00e9", "\U0001f600", "", "b" * 70, "A"]
ASSERTIONS = ["^", "$", r"\b", r"\B", r"\A", r"\z", "(?m:^)", "(?m:$)"]
PATTERNS = st.recursive(
    st.sampled_from(
        [*ASSERTIONS, "a", "b", ".", "(?s:.)", r"\n", r"\w", "[^a]", r"\d", "\u00e9", r"\x{1F600}", ""]
    ),
    lambda parts: st.one_of(
        st.lists(parts, min_size=2, max_size=4).map("".join),
        st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        parts.map(lambda part: f"(?i:{part})"),
        st.tuples(parts, st.sampled_from(["*", "+", "?", "{2}", "{3,}", "*?"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


def matches_at_a_character(pattern: str, text: str) -> bool:
    r"""True if a match begins at the border of a character.

    RE2 sees bytes, so it also matches ``\B`` between the two bytes of an e with an accent. Such a match is
    not in the text.
    """
    compiled = re2.compile(pattern)
    return any(compiled.match(text, start) is not None for start in range(len(text) + 1))


@settings(max_examples=400)
@example(r"\B", [0, 8, 0], 2)
@given(PATTERNS, st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=12), st.integers(0, 4))
def test_a_pattern_ends_at_the_first_id_whose_whole_text_it_matches(
    pattern: str, output_ids: list[int], at_once: int
) -> None:
    """`at_once` ids come first, unlooked at; then one by one."""
    detokenizer = Detokenizer(Spelling(lambda ids: "".join(PIECES[i] for i in ids)))
    rules = StopRules(SamplingParams(stop_regex=(pattern,)), frozenset(), 99, detokenizer)
    for count in range(at_once + 1, len(output_ids) + 1):
        text = "".join(PIECES[i] for i in output_ids[:count])
        matches = matches_at_a_character(pattern, text)
        assert (rules.check(output_ids[:count]) is not None) == matches
        if matches:
            break


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_not_held_back_shows_no_part_of_a_stop_string(text: str, stops: list[str]) -> None:
    """A stop string that completes later begins at or after the end of a text that was let go."""
    parts = [stop[:end] for stop in stops for end in range(1, len(stop))]
    shows = any(stop in text for stop in stops) or any(text.endswith(part) for part in parts)
    assert may_become_stop(text, stops) == shows
