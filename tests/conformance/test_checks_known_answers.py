"""Known answers: what servers may do otherwise is left in peace, what recorded ones did wrong is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from known_answer_pairs import (
    ASKED,
    EOS,
    LAW,
    PARROT,
    PROMPT,
    SCRIPT,
    TOP,
    WORDS,
    WRONG_PROMPT,
    full_reply,
    letters,
)
from stream_builder import ABORT, Reply, change, incremental, whole, with_exchange

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import SentField
from tokenwire.checks.check import CHECKS
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.parrot.law import Repeater
from tokenwire.parrot.script import Script
from tokenwire.record import Finish, Stream
from tokenwire.requirement import Level, load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.noise import Noise
from tokenwire.wire.exchange import Ending, HttpRequest

ROWS = [name for name, row in load_requirements().items() if row.oracle == "script"]
TILDE = letters("~")[0]


def observe(stream: Stream, rows: Sequence[str] = tuple(ROWS), target: Any = PARROT) -> list[Observation]:
    seen: list[Observation] = []
    for name in rows:
        on_stream = CHECKS[name].on_stream
        assert on_stream is not None
        seen += on_stream(stream, target)
    return seen


def wrong(stream: Stream) -> set[str]:
    """The requirements that an answer violates."""
    return {name for name in ROWS if any(not observation.holds for observation in observe(stream, [name]))}


def answer(ids: Sequence[int], text: str, finish: Finish, script: Sequence[int], **asked: Any) -> Stream:
    """An answer to a prompt that says a script."""
    prompt = Script(tuple(script)).prompt(LAW, TILDE)
    reply = Reply(ids=tuple(ids), finish=finish, counters={"prompt_tokens": len(prompt)})
    return change(whole(reply, input_ids=(prompt,), **{"max_new_tokens": 16, **asked}), text=text)


def stopped(by: object) -> Finish:
    return Finish("stop", matched=by)


ABC_QZ = letters("abcQZ")
Z = letters("Z")[0]
BOTH = {"stop": ("QZ",), "stop_token_ids": (Z,)}

LEGAL = {
    "a stop id and a stop string on one token: the string": answer(
        ABC_QZ, "abc", stopped("QZ"), ABC_QZ, **BOTH
    ),
    "a stop id and a stop string on one token: the id": answer(ABC_QZ, "abcQ", stopped(Z), ABC_QZ, **BOTH),
    "several stops: the first in the text": answer(ABC_QZ, "abc", stopped("QZ"), ABC_QZ, stop=("QZ", "cQZ")),
    "several stops: the longer one": answer(ABC_QZ, "ab", stopped("cQZ"), ABC_QZ, stop=("QZ", "cQZ")),
    "nothing named": answer(ABC_QZ, "ab", stopped(None), ABC_QZ, stop=("QZ", "cQZ")),
    "the end of the text": answer((*ABC_QZ, EOS), "abcQZ", stopped(EOS), (*ABC_QZ, EOS)),
    "an abort in a character": answer(
        letters("a\u00e9")[:2], "a\ufffd", ABORT, letters("a\u00e9b"), max_new_tokens=9
    ),
    "text that lags": change(
        change(incremental(full_reply(), input_ids=(PROMPT,)), 1, text=""), 2, text="bc"
    ),
}


@pytest.mark.parametrize("case", LEGAL)
def test_what_servers_may_do_is_left_in_peace(case: str) -> None:
    assert wrong(LEGAL[case]) == set()
    assert observe(LEGAL[case]), "and looked at"


def test_where_servers_differ_the_id_that_ended_a_choice_is_counted_or_not():
    prompt = Script((*ABC_QZ, EOS)).prompt(LAW, TILDE)
    counters = {"prompt_tokens": len(prompt)}
    reply = Reply(ids=None, text="abcQZ", counted=False, finish=stopped(None), counters=counters)
    stream = whole(reply, input_ids=(prompt,), max_new_tokens=16)
    legal_counts = {"openai-chat": [5, 6], "openai-completions": [5, 6]}
    legal_counts |= {"vllm-chat": [6], "vllm-completions": [6]}
    for dialect, legal in legal_counts.items():
        for count in (4, 5, 6, 7):
            usage = {"completion_tokens": count, "prompt_tokens": len(prompt)}
            seen = observe(replace(stream, dialect=dialect, usage=usage), ["script-counts-are-right"])
            assert all(observation.holds for observation in seen) is (count in legal), (dialect, count)
            assert seen


def test_a_logprob_of_a_prompt_is_named_by_its_place_in_the_prompt() -> None:
    scored = whole(full_reply(prompt_series={"input_token_logprobs": WRONG_PROMPT}), **ASKED)
    (seen,) = observe(scored, ["script-prompt-logprobs-are-right"])
    assert seen.message.startswith("the logprob of prompt id 3 is -0.5, but ")


@pytest.mark.parametrize("text", ["\ufffdb", "\u00e9b"])
def test_a_prompt_that_ends_within_a_character_may_be_gone_on_with_or_not(text: str) -> None:
    first, second = letters("\u00e9")
    prompt = (second, *letters("b"), *(TILDE,) * 13, first)
    reply = Reply(ids=prompt[:2], counters={"prompt_tokens": len(prompt)})
    stream = whole(reply, input_ids=(prompt,), max_new_tokens=2)
    assert wrong(change(stream, text=text)) == set()
    assert wrong(change(stream, text=f"~~{text}")) == {"script-text-is-right"}


WRONG = {
    "a stop that is missed (S1)": (
        answer(
            (*ABC_QZ, *letters("!")),
            "abcQZ!",
            Finish("length"),
            ABC_QZ + letters("!"),
            stop=("QZ",),
            max_new_tokens=6,
        ),
        {"script-ids-are-said", "script-text-is-right", "script-finish-is-right", "script-counts-are-right"},
    ),
    "the head of a stop that is shown (S2)": (
        answer(ABC_QZ, "abcQ", stopped("QZ"), ABC_QZ, stop=("QZ",)),
        {"script-text-is-right"},
    ),
    "the end that comes with the budget is told as length (O5)": (
        answer((*ABC_QZ, EOS), "abcQZ", Finish("length"), (*ABC_QZ, EOS), max_new_tokens=6),
        {"script-finish-is-right"},
    ),
    "a U+FFFD of its own that is lost at the end (V1)": (
        answer(letters("ab\ufffd"), "ab", Finish("length"), letters("ab\ufffd"), max_new_tokens=5),
        {"script-text-is-right"},
    ),
    "the prompt that is shown (V3)": (
        answer(letters("abc"), "abc~~~~abc", Finish("length"), letters("abc"), max_new_tokens=3),
        {"script-text-is-right"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_recorded_servers_did_wrong_is_found(case: str) -> None:
    stream, expected = WRONG[case]
    assert wrong(stream) == expected


def test_only_a_character_that_is_cut_is_a_matter_of_taste() -> None:
    cut = answer(letters("ab\u00e9")[:3], "ab", Finish("length"), letters("ab\u00e9"), max_new_tokens=3)
    (violation,) = (observation for observation in observe(cut) if not observation.holds)
    assert violation.level is Level.SHOULD
    whole_one, _ = WRONG["a U+FFFD of its own that is lost at the end (V1)"]
    (violation,) = (observation for observation in observe(whole_one) if not observation.holds)
    assert violation.level is None


def in_place_of_top(dialect: str, chosen: tuple[int, ...], *, off: float = 0.0) -> Stream:
    """An answer to `logprob_token_ids`, as vLLM 0.32.0 writes it: the sampled token, then these."""
    field = "prompt" if dialect == "vllm-completions" else "input_ids"
    body = {field: list(PROMPT), "max_tokens": 6, "temperature": 0, "logprob_token_ids": list(chosen)}
    body["logprobs"] = 2 if dialect == "vllm-completions" else True
    path = load_dialects()[dialect].endpoint.path
    asked = load_dialects()[dialect].read_asked(HttpRequest("POST", path, body))
    assert (asked.chosen_in_top, asked.top_logprobs) == (chosen, 0)
    rows = [
        [(f"<{token}>", LAW.logprob(item, token) + off * (token == chosen[-1])) for token in (item, *chosen)]
        for item in SCRIPT.ids
    ]
    if dialect == "vllm-completions":
        series: dict[str, Any] = {
            "token_logprobs": [row[0][1] for row in rows],
            "tokens": [row[0][0] for row in rows],
            "top_logprobs": [dict(row) for row in rows],
        }
    else:
        named = [[{"token": text, "logprob": number} for text, number in row] for row in rows]
        series = {"logprobs_content": [{**row[0], "top_logprobs": row} for row in named]}
    stream = whole(full_reply(series=series, prompt_series={}), dialect=dialect)
    return replace(stream, asked=replace(asked, input_ids=(PROMPT,), greedy=True))


@pytest.mark.parametrize("dialect", ["vllm-chat", "vllm-completions"])
def test_chosen_ids_may_stand_in_the_place_of_the_likeliest(dialect: str) -> None:
    rows = ("script-chosen-logprobs-are-right", "script-top-logprobs-are-right")
    right = observe(in_place_of_top(dialect, (700, 9)), rows)
    assert [observation.holds for observation in right] == [True]
    assert [
        observation.holds for observation in observe(in_place_of_top(dialect, (700, 9), off=5.0), rows)
    ] == [False]
    for name in ("top-logprobs-have-k", "top-logprobs-fall"):
        on_stream = CHECKS[name].on_stream
        assert on_stream is not None
        assert list(on_stream(in_place_of_top(dialect, (700, 9)), PARROT)) == []


UNJUDGED = {
    "drawn": {"greedy": False},
    "beyond the context": {"max_new_tokens": 9000},
    "no budget": {"max_new_tokens": None},
    "ids of no vocabulary": {"input_ids": ((5, 9999),)},
    "messages that are not rendered here": {
        "input_ids": None,
        "sent": {"messages": SentField("messages", ([{"role": "user", "content": [{"type": "image"}]}],))},
    },
}


@pytest.mark.parametrize("case", UNJUDGED)
def test_nothing_is_said_where_no_answer_is_known(case: str) -> None:
    assert observe(whole(full_reply(), **{"input_ids": (PROMPT,), **UNJUDGED[case]})) == []


def test_a_context_that_is_advertised_bounds_what_is_judged() -> None:
    stream = whole(full_reply(), input_ids=(PROMPT,), max_new_tokens=6)
    assert observe(stream)
    small = replace(PARROT, advertised=Advertised(context_length=len(PROMPT) + 5))
    assert observe(whole(full_reply(), input_ids=(PROMPT,), max_new_tokens=6), target=small) == []


def test_an_answer_that_broke_off_is_held_against_the_beginning() -> None:
    stream = incremental(full_reply(finish=None), input_ids=(PROMPT,), max_new_tokens=9)
    broken = with_exchange(stream, ending=Ending.TRUNCATED)
    assert wrong(broken) == set()
    assert wrong(change(broken, 3, output_ids=[9])) >= {"script-ids-are-said"}


def test_of_another_make_no_logprobs_are_judged() -> None:
    assert PARROT.model is not None
    other = replace(PARROT, model=replace(PARROT.model, law=Repeater(len(PROMPT))))
    stream = whole(full_reply(), input_ids=(PROMPT,), logprobs=True, top_logprobs=2)
    seen = observe(stream, target=other)
    assert seen
    assert all(observation.holds and "logprobs" not in observation.place.pointer for observation in seen)


@pytest.mark.parametrize("by", [0.002, 0.02])
def test_logprobs_may_lie_as_far_apart_as_those_of_one_request(by: float) -> None:
    """On a server whose arithmetic depends on the batch, right logprobs are so only up to its rounding."""

    def moved(entries: Sequence[Any]) -> list[Any]:
        return [
            moved(entry)
            if isinstance(entry[0], (list, tuple))
            else [None if entry[0] is None else entry[0] - by, *entry[1:]]
            for entry in entries
        ]

    right = full_reply()
    found = replace(
        right,
        series={name: moved(entries) for name, entries in right.series.items()},
        prompt_series={name: moved(entries) for name, entries in right.prompt_series.items()},
    )
    stream = whole(found, **ASKED)
    rows = [name for name in ROWS if "logprobs" in name]
    assert any(not observation.holds for observation in observe(stream, rows))
    noisy = replace(PARROT, noise=Noise({("any", "any"): 0.002}))
    assert all(observation.holds for observation in observe(stream, rows, noisy)) is (by < 0.008)


def test_top_logprobs_under_texts_may_share_an_entry_and_keep_the_greatest() -> None:
    def completions(rows: list[dict[str, float]]) -> Stream:
        series = {
            "token_logprobs": [row[0][0] for row in TOP],
            "top_logprobs": rows,
            "tokens": list("abcdef"),
        }
        stream = full_reply(series=series, prompt_series={}, ids=None)
        return whole(stream, input_ids=(PROMPT,), logprobs=True, top_logprobs=2, dialect="sglang-completions")

    full = [{"a": row[0][0], "b": row[1][0]} for row in TOP]
    assert wrong(completions(full)) == set()
    assert wrong(completions([{"": row[0][0]} for row in TOP])) == set()
    assert wrong(completions([*full[:2], {"": TOP[2][1][0]}, *full[3:]])) == {"script-top-logprobs-are-right"}


def test_the_right_entry_is_shown_in_the_form_of_the_reported_one() -> None:
    series = {"token_logprobs": [0.5, *(row[0][0] for row in TOP[1:])], "tokens": list("abcdef")}
    stream = full_reply(series=series, prompt_series={}, ids=None)
    stream = whole(stream, input_ids=(PROMPT,), logprobs=True, dialect="sglang-completions")
    (seen,) = (one for one in observe(stream, ["script-logprobs-are-right"]) if not one.holds)
    assert (seen.expected, seen.actual) == ([TOP[0][0][0]], [0.5])


def test_the_script_of_these_tests_is_said() -> None:
    assert LAW.answer(PROMPT, 6) == SCRIPT.ids
    assert WORDS.pieces[EOS] == b"<|endoftext|>"


def test_a_character_that_an_abort_cuts_may_be_shown_before_the_chunk_that_says_so() -> None:
    halves = tuple(WORDS.pieces.index(bytes([byte])) for byte in "😀".encode()[:2])
    script = Script((*letters("abcd"), *halves, *letters("e")))
    asked = {**ASKED, "input_ids": (script.prompt(LAW, letters("~")[0]),), "max_new_tokens": 20}
    cut = incremental(full_reply(ids=script.ids[:6], text="abcd", finish=Finish("abort")), **asked)
    whole_so_far = change(change(cut, 4, text="\ufffd"), 5, text="")

    so_far = "script-text-so-far-is-right"
    assert so_far not in wrong(whole_so_far)
    assert so_far in wrong(change(whole_so_far, 2, text="\ufffd")), (
        "what follows is no part of the right text"
    )
