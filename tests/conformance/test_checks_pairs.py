"""For every requirement two answers that differ in one thing: its check tells them apart, and says where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from abort_and_invariance_pairs import ABORT_AND_INVARIANCE_PAIRS
from channel_pairs import CHANNEL_PAIRS
from constraint_pairs import CONSTRAINT_PAIRS
from conversation_pairs import CONVERSATION_PAIRS
from decision_pairs import DECISION_PAIRS
from finish_and_error_pairs import FINISH_AND_ERROR_PAIRS
from item_pairs import ITEM_PAIRS
from known_answer_pairs import KNOWN_ANSWER_PAIRS
from logprob_pairs import LOGPROB_PAIRS
from pair import Pair, Subject
from result_pairs import RESULT_PAIRS
from rollout_pairs import ROLLOUT_PAIRS
from sampling_pairs import SAMPLING_PAIRS
from session_pairs import SESSION_PAIRS
from split_pairs import SPLIT_PAIRS
from stream_builder import (
    GONE,
    IDS,
    PROMPT,
    STOP,
    TEXT,
    Reply,
    append,
    change,
    change_event,
    chosen_logprobs,
    cumulative,
    incremental,
    logprobs,
    named,
    refusal,
    top_logprobs,
    whole,
    with_exchange,
)
from text_pairs import TEXT_PAIRS

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Wanted
from tokenwire.checks.check import CHECKS, Answers, Target
from tokenwire.checks.evidence import Observation
from tokenwire.record import Delivery, Finish, Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending


def observe(requirement: str, subject: Subject, target: Target | None = None) -> list[Observation]:
    """What the check of a requirement judges in a stream, a comparison or a run."""
    return [
        observation
        for observation in _observed(requirement, subject, target)
        if not (observation.condition_only and observation.message)
    ]


def why_left_out(requirement: str, subject: Subject, target: Target | None = None) -> list[str]:
    """The reasons of what it does not judge, though it is about it."""
    seen = _observed(requirement, subject, target)
    return [observation.message for observation in seen if observation.condition_only and observation.message]


def _observed(requirement: str, subject: Subject, target: Target | None) -> Iterator[Observation]:
    check, target = CHECKS[requirement], target or Target()
    seen: Iterator[Observation]
    if isinstance(subject, Comparison):
        assert check.on_comparison is not None
        seen = check.on_comparison(subject, target)
    elif isinstance(subject, tuple):
        assert check.on_run is not None
        seen = check.on_run(subject, target)
    else:
        assert check.on_stream is not None
        seen = check.on_stream(subject, target)
    return seen


MIRROR = Reply(
    series={"mirror_token_id": IDS, "mirror_position": range(2, 8)},
    customized=frozenset({"mirror_token_id", "mirror_position"}),
)
LOGPROBS = Reply(
    series={
        "output_token_logprobs": logprobs(),
        "output_top_logprobs": top_logprobs(),
        "output_token_ids_logprobs": chosen_logprobs(),
    },
    prompt_series={
        "input_token_logprobs": [[None, 1, None], [-3.0, 2, None], [-4.0, 3, None]],
        "input_top_logprobs": [None, [[-1.0, 8, None], [-2.0, 9, None]], [[-1.0, 8, None], [-2.0, 9, None]]],
    },
)
ASKED: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "chosen_ids": (7, 5), "logprob_start": 0}
LESS = named(change(incremental(), 2, text="e"), "generate/short")
WITH_LOGPROBS = Reply(series={"output_token_logprobs": logprobs()})
RETRACTED = Reply(counters={"prompt_tokens": 3, "num_retractions": 0})
GOES_ON = named(whole(), "one/goes-on")


def turns(*cached: int | None) -> tuple[Stream, ...]:
    """Answers to one prompt, whole and streamed by turns, each with so many cached tokens."""
    return tuple(
        named(
            (whole if turn % 2 else incremental)(
                Reply(counters={} if count is None else {"cached_tokens": count}), prompt_key="p"
            ),
            f"one/{turn}",
        )
        for turn, count in enumerate(cached)
    )


def arriving(apart: float, first: float = 2.0) -> Stream:
    """A stream of many events, so many seconds one after the other, the first after so many."""
    stream = incremental(Reply(ids=tuple(range(64)), text="x" * 64))
    emissions = tuple(
        replace(
            emission,
            event=replace(emission.event, place=emission.event.place._replace(time=first + apart * index)),
        )
        for index, emission in enumerate(stream.choices[0].emissions)
    )
    return replace(stream, choices=(replace(stream.choices[0], emissions=emissions),))


SHORT = Reply(ids=IDS[:2], text=TEXT[:2])
TWO_PROMPTS: dict[str, Any] = {
    "input_ids": (PROMPT, (4, 5)),
    "prompts": 2,
    "n": 1,
    "batch": True,
    "max_new_tokens": None,
}
HIDDEN_STATES = (Wanted("return_hidden_states", ("hidden_states",)),)
BESIDE = (Wanted("return_input_ids_in_sglext", (), ("/sglext/input_ids",)),)
WITH_TEXTS: dict[str, Any] = {"logprobs": True, "logprob_texts": True}
ECHO = Reply(prompt_ids=PROMPT)
BATCH: dict[str, Any] = {"input_ids": (PROMPT, (4, 5)), "prompts": 2, "n": 1, "batch": True}
SECOND = Reply(prompt_ids=(4, 5), counters={"prompt_tokens": 2})
LONG = Reply(
    ids=range(100, 160),
    text="x" * 60,
    series={"mirror_token_id": range(100, 160)},
    customized=frozenset({"mirror_token_id"}),
)
CHAT = "sglang-chat"
CHAT_TOLD = Reply(
    ids=None,
    counted=False,
    counters={},
    details={"request_id": "c-1", "role": "assistant", "content": TEXT},
)
META = {"completion_tokens": len(IDS)}
CHAT_TITO = Reply(
    series={"output_token_logprobs": logprobs()},
    details={"request_id": "c-1", "role": "assistant", "content": TEXT, "meta_info": META},
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
CACHE = Reply(
    counters={"prompt_tokens": 3, "cached_tokens": 2},
    details={"request_id": "r-1", "cached_tokens_details": {"device": 1, "host": 1}},
)
STOPPED = Reply(ids=IDS[:4], text="abc", finish=Finish("stop", matched="de"))
TOO_LIKELY = [[[-0.1, IDS[3], None], [-0.2, 90, None]]]
"""Two alternatives that are both likelier than not."""
VAIN: dict[str, Any] = {"stream": True, "dialect": CHAT, "return_meta_info": True}
STREAMED_VAIN: dict[str, Any] = {"dialect": CHAT, "return_meta_info": True}


def stopped_stream(shown: str) -> Stream:
    """A stream that showed some text and was then ended by the stop string `de`, after `abc`."""
    reply = Reply(finish=Finish("stop", matched="de"))
    stream = change(incremental(reply, sizes=(3, 3), stop=("de",)), 0, text=shown)
    return change(named(stream, "generate/stopped"), 1, text="")


def answered(ids: tuple[int, ...], prompt: tuple[int, ...] = PROMPT, **options: Any) -> Stream:
    """A whole greedy answer to a prompt of ids."""
    reply = Reply(ids=ids, text="x" * len(ids), counters={"prompt_tokens": len(prompt)})
    return whole(reply, input_ids=(prompt,), **options)


def against_whole(stream: Stream, reply: Reply | None = None) -> Comparison:
    return Comparison(named(whole(reply or Reply()), "generate/whole"), stream)


def at_intervals(stream: Stream) -> Comparison:
    baseline = named(incremental(stream_interval=1), "generate/interval-1")
    return Comparison(baseline, stream)


def control_after_refusal(control: Stream) -> tuple[Stream, ...]:
    before = named(whole(), "generate/before")
    return (before, refusal(input_ids=((),)), named(control, "generate/control"))


TEXT_ANSWER = named(
    whole(ECHO, input_ids=None, text_prompt=True, return_prompt_token_ids=True), "generate/text"
)
FOUR = Target(stream_interval=4)
NOT_UTF8 = replace(incremental(), undecodable_at=17)
FIRST_HALF = (*PROMPT, *IDS[:2])
AS_CHAT: dict[str, Any] = {"dialect": CHAT, "ids_key": "same"}
SCORED = whole(Reply(series={"output_token_logprobs": logprobs()}), ids_key="same")


def as_chat_scored(first: float) -> Stream:
    """The same in chat's shape, the first of whose logprobs may be another."""
    entries = [
        {"token": "x", "logprob": first if place == 0 else logprob, "bytes": None, "top_logprobs": []}
        for place, (logprob, *_) in enumerate(logprobs())
    ]
    return whole(Reply(series={"logprobs_content": entries}), **AS_CHAT)


PAIRS = [
    # The abstract record.
    Pair("answer-fits-schema", whole(), change_event(whole(), schema_errors=("/text: is missing",))),
    Pair("choices-complete", whole(Reply(), Reply()), whole(Reply(), n=2, batch=True)),
    Pair(
        "one-finish-per-choice",
        incremental(),
        append(incremental(), lambda last: replace(last, text="", output_ids=[])),
        event=6,
        pointer="/finish",
    ),
    Pair("one-finish-per-choice", cumulative(), change(cumulative(), finish=GONE), event=5, why="none"),
    Pair(
        "finish-comes-last",
        append(incremental(), lambda last: replace(last, text="", output_ids=[], finish=None)),
        append(incremental(), lambda last: replace(last, text="!", output_ids=[], finish=None)),
        event=6,
    ),
    Pair("finish-type-is-known", whole(), change(whole(), finish=Finish("done")), pointer="/finish"),
    Pair(
        "stop-has-a-cause",
        whole(Reply(finish=Finish("stop", matched=16))),
        whole(Reply(finish=Finish("stop", matched=15))),
        pointer="/finish",
        why="stopped by another id than the last",
    ),
    Pair(
        "stop-has-a-cause",
        whole(ignore_eos=True),
        whole(Reply(finish=STOP), ignore_eos=True),
        pointer="/finish",
        why="stopped without a stop condition",
    ),
    Pair("ids-are-token-ids", incremental(), change(incremental(), 3, output_ids=[14.0]), 3, "/output_ids"),
    Pair(
        "ids-are-token-ids",
        whole(),
        change(whole(), output_ids=None, pointers={"output_ids": "/output_ids"}),
        pointer="/output_ids",
        why="null",
    ),
    Pair(
        "ids-are-counted",
        incremental(),
        change(incremental(), counters={"completion_tokens": 7}),
        5,
        "/completion_tokens",
    ),
    Pair(
        "counter-follows-ids",
        cumulative(),
        change(cumulative(), 2, counters={"completion_tokens": 2}),
        2,
        "/completion_tokens",
    ),
    Pair(
        "counters-never-fall",
        incremental(),
        change(incremental(), 4, counters={"completion_tokens": 3}),
        4,
        "/completion_tokens",
    ),
    Pair(
        "prompt-tokens-constant",
        incremental(),
        change(incremental(), 2, counters={"prompt_tokens": 4}),
        2,
        "/prompt_tokens",
    ),
    Pair(
        "cached-within-prompt",
        whole(CACHE),
        change(whole(CACHE), counters={"cached_tokens": 4}),
        pointer="/cached_tokens",
    ),
    Pair(
        "cached-details-add-up",
        whole(CACHE),
        change(whole(CACHE), details={"cached_tokens_details": {"device": 2, "host": 1}}),
        pointer="/cached_tokens_details",
    ),
    Pair(
        "cached-details-where-cached",
        whole(Reply(counters={"cached_tokens": 0}, details={"cached_tokens_details": None})),
        whole(
            Reply(counters={"cached_tokens": 0}, details={"cached_tokens_details": {"device": 0, "host": 0}})
        ),
        pointer="/cached_tokens_details",
    ),
    Pair("budget-is-kept", incremental(), incremental(max_new_tokens=5), 5, "/output_ids"),
    Pair("length-means-budget", whole(), whole(max_new_tokens=8), pointer="/finish"),
    Pair(
        "request-ids-are-unique",
        (named(whole(), "one/a"), change(named(whole(), "one/b"), details={"request_id": "r-2"})),
        (named(whole(), "one/a"), named(whole(), "one/b")),
        pointer="/request_id",
    ),
    Pair(
        "finish-length-counts-the-ids",
        whole(Reply(finish=Finish("length", length=6))),
        whole(Reply(finish=Finish("length", length=7))),
        pointer="/finish",
    ),
    Pair(
        "answer-names-its-model",
        whole(Reply(details={"model": "gpt-9-2031-01-01"}), model="gpt-9"),
        whole(Reply(details={"model": "gpt-8"}), model="gpt-9"),
        pointer="/model",
    ),
    Pair(
        "answer-names-its-model",
        whole(Reply(details={"model": "tiny"}), model="default"),
        whole(Reply(details={"model": "other"}), model="default"),
        pointer="/model",
        target=Target(advertised=Advertised(models=frozenset({"tiny"}))),
        why="one that the server lists",
    ),
    Pair(
        "cached-tokens-are-told-alike",
        turns(0, 0, 2),
        turns(0, None, 2),
    ),
    Pair(
        "stop-is-named",
        (
            GOES_ON,
            whole(Reply(ids=IDS[:3], text="abc", finish=Finish("stop", matched=13)), stop_token_ids=(13,)),
        ),
        (GOES_ON, whole(Reply(ids=IDS[:3], text="abc", finish=STOP), stop_token_ids=(13,))),
        pointer="/finish",
    ),
    Pair(
        "stop-is-named",
        (whole(Reply(finish=Finish("stop", matched="g")), stop=("g",), ignore_eos=True, max_new_tokens=9),),
        (whole(Reply(finish=STOP), stop=("g",), ignore_eos=True, max_new_tokens=9),),
        pointer="/finish",
        why="a stop string",
    ),
    Pair(
        "stream-comes-in-a-burst",
        (arriving(0.0), arriving(0.02)),
        (arriving(0.0), arriving(0.0)),
        event=63,
    ),
    Pair(
        "stream-comes-in-a-burst",
        (arriving(0.0001, first=0.12), arriving(0.0006, first=0.5)),
        (arriving(0.0001, first=0.12), arriving(0.0001, first=0.12)),
        event=63,
        why="large events",
    ),
    Pair(
        "budget-is-kept",
        whole(Reply(), SHORT, **TWO_PROMPTS, budgets=(6, 2)),
        whole(Reply(), SHORT, **TWO_PROMPTS, budgets=(6, 1)),
        pointer="/output_ids",
        why="a budget for each prompt",
    ),
    Pair(
        "length-means-budget",
        whole(Reply(), SHORT, **TWO_PROMPTS, budgets=(6, 2)),
        whole(Reply(), SHORT, **TWO_PROMPTS, budgets=(6, 3)),
        pointer="/finish",
        why="a budget for each prompt",
    ),
    Pair(
        "zero-budget-has-no-ids",
        whole(Reply(ids=(), text="", series={"output_token_logprobs": ()})),
        change(
            whole(Reply(ids=(), text="", series={"output_token_logprobs": ()})),
            series={"output_token_logprobs": [[-0.5, 11, None]]},
        ),
        pointer="/output_token_logprobs",
    ),
    Pair(
        "request-id-constant",
        incremental(request_id="r-1"),
        change(incremental(request_id="r-1"), 3, details={"request_id": "r-2"}),
        3,
        "/request_id",
    ),
    Pair(
        "request-id-is-the-clients",
        whole(Reply(details={"request_id": "mine"}), request_id="mine"),
        whole(Reply(details={"request_id": "another"}), request_id="mine"),
        pointer="/request_id",
    ),
    Pair("usage-adds-up", whole(usage=USAGE), whole(usage=USAGE | {"total_tokens": 8})),
    Pair("usage-counts-ids", whole(usage=USAGE), whole(usage=USAGE | {"completion_tokens": 5})),
    # Delivery.
    Pair(
        "one-mode-per-stream",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 1, series={"output_token_logprobs": logprobs()[:2]}),
        1,
        "/output_token_logprobs",
    ),
    Pair(
        "one-mode-per-stream",
        cumulative(),
        replace(
            cumulative(),
            choices=tuple(
                replace(c, emissions=tuple(replace(e, text=TEXT[i]) for i, e in enumerate(c.emissions)))
                for c in cumulative().choices
            ),
        ),
        5,
        "/text",
        why="incremental text among cumulative ids",
    ),
    Pair(
        "mode-is-advertised",
        incremental(),
        cumulative(),
        1,
        "/output_ids",
        Target(advertised_delivery=Delivery.INCREMENTAL),
    ),
    Pair(
        "cumulative-ids-extend",
        cumulative(),
        change(cumulative(), 3, output_ids=[11, 12, 99, 14]),
        3,
        "/output_ids",
    ),
    Pair("cumulative-text-extends", cumulative(), change(cumulative(), 3, text="abX"), 3, "/text"),
    Pair(
        "cumulative-series-extend",
        cumulative(MIRROR),
        change(cumulative(MIRROR), 3, series={"mirror_position": [2, 3, 9, 5]}),
        3,
        "/mirror_position",
    ),
    Pair(
        "incremental-ids-are-new",
        incremental(),
        change(incremental(), 2, output_ids=[12, 13]),
        2,
        "/output_ids",
    ),
    Pair(
        "first-emission-has-a-token",
        incremental(sizes=(1, 5)),
        incremental(sizes=(0, 6)),
        0,
        "/output_ids",
    ),
    Pair(
        "interval-is-kept", incremental(sizes=(1, 4, 1)), incremental(sizes=(1, 3, 2)), 1, "/output_ids", FOUR
    ),
    Pair(
        "interval-is-kept",
        incremental(sizes=(1, 2, 3), stream_interval=2),
        incremental(sizes=(1, 2, 3), stream_interval=3),
        1,
        "/output_ids",
        FOUR,
        why="the request's value replaces the server's",
    ),
    Pair(
        "no-idle-emissions",
        change(incremental(sizes=(3, 0, 3)), 1, text="!"),
        incremental(sizes=(3, 0, 3)),
        1,
        "/output_ids",
    ),
    Pair(
        "result-independent-of-interval",
        at_intervals(incremental(sizes=(1, 4, 1), stream_interval=4)),
        at_intervals(change(incremental(sizes=(1, 4, 1), stream_interval=4), 1, text="bcd")),
        2,
        "/text",
    ),
    Pair(
        "stream-ids-equal-whole",
        against_whole(cumulative()),
        against_whole(change(cumulative(), output_ids=[11, 12, 13, 14, 15, 17])),
        5,
        "/output_ids",
    ),
    Pair(
        "stream-text-equals-whole",
        against_whole(incremental()),
        against_whole(change(incremental(), 2, text="")),
        3,
        "/text",
    ),
    Pair(
        "stream-series-equal-whole",
        against_whole(incremental(MIRROR), MIRROR),
        against_whole(change(incremental(MIRROR), 2, series={"mirror_token_id": [99]}), MIRROR),
        2,
        "/mirror_token_id",
    ),
    Pair(
        "stream-finish-equals-whole",
        against_whole(incremental()),
        against_whole(incremental(Reply(finish=STOP))),
        5,
        "/finish",
    ),
    Pair(
        "stream-is-legal-delivery",
        against_whole(incremental(MIRROR), MIRROR),
        against_whole(change(incremental(MIRROR), 2, series={"mirror_token_id": [99]}), MIRROR),
        2,
        "/mirror_token_id",
    ),
    Pair(
        "whole-accumulates",
        whole(LONG),
        change(whole(LONG), series={"mirror_token_id": list(range(150, 160))}),
        pointer="/mirror_token_id",
    ),
    Pair(
        "coalescing-keeps-all",
        incremental(MIRROR, sizes=(1, 3, 2)),
        change(incremental(MIRROR, sizes=(1, 3, 2)), 1, series={"mirror_position": [5]}),
        1,
        "/mirror_position",
    ),
    Pair(
        "coalescing-keeps-all",
        incremental(sizes=(1, 3, 2)),
        change(incremental(sizes=(1, 3, 2)), 1, output_ids=[14]),
        1,
        "/completion_tokens",
        why="only the last of the joined ids",
    ),
    Pair(
        "stop-string-not-shown",
        (whole(STOPPED, stop=("de",)),),
        (change(whole(STOPPED, stop=("de",)), text="abcde"),),
        pointer="/text",
    ),
    Pair(
        "stop-prefix-held-back",
        (named(whole(STOPPED, stop=("de",)), "generate/whole"), stopped_stream("abc")),
        (named(whole(STOPPED, stop=("de",)), "generate/whole"), stopped_stream("abcd")),
        0,
        "/text",
    ),
    Pair(
        "stop-prefix-held-back",
        (cumulative(STOPPED, stop=("de",)),),
        (change(cumulative(STOPPED, stop=("de",)), 1, text="abcd"),),
        1,
        "/text",
        why="snapshots of one stream",
    ),
    Pair(
        "unmatched-stop-changes-nothing",
        (whole(), named(whole(stop=("zz",)), "generate/stop")),
        (whole(), named(change(whole(stop=("zz",)), text="abcde"), "generate/stop")),
        pointer="/text",
    ),
    Pair(
        "unmatched-stop-changes-nothing",
        (whole(), LESS, named(change(incremental(stop=("zz",)), 2, text="e"), "generate/stop")),
        (whole(), LESS, named(change(incremental(stop=("zz",)), 2, text=""), "generate/stop")),
        3,
        pointer="/text",
        why="what every stream loses is not the stop's fault",
    ),
    # Per-token metadata.
    Pair(
        "customized-info-incremental",
        incremental(MIRROR),
        change(incremental(MIRROR), 2, series={"mirror_token_id": list(IDS[:3])}),
        2,
        "/mirror_token_id",
    ),
    Pair(
        "customized-info-cumulative",
        cumulative(MIRROR),
        change(cumulative(MIRROR), 2, series={"mirror_token_id": GONE}),
        2,
    ),
    Pair(
        "customized-info-whole",
        whole(MIRROR),
        change(whole(MIRROR), series={"mirror_token_id": None}),
        pointer="/mirror_token_id",
    ),
    Pair(
        "customized-info-has-a-value",
        change(whole(MIRROR), series={"mirror_token_id": [None, *IDS[1:]]}),
        change(whole(MIRROR), series={"mirror_token_id": [None] * len(IDS)}),
        pointer="/mirror_token_id",
    ),
    Pair(
        "customized-info-is-fixed-at-sampling",
        incremental(MIRROR),
        change(incremental(MIRROR), 4, series={"mirror_token_id": [14]}),
        4,
        "/mirror_token_id",
    ),
    Pair(
        "logprobs-incremental",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 1, series={"output_top_logprobs": []}),
        1,
        "/output_top_logprobs",
    ),
    Pair(
        "logprobs-cumulative",
        cumulative(LOGPROBS, **ASKED),
        change(cumulative(LOGPROBS, **ASKED), 4, series={"output_token_logprobs": logprobs()[:4]}),
        4,
        "/output_token_logprobs",
    ),
    Pair(
        "logprobs-whole",
        whole(LOGPROBS, **ASKED),
        change(whole(LOGPROBS, **ASKED), series={"output_token_logprobs": "all of them"}),
        pointer="/output_token_logprobs",
    ),
    Pair(
        "logprobs-name-their-ids",
        whole(LOGPROBS, **ASKED),
        change(whole(LOGPROBS, **ASKED), series={"output_token_logprobs": logprobs((12, *IDS[1:]))}),
        pointer="/output_token_logprobs",
    ),
    Pair(
        "logprob-values-are-legal",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 0, series={"output_token_logprobs": [[0.5, 11, None]]}),
        0,
        "/output_token_logprobs",
    ),
    Pair(
        "logprob-counter-follows",
        change(cumulative(LOGPROBS), counters={"output_token_logprobs_length": 6}),
        change(cumulative(LOGPROBS), counters={"output_token_logprobs_length": 1}),
        5,
        "/output_token_logprobs_length",
    ),
    Pair(
        "top-logprobs-have-k",
        whole(LOGPROBS, **ASKED),
        whole(LOGPROBS, **ASKED | {"top_logprobs": 3}),
        pointer="/output_top_logprobs",
    ),
    Pair(
        "top-logprobs-fall",
        whole(LOGPROBS, **ASKED),
        change(
            whole(LOGPROBS, **ASKED),
            series={"output_top_logprobs": [entry[::-1] for entry in top_logprobs()]},
        ),
        pointer="/output_top_logprobs",
    ),
    Pair(
        "top-logprobs-are-one-whole",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 3, series={"output_top_logprobs": TOO_LIKELY}),
        3,
        "/output_top_logprobs",
    ),
    Pair(
        "top-logprobs-belong-to-position",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 3, series={"output_top_logprobs": top_logprobs()[2:3]}),
        3,
        "/output_top_logprobs",
    ),
    Pair(
        "chosen-logprobs-are-the-asked-ids",
        whole(LOGPROBS, **ASKED),
        whole(LOGPROBS, **ASKED | {"chosen_ids": (5, 7)}),
        pointer="/output_token_ids_logprobs",
    ),
    Pair(
        "prompt-logprobs-cover-the-prompt",
        whole(LOGPROBS, **ASKED),
        change(whole(LOGPROBS, **ASKED), prompt_series={"input_token_logprobs": [[None, 1, None]]}),
        pointer="/input_token_logprobs",
    ),
    Pair(
        "prompt-logprobs-null-only-first",
        whole(LOGPROBS, **ASKED),
        change(
            whole(LOGPROBS, **ASKED),
            prompt_series={"input_token_logprobs": [[None, 1, None], [None, 2, None], [-4.0, 3, None]]},
        ),
        pointer="/input_token_logprobs",
    ),
    Pair(
        "scored-prompt-ids-have-logprobs",
        whole(
            Reply(prompt_series={"input_token_logprobs": [[-2.0, 2, None], [-4.0, 3, None]]}),
            **ASKED | {"logprob_start": 1},
        ),
        whole(
            Reply(prompt_series={"input_token_logprobs": [[None, 2, None], [-4.0, 3, None]]}),
            **ASKED | {"logprob_start": 1},
        ),
        pointer="/input_token_logprobs",
    ),
    Pair(
        "prompt-series-constant",
        incremental(LOGPROBS, **ASKED),
        change(incremental(LOGPROBS, **ASKED), 2, prompt_series={"input_token_logprobs": []}),
        2,
        "/input_token_logprobs",
    ),
    Pair(
        "metadata-only-on-request",
        incremental(),
        change(incremental(), 3, series={"output_token_logprobs": [[-0.5, 14, None]]}),
        3,
        "/output_token_logprobs",
    ),
    Pair(
        "asked-or-refused",
        whole(ECHO, return_prompt_token_ids=True),
        whole(return_prompt_token_ids=True),
    ),
    Pair("asked-or-refused", whole(LOGPROBS, **ASKED), whole(**ASKED), why="logprobs"),
    Pair(
        "asked-or-refused",
        whole(Reply(details={"hidden_states": [[0.5]]}), wanted=HIDDEN_STATES),
        whole(Reply(details={"hidden_states": None}), wanted=HIDDEN_STATES),
        pointer="/hidden_states",
        why="what only the table of a dialect knows",
    ),
    Pair(
        "asked-or-refused",
        whole(Reply(series={"output_token_logprobs": [[-0.5, token, "a"] for token in IDS]}), **WITH_TEXTS),
        whole(Reply(series={"output_token_logprobs": logprobs()}), **WITH_TEXTS),
        why="texts in logprobs",
    ),
    Pair(
        "asked-or-refused",
        change_event(whole(wanted=BESIDE), 0, data={"sglext": {"input_ids": [1]}}),
        whole(wanted=BESIDE),
        why="what stands beside the choices",
    ),
    Pair(
        "samples-are-asked-alike",
        (named(whole(RETRACTED), "one/alone"), whole(RETRACTED, RETRACTED, n=2)),
        (named(whole(RETRACTED), "one/alone"), whole(RETRACTED, Reply(), n=2)),
    ),
    Pair(
        "samples-are-asked-alike",
        (named(whole(RETRACTED), "one/alone"), named(whole(), "one/again"), whole(Reply(), Reply(), n=2)),
        (named(whole(RETRACTED), "one/alone"), whole(Reply(), Reply(), n=2)),
        why="a field that only some answers of one choice carry is not due",
    ),
    Pair(
        "samples-are-asked-alike",
        (named(whole(WITH_LOGPROBS), "one/alone"), whole(WITH_LOGPROBS, Reply(ids=(), text=""), n=2)),
        (named(whole(WITH_LOGPROBS), "one/alone"), whole(WITH_LOGPROBS, Reply(), n=2)),
        why="a choice without a token has no series",
    ),
    Pair(
        "samples-are-asked-alike",
        (named(whole(RETRACTED), "one/alone"), whole(RETRACTED, RETRACTED, n=2, max_new_tokens=1)),
        (named(whole(RETRACTED), "one/alone"), whole(RETRACTED, Reply(), n=2, max_new_tokens=1)),
        why="one token is enough",
    ),
    Pair(
        "samples-are-asked-alike",
        (
            named(whole(RETRACTED), "one/alone"),
            with_exchange(whole(RETRACTED, Reply(), n=2), ending=Ending.TRUNCATED),
            named(whole(RETRACTED, RETRACTED, n=2), "one/both"),
        ),
        (named(whole(RETRACTED), "one/alone"), whole(RETRACTED, Reply(), n=2)),
        why="an answer that was cut off owes nothing",
    ),
    Pair(
        "samples-are-asked-alike",
        (
            change(named(whole(), "one/alone"), prompt_token_ids=[7]),
            change(change(whole(Reply(), Reply(), n=2), prompt_token_ids=[]), choice=1, prompt_token_ids=[7]),
        ),
        (change(named(whole(), "one/alone"), prompt_token_ids=[7]), whole(Reply(), Reply(), n=2)),
        why="an empty prompt has an empty list of ids",
    ),
    Pair(
        "samples-are-asked-alike",
        (whole(WITH_LOGPROBS, WITH_LOGPROBS, n=2),),
        (whole(WITH_LOGPROBS, Reply(), n=2),),
        why="choices of one answer",
    ),
    # Token in, token out.
    Pair(
        "prompt-ids-are-the-input-ids",
        whole(ECHO, return_prompt_token_ids=True),
        whole(ECHO, return_prompt_token_ids=True, input_ids=((1, 2, 4),)),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "prompt-tokens-count-the-input-ids",
        whole(),
        whole(input_ids=((1, 2, 3, 4),)),
        pointer="/prompt_tokens",
    ),
    Pair(
        "prompt-tokens-count-the-input-ids",
        whole(CHAT_TOLD, dialect=CHAT, usage=USAGE),
        whole(CHAT_TOLD, dialect=CHAT, usage=USAGE | {"prompt_tokens": 4}),
        why="by the usage of a chat answer",
    ),
    Pair(
        "prompt-ids-match-their-count",
        whole(ECHO, return_prompt_token_ids=True),
        change(whole(ECHO, return_prompt_token_ids=True), prompt_token_ids=[1, 2]),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "prompt-ids-in-every-choice",
        whole(ECHO, SECOND, return_prompt_token_ids=True, **BATCH),
        change(whole(ECHO, SECOND, return_prompt_token_ids=True, **BATCH), choice=1, prompt_token_ids=GONE),
    ),
    Pair("prompt-ids-only-on-request", incremental(), incremental(ECHO), 0, "/prompt_token_ids"),
    Pair(
        "prompt-ids-only-on-request",
        whole(),
        change(whole(), pointers={"prompt_token_ids": "/prompt_token_ids"}),
        pointer="/prompt_token_ids",
        why="null",
    ),
    Pair(
        "prompt-ids-constant",
        incremental(ECHO, return_prompt_token_ids=True),
        change(incremental(ECHO, return_prompt_token_ids=True), 1, prompt_token_ids=[1, 2]),
        1,
        "/prompt_token_ids",
    ),
    Pair(
        "input-ids-beat-text",
        whole(ECHO, return_prompt_token_ids=True, text_prompt=True),
        whole(ECHO, return_prompt_token_ids=True, text_prompt=True, input_ids=((1, 2, 4),)),
        pointer="/prompt_token_ids",
    ),
    Pair(
        "text-prompt-ids-reproduce",
        (TEXT_ANSWER, answered(IDS)),
        (TEXT_ANSWER, answered((*IDS[:5], 99))),
        pointer="/output_ids",
    ),
    Pair(
        "output-ids-continue",
        (answered(IDS), named(answered(IDS[2:], FIRST_HALF), "generate/rest")),
        (answered(IDS), named(answered((99, *IDS[3:]), FIRST_HALF), "generate/rest")),
        pointer="/output_ids",
    ),
    Pair(
        "same-ids-on-every-endpoint",
        (whole(ids_key="same"), named(whole(**AS_CHAT), "chat/same")),
        (whole(ids_key="same"), named(change(whole(**AS_CHAT), output_ids=[*IDS[:5], 99]), "chat/same")),
        pointer="/output_ids",
    ),
    Pair(
        "same-ids-on-every-endpoint",
        (SCORED, named(as_chat_scored(-0.5), "chat/same")),
        (SCORED, named(as_chat_scored(0.0), "chat/same")),
        why="the first logprob",
    ),
    Pair("empty-input-ids-refused", refusal(input_ids=((),)), whole(input_ids=((),))),
    Pair(
        "empty-input-ids-refused",
        refusal(input_ids=((), PROMPT)),
        whole(Reply(), Reply(), **BATCH | {"input_ids": ((), PROMPT)}),
        why="one empty prompt in a batch",
    ),
    Pair(
        "malformed-input-ids-refused",
        refusal(input_ids=None, body={"input_ids": [1, True]}),
        whole(input_ids=None, body={"input_ids": [1, True]}),
    ),
    Pair(
        "refused-request-harms-nobody",
        control_after_refusal(whole()),
        control_after_refusal(change(whole(), output_ids=[*IDS[:5], 99])),
        pointer="/output_ids",
        target=Target(repeated=frozenset({"key"})),
    ),
    Pair(
        "refused-request-harms-nobody",
        control_after_refusal(whole()),
        control_after_refusal(replace(with_exchange(whole(), status=500), choices=())),
        why="no answer",
    ),
    Pair(
        "chat-stream-refuses-prompt-ids",
        refusal(**VAIN | {"return_prompt_token_ids": True}),
        incremental(CHAT_TOLD, dialect=CHAT, return_prompt_token_ids=True),
        0,
    ),
    Pair("chat-stream-refuses-meta-info", refusal(**VAIN), incremental(CHAT_TOLD, **STREAMED_VAIN), event=0),
    Pair(
        "chat-stream-refuses-token-ids",
        refusal(**VAIN | {"return_token_ids": True}),
        incremental(CHAT_TOLD, dialect=CHAT, return_token_ids=True),
        0,
    ),
    Pair(
        "refusal-names-the-field",
        refusal(error={"message": "return_meta_info cannot be streamed; set stream to false."}, **VAIN),
        refusal(error={"message": "This is not supported."}, **VAIN),
    ),
    Pair(
        "chat-meta-info-in-every-choice",
        whole(CHAT_TITO, dialect=CHAT, return_meta_info=True),
        change(whole(CHAT_TITO, dialect=CHAT, return_meta_info=True), details={"meta_info": GONE}),
    ),
    Pair(
        "chat-meta-info-only-on-request",
        whole(CHAT_TOLD, dialect=CHAT),
        change(whole(CHAT_TOLD, dialect=CHAT), details={"meta_info": None}),
        pointer="/meta_info",
        why="null",
    ),
    Pair(
        "chat-ids-agree-with-meta-info",
        whole(CHAT_TITO, dialect=CHAT),
        change(whole(CHAT_TITO, dialect=CHAT), details={"meta_info": {"completion_tokens": 5}}),
        pointer="/output_ids",
    ),
    Pair(
        "chat-content-never-null",
        whole(CHAT_TOLD, dialect=CHAT),
        change(whole(CHAT_TOLD, dialect=CHAT), details={"content": None}),
        pointer="/content",
    ),
    # Framing.
    Pair(
        "answer-content-type",
        whole(),
        with_exchange(whole(), headers=(("content-type", "text/plain"),)),
    ),
    Pair("stream-content-type", incremental(), with_exchange(incremental(), headers=()), event=0),
    Pair("stream-is-utf8", incremental(), NOT_UTF8),
    Pair(
        "events-are-json-objects",
        incremental(),
        change_event(incremental(), 2, data=None, problem="NaN is not JSON"),
        2,
    ),
    Pair(
        "events-fit-schema",
        incremental(),
        change_event(incremental(), 4, schema_errors=("/output_ids/0: is not an integer",)),
        4,
    ),
    Pair(
        "done-ends-the-stream",
        incremental(),
        replace(incremental(), events=(*incremental().events, incremental().events[-1])),
        6,
    ),
    Pair(
        "stream-ends-cleanly",
        incremental(),
        with_exchange(incremental(), ending=Ending.TRUNCATED),
        6,
    ),
    Pair("events-are-unnamed", incremental(), change_event(incremental(), 3, name="token"), 3),
    Pair("refusal-is-json", refusal(), refusal(error={})),
    Pair(
        "chat-role-comes-first",
        incremental(CHAT_TOLD, dialect=CHAT),
        change(incremental(CHAT_TOLD, dialect=CHAT), 0, details={"role": GONE}),
        0,
    ),
    Pair(
        "chat-role-stays",
        incremental(CHAT_TOLD, dialect=CHAT),
        change(incremental(CHAT_TOLD, dialect=CHAT), 2, details={"role": "user"}),
        2,
        "/role",
    ),
    Pair(
        "chat-chunks-share-a-choice-id",
        incremental(CHAT_TOLD, dialect=CHAT),
        change(incremental(CHAT_TOLD, dialect=CHAT), details={"request_id": "c-2"}),
        5,
        "/request_id",
    ),
]

PAIRS += TEXT_PAIRS
PAIRS += SAMPLING_PAIRS
PAIRS += LOGPROB_PAIRS
PAIRS += KNOWN_ANSWER_PAIRS
PAIRS += FINISH_AND_ERROR_PAIRS
PAIRS += ABORT_AND_INVARIANCE_PAIRS
PAIRS += CHANNEL_PAIRS
PAIRS += ROLLOUT_PAIRS
PAIRS += ITEM_PAIRS
PAIRS += SESSION_PAIRS
PAIRS += SPLIT_PAIRS
PAIRS += CONSTRAINT_PAIRS
PAIRS += CONVERSATION_PAIRS
PAIRS += RESULT_PAIRS
PAIRS += DECISION_PAIRS


def _name(pair: Pair) -> str:
    return f"{pair.requirement}-{pair.why}" if pair.why else pair.requirement


@pytest.mark.parametrize("pair", PAIRS, ids=_name)
def test_the_legal_twin_is_witnessed_and_holds(pair: Pair) -> None:
    seen = observe(pair.requirement, pair.good, pair.target)
    assert [observation for observation in seen if not observation.holds] == []
    assert [observation for observation in seen if not observation.condition_only]


@pytest.mark.parametrize("pair", PAIRS, ids=_name)
def test_the_illegal_twin_is_found_at_its_place(pair: Pair) -> None:
    violated = [
        seen for seen in observe(pair.requirement, pair.bad, pair.bad_target or pair.target) if not seen.holds
    ]
    assert violated
    assert (violated[0].place.event, violated[0].place.pointer) == (pair.event, pair.pointer)


@pytest.mark.parametrize("pair", PAIRS, ids=_name)
def test_a_violation_says_what_is_wrong(pair: Pair) -> None:
    violated = next(
        seen for seen in observe(pair.requirement, pair.bad, pair.bad_target or pair.target) if not seen.holds
    )
    assert violated.message or violated.expected != violated.actual


@pytest.mark.parametrize("ending", [Ending.TRUNCATED, Ending.TIMEOUT])
def test_a_stream_that_was_cut_off_tells_nothing_of_bursts(ending: Ending) -> None:
    cut = with_exchange(arriving(0.0), ending=ending)
    assert list(observe("stream-comes-in-a-burst", (cut, cut), Target())) == []


def _alone(pair: Pair) -> Iterator[Observation]:
    """What the check of a run sees wrong in any one answer of the illegal subject, if it has no other."""
    check = CHECKS[pair.requirement]
    if check.on_run is None or not isinstance(pair.bad, tuple):
        return
    for answer in pair.bad:
        seen = check.on_run(Answers((answer,)), Target())
        yield from (observation for observation in seen if not observation.holds)


NOT_ALONE = {
    "new-prompts-are-not-cached": "another request may have brought the prompt",
    "refusal-names-the-value": "an endpoint that takes no ids may refuse them in other words",
}
"""Requirements whose check sees something in one answer that needs others to be sure of."""


def test_what_one_answer_shows_is_judged_of_one_answer() -> None:
    """A watcher said that nothing was violated by answers which show their stop string."""
    seen = {pair.requirement for pair in PAIRS if any(_alone(pair))}
    assert seen - NOT_ALONE.keys() == {name for name, check in CHECKS.items() if check.alone}
    assert seen >= NOT_ALONE.keys()


ELSEWHERE = {
    "first-ids-at-once": "test_checks_early_and_late.py",
    "customized-info-in-streams": "test_checks_early_and_late.py",
    "unknown-paths-are-not-found": "test_honesty.py",
}
"""Requirements that speak of a whole run, and the files that hold their pairs of runs."""


def test_every_requirement_has_a_pair() -> None:
    """What a gateway owes is paired in test_checks_gateway.py: both sides of such a pair are answers."""
    alone = {item.id for item in load_requirements().values() if item.oracle != "across-targets"}
    assert {pair.requirement for pair in PAIRS} == alone - ELSEWHERE.keys()
    for requirement, file in ELSEWHERE.items():
        assert requirement in Path(__file__).with_name(file).read_text("utf-8")


def test_every_requirement_has_one_check_and_every_check_a_requirement() -> None:
    assert set(CHECKS) == set(load_requirements())
