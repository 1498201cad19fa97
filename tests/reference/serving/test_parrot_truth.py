"""The truth that is computed from a request is the record that the reference delivers, whole and streamed."""

from __future__ import annotations

import random
from functools import cache

import pytest

from tokenwire.parrot.law import Parrot
from tokenwire.parrot.script import Script, Truth, truth
from tokenwire.parrot.vocabulary import SIZE, Vocabulary, words_of
from tokenwire.record import Asked
from tokenwire_reference.engine.engine import Engine
from tokenwire_reference.models.loading import load_model

LAW = Parrot(SIZE)
WORDS = words_of(Vocabulary.BYTE_LEVEL)
TEXTS = (
    "The parrot says ",
    "漢字かな交じり文。",
    "😀🦖👩‍💻",
    "xaaab\n\n",
    "é ж ไ ",
    "one two three ",
    "</think>",
    "\ufffd",
    "Q",
    "Z",
)
STOPS = ("aab", "文", "three", "\n\n", " says", "🦖", "nowhere", "o t", "\ufffd", "<|im_start|>", "QZ")
TOP, CHOSEN = 5, (700, 9, 10)


@cache
def parrot():
    return load_model("builtin:parrot")


def drawn(seed: int) -> tuple[tuple[int, ...], Asked]:
    """A script of texts, single bytes and ends, spelled in pieces or in bytes, and how it is asked for."""
    draw = random.Random(seed)
    ids: list[int] = []
    while len(ids) < draw.randrange(1, 50):
        text = draw.choice(TEXTS)
        pieces = (
            Script.of_text(text, WORDS).ids
            if draw.random() < 0.6
            else (WORDS.pieces.index(bytes([byte])) for byte in text.encode())
        )
        ids += pieces
        if draw.random() < 0.2:
            ids.append(draw.choice((draw.randrange(SIZE), *WORDS.special)))
    ignore_eos = draw.random() < 0.3
    asked = Asked(
        greedy=True,
        max_new_tokens=draw.randrange(1, len(ids) + 4),
        stop=tuple(draw.sample(STOPS, draw.randrange(3))),
        stop_token_ids=() if ignore_eos else tuple(draw.sample(ids, draw.randrange(2))),
        ignore_eos=ignore_eos,
        no_stop_trim=draw.random() < 0.3,
    )
    script = Script((*ids, *WORDS.ends) if draw.random() < 0.5 else tuple(ids))
    return script.prompt(LAW, filler=9), asked


def body_of(prompt: tuple[int, ...], asked: Asked, interval: int | None) -> dict[str, object]:
    sampling = {
        "temperature": 0,
        "max_new_tokens": asked.max_new_tokens,
        "stop": list(asked.stop),
        "stop_token_ids": list(asked.stop_token_ids),
        "ignore_eos": asked.ignore_eos,
        "no_stop_trim": asked.no_stop_trim,
    } | ({"stream_interval": interval} if interval else {})
    return {
        "input_ids": list(prompt),
        "sampling_params": sampling,
        "return_logprob": True,
        "top_logprobs_num": TOP,
        "token_ids_logprob": list(CHOSEN),
        "logprob_start_len": 0,
        "stream": interval is not None,
    }


@pytest.mark.parametrize("interval", [None, 1, 3, 50])
def test_computed_and_delivered_records_are_one(answers, call, read_events, interval: int | None) -> None:
    requests = [drawn(seed) for seed in range(30)]
    calls = [call("/generate", body_of(prompt, asked, interval)) for prompt, asked in requests]
    responses = answers(Engine(parrot()), *calls, tokenizer=parrot().tokenizer)
    for (prompt, asked), response in zip(requests, responses, strict=True):
        known = truth(LAW, WORDS, prompt, asked)
        assert known is not None
        assert response.status_code == 200, response.text
        parts = [response.json()] if interval is None else read_events(response)
        for part in parts:
            seen = len(part["output_ids"])
            assert tuple(part["output_ids"]) == known.ids[:seen]
            assert known.text.startswith(part["text"])
        last, info = parts[-1], parts[-1]["meta_info"]
        assert (tuple(last["output_ids"]), last["text"]) == (known.ids, known.text)
        assert info["finish_reason"]["type"] == known.finish
        assert known.finish == "length" or info["finish_reason"]["matched"] in known.matched
        assert_logprobs(info, known)
        told = [entry[0] for entry in info["input_token_logprobs"]]
        assert told[0] is None
        assert told[1:] == pytest.approx(LAW.logprobs(prompt), abs=1e-4)


def assert_logprobs(info, known: Truth) -> None:
    """Logprobs, runners-up and the logprobs of chosen ids are those of the law."""
    assert [entry[1] for entry in info["output_token_logprobs"]] == list(known.ids)
    assert [entry[0] for entry in info["output_token_logprobs"]] == pytest.approx(known.logprobs, abs=1e-5)
    for told, top in zip(info["output_top_logprobs"], known.top(TOP), strict=True):
        assert [one[1] for one in told] == [one for one, _ in top]
        assert [one[0] for one in told] == pytest.approx([logprob for _, logprob in top], abs=1e-5)
    for told, chosen in zip(info["output_token_ids_logprobs"], known.chosen(CHOSEN), strict=True):
        assert [one[1] for one in told] == list(CHOSEN)
        assert [one[0] for one in told] == pytest.approx(chosen, abs=1e-4)
