"""Text and stop strings with every kind of tokenizer: exact, in time, and never taken back."""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import pairwise

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import KINDS

from tokenwire_reference.core.detokenizer import Detokenizer, Kind, Spelling, spelling
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import FinishReason, Request, SamplingParams
from tokenwire_reference.core.stopping import StopRules
from tokenwire_reference.doors.reader import Delivery
from tokenwire_reference.doors.request_manager import RequestManager

BUDGET = 16


class Nobody:
    def add(self, request, *, aborted=False):
        pass

    def abort(self, rid):
        pass


every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def made(kind):
    return KINDS[kind]()


def of(tokenizer, text):
    """The ids of a text by its characters, or by their bytes where it has no such token."""
    names = tokenizer.get_vocab()
    ids = []
    for letter in text:
        fallback = [names.get(f"<0x{byte:02X}>") for byte in letter.encode()]
        ids += [names[letter]] if letter in names else fallback
    return ids


@cache
def chunks(kind):
    """Ids to build outputs of: words, special tokens, bytes that make a character, and bytes that do not."""
    tokenizer = made(kind)
    spelled = spelling(tokenizer, skip_special_tokens=False)
    vocabulary = range(len(tokenizer))
    halves = [i for i in vocabulary if "\ufffd" in tokenizer.decode([i])]
    characters = "\n\u00e9\u8a9e\U0001f600\ufffd"
    if kind == "byte-level":
        whole = [tokenizer.encode(letter) for letter in characters]
    else:
        whole = [ids for letter in characters if None not in (ids := of(tokenizer, letter))]
    words = [i for i in vocabulary if spelled.kind(i) is not Kind.BYTE and i not in halves]
    return [*whole, *([i] for i in words[:24]), *([i] for i in halves[-6:]), *([i] for i in halves[:6])]


def words_of(kind, ids):
    """The ids that are text by themselves."""
    spelled = spelling(made(kind), skip_special_tokens=True)
    halves = [i for i in ids if "\ufffd" in spelled.decode([i])]
    return [i for i in ids if spelled.kind(i) is Kind.WORD and i not in halves]


def outputs(kind):
    """Lists of output ids."""
    parts = st.lists(st.sampled_from(chunks(kind)), max_size=12)
    return parts.map(lambda lists: [i for ids in lists for i in ids][:BUDGET])


@every_kind
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
def test_pieces_join_to_the_text_however_the_ids_are_cut(kind, skip, data):
    tokenizer, ids = made(kind), data.draw(outputs(kind))
    cuts = data.draw(st.sets(st.integers(0, BUDGET)))
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=skip))
    shown = "".join(detokenizer.push(ids[a:b]) for a, b in pairwise(sorted({0, *cuts, BUDGET})))
    assert shown + detokenizer.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@every_kind
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
def test_text_goes_on_behind_a_prompt(kind, skip, data):
    """The space before the first word stands, whatever the prompt ends with."""
    tokenizer, ids = made(kind), data.draw(outputs(kind))
    (word,) = of(tokenizer, "a")
    before = len(tokenizer.decode([word]))
    no_words = st.sampled_from([[0], *(chunk for chunk in chunks(kind) if not words_of(kind, chunk))])
    ends = data.draw(st.lists(no_words, max_size=8))
    prompt = [word, *(token_id for chunk in ends for token_id in chunk)]
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=skip), prompt)
    shown = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()
    assert shown == tokenizer.decode([word, *ids], skip_special_tokens=skip)[before:]


async def answered(tokenizer, prompt, ids, **asked):
    """Every text that a consumer was shown, with how many ids, and the request: as the engine goes."""
    sampling = SamplingParams(max_new_tokens=len(ids), **asked)
    request = Request("r", prompt, sampling, stream=True)
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=False), prompt)
    rules = StopRules(sampling, frozenset(), len(ids), detokenizer)
    manager, streamer = RequestManager(Nobody(), tokenizer), OutputStreamer(stream_interval=1)
    streamer.admit(request)
    (reader,) = manager.submit([request]).readers
    shown = []
    for token_id in ids:
        request.append(token_id, {}, {})
        request.finish = rules.check(request.output_ids)
        request.held_back = rules.hold_back(request.output_ids)
        manager.deliver(streamer.stream([request]))
        if reader.pending:
            emission = reader.take(Delivery.CUMULATIVE)
            shown.append((emission.text, len(emission.output_ids)))
        if request.finish is not None:
            break
    return shown, request


@every_kind
@given(data=st.data())
def test_a_stop_string_is_seen_at_its_last_id_and_never_shown(kind, data):
    tokenizer = made(kind)
    ids = data.draw(outputs(kind).filter(bool))
    prompt = tuple(of(tokenizer, "a"))
    before = len(tokenizer.decode(prompt))

    def text_of(count):
        return tokenizer.decode([*prompt, *ids[:count]])[before:]

    letters = st.sampled_from(sorted(set(text_of(len(ids))) - {"\ufffd"}) or ["a"])
    stops = data.draw(st.lists(st.text(letters, min_size=1, max_size=3), min_size=1, max_size=2))
    asked = {"stop": tuple(stops), "stream_interval": data.draw(st.integers(1, 3))}
    shown, request = asyncio.run(answered(tokenizer, prompt, ids, skip_special_tokens=False, **asked))
    counts = range(1, len(ids) + 1)
    seen = next((count for count in counts if any(stop in text_of(count) for stop in stops)), None)
    text = text_of(seen or len(ids))
    if seen is None:
        assert request.finish == FinishReason("length", length=len(ids))
    else:
        assert request.finish.type == "stop"
        assert len(request.output_ids) == seen
        text = text[: text.index(request.finish.matched)]
    assert shown[-1] == (text, len(request.output_ids))
    for earlier, count in shown:
        assert text.startswith(earlier)
        # Text keeps up with the ids that are delivered, but for half a character.
        assert len(earlier) >= len(text_of(count).rstrip("\ufffd")) or count == len(request.output_ids)


@every_kind
@given(data=st.data())
def test_a_stop_pattern_is_seen_at_the_id_that_completes_it(kind, data):
    """Also where bytes that fit nowhere unmake characters that could be read before them."""
    ids = data.draw(outputs(kind).filter(bool))
    spelled = spelling(made(kind), skip_special_tokens=False)
    pattern = data.draw(
        st.sampled_from([r"\n", r"\pL\PL", r"\w\b", r"\W\B", ". .$", r"^.{3,5}\z", r"\x{8A9E}|bb"])
    )
    rules = StopRules(SamplingParams(stop_regex=(pattern,)), frozenset(), 99, Detokenizer(spelled))
    aside, text = Detokenizer(spelled), ""
    for count, token_id in enumerate(ids, 1):
        text += aside.push([token_id])
        matches = re2.search(pattern, text + aside.tail) is not None
        assert (rules.check(ids[:count]) is not None) == matches
        if matches:
            break


def test_a_line_end_that_is_a_byte_token_ends_the_answer():
    """A tail of ids that began inside a character hid it: the stop was seen three ids late, and shown."""
    tokenizer = made("SentencePiece")
    ids = of(tokenizer, "ab\u2581\U0001f600\nabab")
    shown, request = asyncio.run(answered(tokenizer, tuple(of(tokenizer, "a")), ids, stop=("\n",)))
    assert (request.output_ids, request.finish.matched) == (ids[:8], "\n")
    assert shown == [("a", 1), ("ab", 2), ("ab ", 3), ("ab \U0001f600", 8)]


def test_a_line_end_within_the_least_number_of_tokens_stays():
    tokenizer = made("SentencePiece")
    ids, least = of(tokenizer, "a\n\nb"), {"min_new_tokens": 2, "min_tokens_before_stop": 2}
    shown, request = asyncio.run(answered(tokenizer, tuple(of(tokenizer, "a")), ids, stop=("\n",), **least))
    assert (shown[-1], request.finish.matched) == (("a\n", 3), "\n")


def test_the_ids_of_text_that_waits_wait_too():
    """A special token that is skipped ends no run of bytes."""
    tokenizer = made("SentencePiece")
    ids = [*of(tokenizer, "a\n"), tokenizer.convert_tokens_to_ids("</s>"), *of(tokenizer, "b")]
    shown, _ = asyncio.run(answered(tokenizer, tuple(of(tokenizer, "a")), ids))
    assert shown == [("a", 1), ("a\nb", 4)]


def test_a_byte_that_fits_nowhere_breaks_its_whole_run():
    """Decoded in parts, the characters before it would stand, and all ids at once do not have them."""
    tokenizer = made("SentencePiece")
    detokenizer = Detokenizer(spelling(tokenizer, skip_special_tokens=True))
    ids = [*of(tokenizer, "a\u20ac"), tokenizer.convert_tokens_to_ids("<0xFF>"), *of(tokenizer, "b")]
    assert [detokenizer.push([token_id]) for token_id in ids] == ["a", "", "", "", "", "\ufffd" * 4 + "b"]


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("byte-level", "a"),
        ("byte-level", "\u0122"),  # the byte 0x80, which is no character however many there are
        ("SentencePiece", "a"),
        ("SentencePiece", "<0x0A>"),
        ("SentencePiece", "<0xFF>"),
        ("WordPiece", "##a"),
    ],
)
def test_what_is_decoded_for_an_id_does_not_grow(kind, token):
    tokenizer = made(kind)
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return tokenizer.decode(ids)

    detokenizer = Detokenizer(Spelling(decode, tokenizer.convert_ids_to_tokens))
    for _ in range(200):
        detokenizer.push([tokenizer.convert_tokens_to_ids(token)])
    assert max(decoded) < 16
