"""Scripts and the truth about them, computed by hand."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.ask import Asked
from tokenwire.dialects.dialect import load_dialects
from tokenwire.parrot.law import Parrot, Repeater
from tokenwire.parrot.script import Script, Truth, deaf_to_stops, truth
from tokenwire.parrot.vocabulary import SIZE, Vocabulary, tokenizer_files, words_of
from tokenwire.wire.exchange import HttpRequest

LAW = Parrot(SIZE)
WORDS = words_of(Vocabulary.BYTE_LEVEL)
SENTENCEPIECE = words_of(Vocabulary.SENTENCEPIECE)
EOS = min(WORDS.ends)


def byte(value: int) -> int:
    """The id of a single byte."""
    return WORDS.pieces.index(bytes([value]))


def true_record(text: str, *, tail: tuple[int, ...] = (EOS,), **asked: object) -> Truth:
    prompt = Script((*Script.of_text(text, WORDS).ids, *tail)).prompt(LAW, byte(126))
    found = truth(LAW, WORDS, prompt, Asked(**{"greedy": True, "max_new_tokens": 300, **asked}))  # type: ignore[arg-type]
    assert found is not None
    return found


@given(st.text())
@settings(max_examples=30)
def test_every_text_can_be_a_script(text: str) -> None:
    for words in (WORDS, SENTENCEPIECE):
        script = Script.of_text(text, words)
        assert b"".join(words.pieces[token] for token in script.ids).decode() == text
        assert not set(script.ids) & words.special


@pytest.mark.parametrize("kind", list(Vocabulary))
@given(ids=st.lists(st.integers(5, SIZE - 1), min_size=1, max_size=12))
@settings(max_examples=60)
def test_what_the_tokenizer_makes_of_ids_is_a_right_text(kind: Vocabulary, ids: list[int]) -> None:
    words = words_of(kind)
    document = tokenizer_files(kind, 4096).files["tokenizer.json"]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    found = truth(
        LAW,
        words,
        Script(tuple(ids)).prompt(LAW, words.longest(b"~")),
        Asked(greedy=True, max_new_tokens=len(ids), ignore_eos=True),
    )
    assert found is not None
    assert found.ids == tuple(ids)
    assert tokenizer.decode(ids) in found.legal


def test_bytes_are_spelled_by_pieces_where_there_are_any() -> None:
    spelled = Script.of_text("ab", SENTENCEPIECE).ids
    assert not set(spelled) & SENTENCEPIECE.fallback
    tail = (*spelled, *(SENTENCEPIECE.longest(bytes([byte])) for byte in b"\xf0\x9f\x98"))
    found = truth(
        LAW, SENTENCEPIECE, Script(tail).prompt(LAW, 7), Asked(greedy=True, max_new_tokens=len(tail))
    )
    assert found is not None
    assert set(found.legal) == {"ab\ufffd", "ab\ufffd\ufffd\ufffd"}


def test_a_prompt_is_as_long_as_the_next_lag() -> None:
    assert len(Script((5,)).prompt(LAW, 9)) == 1
    assert Script((5,) * 60).prompt(LAW, 9) == (5,) * 60 + (9,) * 4
    assert len(Script((5,) * 257).prompt(LAW, 9)) == 1024
    with pytest.raises(ValueError, match="1025 ids is longer than the parrot's distance, 1024 ids"):
        Script((5,) * 1025).prompt(LAW, 9)


def test_the_end_of_the_text_ends_an_answer_and_is_not_shown() -> None:
    found = true_record("hello 🦖漢字")
    assert (found.text, found.finish, found.matched) == ("hello 🦖漢字", "stop", {EOS})
    assert found.ids[-1] == EOS
    assert len(found.texts) == len(found.ids)
    assert all(found.text.startswith(text) for text in found.texts)
    assert any(before == after for before, after in zip(found.texts, found.texts[1:-1], strict=False))


def test_a_budget_cuts_and_a_stop_within_it_wins() -> None:
    whole = true_record("one two three")
    exact = true_record("one two three", max_new_tokens=len(whole.ids))
    assert exact == whole
    less = true_record("one two three", max_new_tokens=len(whole.ids) - 1)
    assert (less.text, less.finish, less.ids) == ("one two three", "length", whole.ids[:-1])
    more = true_record("one two three", ignore_eos=True, max_new_tokens=len(whole.ids) + 1)
    assert (more.finish, more.text) == ("length", "one two three~")
    assert (
        "<|endoftext|>"
        in true_record("one", ignore_eos=True, skip_special_tokens=False, max_new_tokens=9).text
    )


def test_the_first_stop_string_in_the_text_cuts_it() -> None:
    found = true_record("xaaab and more", stop=("aab", "more"))
    assert (found.text, found.matched) == ("xa", {"aab"})
    assert true_record("xaaab and more", stop=("aab",), no_stop_trim=True).text == "xaaab"
    both = true_record("the parrot says", stop=("ys", "ay", "nowhere"))
    assert (both.text, both.matched) == ("the parrot s", {"ys", "ay"}), "one id completes both"
    spelled = true_record("", tail=tuple(map(byte, b"ab</think>cd")), stop=("</think>",))
    assert (spelled.text, spelled.ids[-1]) == ("ab", byte(ord(">")))


def test_a_server_may_choose_among_the_stops_that_one_id_meets() -> None:
    """SGLang 0.5.23 and vLLM 0.32.0 take the first of the request's list, and cut at that one."""
    strings = true_record("one QZ two", stop=("Z", "QZ"))
    assert strings.endings == {"Z": "one Q", "QZ": "one "}
    texts = ("one ", "one Q", "one QZ")
    assert (strings.texts_of("Z"), strings.texts_of("QZ")) == (("one Q",), ("one ",))
    assert [text for text in texts if text in strings.legal] == ["one ", "one Q"]
    both = true_record("", tail=tuple(map(byte, b"hello QZ")), stop=("QZ",), stop_token_ids=(byte(ord("Z")),))
    assert both.endings == {"QZ": "hello ", byte(ord("Z")): "hello Q"}, "SGLang names the string, vLLM the id"


def test_each_item_of_a_batch_ends_by_its_own_parameters() -> None:
    items = [
        {"max_new_tokens": 20, "temperature": 0},
        {"max_new_tokens": 9, "temperature": 0, "stop": ["QZ"]},
    ]
    prompts = [
        list(Script((*Script.of_text(text, WORDS).ids, EOS)).prompt(LAW, 9)) for text in ("aQZb", "aQZb")
    ]
    body = {"input_ids": prompts, "sampling_params": items}
    asked = load_dialects()["sglang-generate"].read_asked(HttpRequest("POST", "/generate", body))
    found = [truth(LAW, WORDS, prompts[choice], asked, choice) for choice in range(2)]
    assert [emission and (emission.text, emission.matched) for emission in found] == [
        ("aQZb", {EOS}),
        ("a", {"QZ"}),
    ]


def test_a_stop_id_is_shown_where_it_is_kept() -> None:
    stop = {"stop_token_ids": (byte(ord("c")),)}
    tail = tuple(map(byte, b"abcd"))
    assert true_record("", tail=tail, **stop).text == "ab"
    kept = true_record("", tail=tail, no_stop_trim=True, **stop)
    assert (kept.text, kept.ids, kept.matched) == ("abc", tail[:3], {byte(ord("c"))})


def test_what_is_cut_within_a_character_shows_that_at_the_end_alone() -> None:
    cut = true_record("", tail=tuple(map(byte, "ab😀".encode())), max_new_tokens=4)
    assert cut.text == "ab\ufffd"
    assert cut.texts == ("a", "ab", "ab", "ab\ufffd")
    surrogate = true_record("", tail=tuple(map(byte, b"a\xed\xa0\x80b")), max_new_tokens=5)
    assert [len(text) for text in surrogate.texts] == [1, 1, 3, 4, 5]
    ended = true_record("", tail=(*map(byte, b"ab\xf0\x9f"), EOS))
    assert ended.text == "ab\ufffd"


def test_a_pattern_ends_an_answer_with_the_id_that_completes_a_match() -> None:
    found = true_record("", tail=tuple(map(byte, b"abc 123 de")), stop_regex=("[0-9]{3}",))
    assert (len(found.ids), found.text, found.finish) == (7, "abc 123", "stop")
    assert found.matched == {"[0-9]{3}", "123"}
    assert set(found.legal) == {"abc 123", "abc "}
    wide = true_record("one two", stop_regex=("w",))
    assert {"one t", "one tw", wide.texts[-1]} <= {*wide.texts_of("w")}
    assert "one" not in wide.texts_of("w")
    both = true_record("one two", stop_regex=("w",), stop=("tw",))
    assert both.texts_of("tw") == ("one ",)
    assert both.texts_of("w")[1:] == ("one tw", "one t")
    assert both.texts_of("x") == ()


def test_an_id_that_ends_too_early_gives_way_to_the_next_best() -> None:
    tail = (*map(byte, b"ab"), EOS, *map(byte, b"cd"), EOS)
    found = true_record("", tail=tail, min_new_tokens=4)
    second = LAW.top(EOS, 2)[1][0]
    assert found.ids == (*tail[:2], second, *tail[3:])
    assert (found.finish, found.barred) == ("stop", True)
    late = true_record("", tail=(*tail[:2], EOS), min_new_tokens=2)
    assert (late.ids, late.barred) == (tail[:3], True), (
        "of 'a' a server may tell the logprob without the ends"
    )
    unending = Asked(greedy=True, max_new_tokens=2, min_new_tokens=2, ignore_eos=True)
    free = truth(LAW, WORDS, Script(tail[:2]).prompt(LAW, byte(126)), unending)
    assert free is not None
    assert not free.barred
    prompt = Script(tail).prompt(LAW, byte(126))
    ignoring = Asked(greedy=True, max_new_tokens=4, min_new_tokens=4, ignore_eos=True)
    assert truth(LAW, WORDS, prompt, ignoring) is None, "SGLang bars an end that is ignored, vLLM does not"
    asked = Asked(greedy=True, max_new_tokens=4, min_new_tokens=4)
    assert truth(Repeater(1024), WORDS, (prompt * 16)[:1024], asked) is None


def test_stop_strings_may_be_looked_for_from_the_first_id_on_or_later() -> None:
    """SGLang 0.5.23 and vLLM 0.32.0 as recorded."""
    script = tuple(map(byte, b"aQZbQZc"))
    asked = Asked(greedy=True, max_new_tokens=7, min_new_tokens=3, stop=("QZ",))
    prompt = Script(script).prompt(LAW, byte(126))
    found = {n: truth(LAW, WORDS, prompt, asked, unheeded=n) for n in deaf_to_stops(asked)}
    assert {n: emission and (len(emission.ids), emission.text) for n, emission in found.items()} == {
        0: (3, "a"),
        2: (3, "a"),
        3: (6, "aQZb"),
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"greedy": False},
        {"ignore_eos": True, "stop_token_ids": (5,)},
        {"stop_regex": ("a$",)},
        {"stop_regex": ("(",)},
        {"max_new_tokens": None},
        {"other_sampling": "{}"},
    ],
    ids=str,
)
def test_nothing_is_said_of_what_is_not_computed(asked: dict[str, object]) -> None:
    wanted = Asked(**{"greedy": True, "max_new_tokens": 3, **asked})  # type: ignore[arg-type]
    assert truth(LAW, WORDS, (5, 6), wanted) is None
