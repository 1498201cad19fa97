"""Pieces of text join to what the ids say at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenwire_reference.core.detokenizer import Detokenizer, Spelling, spelling
from tokenwire_reference.core.request import FinishReason, SamplingParams
from tokenwire_reference.doors.reader import finish_text
from tokenwire_reference.extras.builtin import byte_level_tokenizer

ids_and_cuts = st.tuples(
    st.lists(st.integers(0, 1999), max_size=40), st.lists(st.integers(0, 40), max_size=12)
)
broken = st.lists(st.sampled_from([0, 2, 3, 30, 107, 109, 166, 168, 254, 256, 308]), max_size=16)


def pieces(detokenizer, ids, cuts=None):
    """What each push gave, for ids cut at these places; one by one without any."""
    places = sorted({0, len(ids), *(range(len(ids)) if cuts is None else (c for c in cuts if c < len(ids)))})
    return [detokenizer.push(ids[a:b]) for a, b in pairwise(places)]


@pytest.mark.parametrize("skip", [True, False])
@given(case=ids_and_cuts)
@example(case=([168, 107, 256, 168, 107], [1, 2, 4]))
def test_any_partition_joins_to_the_whole_decode(tiny_tokenizer, skip, case):
    ids, cuts = case
    detokenizer = Detokenizer(spelling(tiny_tokenizer, skip_special_tokens=skip))
    text = "".join(pieces(detokenizer, ids, cuts)) + detokenizer.flush()
    assert text == tiny_tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
@given(prompt=broken, ids=broken, cuts=st.lists(st.integers(0, 16), max_size=6))
def test_broken_characters_and_special_tokens_are_lost_nowhere(tiny_tokenizer, skip, prompt, ids, cuts):
    detokenizer = Detokenizer(spelling(tiny_tokenizer, skip_special_tokens=skip), prompt)
    text = "".join(pieces(detokenizer, ids, cuts)) + detokenizer.flush()
    assert text == tiny_tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("ids", [[627, 339, 469, 614], [163, 261, 540], [173, 170, 551]])
def test_half_a_character_is_decoded_with_what_follows_it(ids):
    """Each of these begins with the first byte of a character that the next id does not go on with."""
    tokenizer = byte_level_tokenizer()
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=True))
    assert "".join(pieces(detokenizer, ids)) + detokenizer.flush() == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(4, 1019), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=12))
def test_the_other_tokenizer_joins_too(llama_tokenizer, ids, cuts):
    detokenizer = Detokenizer(Spelling(llama_tokenizer.decode))
    assert "".join(pieces(detokenizer, ids, cuts)) + detokenizer.flush() == llama_tokenizer.decode(ids)


def test_a_character_comes_when_its_last_byte_does(tiny_tokenizer):
    detokenizer = Detokenizer(Spelling(tiny_tokenizer.decode))
    assert pieces(detokenizer, [168, 107, 256, 168]) == ["", "", "\u8a9e", ""]
    assert detokenizer.flush() == "\ufffd"


def test_text_before_half_a_character_does_not_wait(tiny_tokenizer):
    detokenizer = Detokenizer(Spelling(tiny_tokenizer.decode))
    assert detokenizer.push([1262, 168]) == "spec"
    assert detokenizer.push([107, 256]) == "\u8a9e"


def test_the_first_word_keeps_its_space_after_a_prompt():
    """A decoder that strips the space at the beginning of a text must see what stands before the output."""

    def decode(ids):
        return "".join({1: " a", 2: " b"}[i] for i in ids).removeprefix(" ")

    assert Detokenizer(Spelling(decode), [1]).push([2]) == " b"
    assert Detokenizer(Spelling(decode)).push([2]) == "b"


def test_ids_without_text_do_not_pile_up(tiny_tokenizer):
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return tiny_tokenizer.decode(ids, skip_special_tokens=True)

    detokenizer = Detokenizer(Spelling(decode), [1262])
    assert pieces(detokenizer, [2] * 200) == [""] * 200
    assert detokenizer.push([1059]) == "andlers"
    assert longest < 10


def whole(tokenizer, ids, finish, rows=(), **sampling):
    """The text of a request whose ids came in rows that end at these places."""
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=True))
    text = "".join(pieces(detokenizer, ids[: max(rows, default=0)], rows))
    return finish_text(detokenizer, text, ids[max(rows, default=0) :], finish, SamplingParams(**sampling))


# spec / andlers / " option" / u / ily / ties
IDS = [1262, 1059, 542, 88, 1806, 1238]


@pytest.mark.parametrize("rows", [(), (1, 2), (1, 2, 3, 4)])
def test_a_stop_string_across_tokens_is_cut(tiny_tokenizer, rows):
    finish = FinishReason("stop", matched="nuil")
    assert whole(tiny_tokenizer, IDS[:5], finish, rows[:2], stop=("nuil",)) == "specandlers optio"
    kept = whole(tiny_tokenizer, IDS[:5], finish, rows, stop=("nuil",), no_stop_trim=True)
    assert kept == "specandlers optionuil"


def test_only_the_occurrence_that_ended_the_generation_is_cut(tiny_tokenizer):
    """The first "s" was there before: had it been seen, generation would have ended with it."""
    finish = FinishReason("stop", matched="s")
    assert whole(tiny_tokenizer, IDS, finish, stop=("s",)) == "specandlers optionuilytie"


def test_a_stop_id_leaves_its_text_out(tiny_tokenizer):
    finish = FinishReason("stop", matched=1806)
    assert whole(tiny_tokenizer, IDS[:5], finish) == "specandlers optionu"
    assert whole(tiny_tokenizer, IDS[:5], finish, no_stop_trim=True) == "specandlers optionuily"


def test_half_a_character_before_a_stop_id_is_shown(tiny_tokenizer):
    assert whole(tiny_tokenizer, [1262, 168, 2], FinishReason("stop", matched=2), (2,)) == "spec\ufffd"


def test_a_pattern_is_no_stop_string(tiny_tokenizer):
    finish = FinishReason("stop", matched="u[a-z]+t")
    assert whole(tiny_tokenizer, IDS, finish, stop_regex=("u[a-z]+t",)) == "specandlers optionuilyties"


def test_an_end_by_length_or_abort_keeps_all(tiny_tokenizer):
    assert whole(tiny_tokenizer, IDS, FinishReason("length", length=6)) == "specandlers optionuilyties"
    assert whole(tiny_tokenizer, IDS[:2], FinishReason("abort"), (1, 2)) == "specandlers"
