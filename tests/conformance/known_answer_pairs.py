"""Pairs for the chapter on known answers: what a parrot says, and one thing changed."""

from __future__ import annotations

from typing import Any

from pair import Pair
from stream_builder import Reply, change, incremental, whole

from tokenwire.checks.check import Target
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.recognition import KnownModel
from tokenwire.parrot.script import Script
from tokenwire.parrot.vocabulary import SIZE, Vocabulary, words_of
from tokenwire.record import Finish, Stream

LAW = Parrot(SIZE)
WORDS = words_of(Vocabulary.BYTE_LEVEL)
MODEL = KnownModel(LAW, WORDS, encoder(Vocabulary.BYTE_LEVEL), ours=True, seen_in="a probe")
PARROT = Target(model=MODEL)
EOS = min(WORDS.ends)


def letters(text: str) -> tuple[int, ...]:
    """Ids of one byte each."""
    return tuple(WORDS.pieces.index(bytes([byte])) for byte in text.encode())


SCRIPT = Script(letters("abcdef"))
PROMPT = SCRIPT.prompt(LAW, filler=letters("~")[0])
IDS = SCRIPT.ids
ENTRIES = [[LAW.logprob(token, token), token, None] for token in IDS]
TOP = [[[logprob, token, None] for token, logprob in LAW.top(leader, 2)] for leader in IDS]
CHOSEN = (700, 9)
OF_CHOSEN = [[[LAW.logprob(leader, token), token, None] for token in CHOSEN] for leader in IDS]
OF_PROMPT = [[None, PROMPT[0], None]] + [
    [LAW.logprob(PROMPT[place - LAW.lag(place)], token), token, None]
    for place, token in enumerate(PROMPT[1:], 1)
]
ASKED: dict[str, Any] = {
    "input_ids": (PROMPT,),
    "logprobs": True,
    "top_logprobs": 2,
    "chosen_ids": CHOSEN,
    "logprob_start": 0,
}


def full_reply(**fields: Any) -> Reply:
    """The first six ids of the script, with all that there is to tell."""
    found: dict[str, Any] = {
        "ids": IDS,
        "text": "abcdef",
        "series": {
            "output_token_logprobs": ENTRIES,
            "output_top_logprobs": TOP,
            "output_token_ids_logprobs": OF_CHOSEN,
        },
        "prompt_series": {"input_token_logprobs": OF_PROMPT},
        "counters": {"prompt_tokens": len(PROMPT)},
    }
    return Reply(**{**found, **fields})


def stopped(**fields: Any) -> Stream:
    """An answer that the stop string `ef` ended."""
    stream = full_reply(text="abcd", finish=Finish("stop", matched="ef"), **fields)
    return whole(stream, **ASKED, stop=("ef", "cde"[::-1]), max_new_tokens=9)  # the second is never spelled


def with_entry(name: str, entries: list[Any], position: int, entry: Any) -> Stream:
    """The whole answer with one entry of a series changed."""
    series = {**full_reply().series, name: [*entries[:position], entry, *entries[position + 1 :]]}
    return whole(full_reply(series=series), **ASKED)


RIGHT = whole(full_reply(), **ASKED)
STREAM = incremental(full_reply(), **ASKED)
AHEAD = change(change(STREAM, 1, text="bc"), 2, text="")
WRONG_PROMPT = [*OF_PROMPT[:3], [-0.5, PROMPT[3], None], *OF_PROMPT[4:]]
HALF = letters("é")[0]
CUT = Script((*IDS[:5], HALF)).prompt(LAW, filler=letters("~")[0])


def cut(text: str) -> Stream:
    """An answer whose budget ends within a character."""
    return whole(Reply(ids=(*IDS[:5], HALF), text=text), input_ids=(CUT,))


SPECIAL = next(token for token in WORDS.special if token not in WORDS.ends)
HIDING = Script((*letters("a"), SPECIAL, *letters("b")))


def hiding(offsets: list[int], *, finish: Finish | None = None) -> Stream:
    """A completion whose text hides one of its three ids, as vLLM 0.32.0 has it but for the offsets."""
    names = [WORDS.pieces[token].decode() for token in HIDING.ids]
    lists = {"tokens": names, "token_logprobs": [-0.01] * 3, "text_offset": offsets}
    reply = Reply(ids=HIDING.ids, text="ab", series=lists, finish=finish)
    prompt = HIDING.prompt(LAW, filler=letters("~")[0])
    return whole(reply, input_ids=(prompt,), logprobs=True, max_new_tokens=3, dialect="vllm-completions")


KNOWN_ANSWER_PAIRS = [
    Pair(
        "script-text-offsets-are-right",
        hiding([0, 1, 1]),
        hiding([0, 1, 14]),
        pointer="/text_offset",
        target=PARROT,
        why="the name of a hidden id is counted",
    ),
    Pair(
        "script-ids-are-said",
        STREAM,
        change(STREAM, 2, output_ids=[9]),
        event=2,
        pointer="/output_ids",
        target=PARROT,
    ),
    Pair(
        "script-ids-are-said",
        stopped(),
        stopped(ids=(*IDS, 9), series={}),
        pointer="/output_ids",
        target=PARROT,
        why="a stop that is missed",
    ),
    Pair(
        "script-finish-is-right",
        stopped(),
        change(stopped(), finish=Finish("length")),
        pointer="/finish",
        target=PARROT,
    ),
    Pair(
        "script-finish-is-right",
        stopped(),
        change(stopped(), finish=Finish("content_filter")),
        pointer="/finish",
        target=PARROT,
        why="a filter",
    ),
    Pair(
        "script-match-is-right",
        stopped(),
        change(stopped(), finish=Finish("stop", matched="edc")),
        pointer="/finish",
        target=PARROT,
    ),
    Pair(
        "script-counts-are-right",
        RIGHT,
        change(RIGHT, counters={"prompt_tokens": len(PROMPT) + 1}),
        pointer="/prompt_tokens",
        target=PARROT,
    ),
    Pair("script-text-is-right", stopped(), change(stopped(), text="abcde"), pointer="/text", target=PARROT),
    Pair(
        "script-text-is-right",
        cut("abcde\ufffd"),
        cut("abcde"),
        pointer="/text",
        target=PARROT,
        why="a character that is cut",
    ),
    Pair("script-text-so-far-is-right", STREAM, AHEAD, event=1, pointer="/text", target=PARROT),
    Pair(
        "script-logprobs-are-right",
        RIGHT,
        with_entry("output_token_logprobs", ENTRIES, 4, [-0.5, IDS[4], None]),
        pointer="/output_token_logprobs",
        target=PARROT,
    ),
    Pair(
        "script-top-logprobs-are-right",
        with_entry("output_top_logprobs", TOP, 3, TOP[3][::-1]),
        with_entry("output_top_logprobs", TOP, 3, TOP[2]),
        pointer="/output_top_logprobs",
        target=PARROT,
    ),
    Pair(
        "script-chosen-logprobs-are-right",
        RIGHT,
        with_entry("output_token_ids_logprobs", OF_CHOSEN, 0, OF_CHOSEN[0][::-1]),
        pointer="/output_token_ids_logprobs",
        target=PARROT,
    ),
    Pair(
        "script-prompt-logprobs-are-right",
        RIGHT,
        whole(full_reply(prompt_series={"input_token_logprobs": WRONG_PROMPT}), **ASKED),
        pointer="/input_token_logprobs",
        target=PARROT,
    ),
]
