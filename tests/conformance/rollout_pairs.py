"""Pairs for the chapter on rollouts."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from control_calls import abort, asked_for, called, sent_at
from pair import Pair
from stream_builder import ABORT, FAILED, IDS, LENGTH, PROMPT, Reply, build, named, whole

from tokenwire.ask import Wanted
from tokenwire.checks.check import Target
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Delivery, Stream
from tokenwire.target.determinism import Comparison

BODY = {"input_ids": list(PROMPT), "return_routed_experts": True}
RUN = len(PROMPT) + len(IDS) - 1
WIDTH = 8


def masked(masks: Sequence[Any], logprobs: Sequence[Any] = (-0.5,) * 6) -> Stream:
    """A whole answer with these sampling masks."""
    series = {"output_token_sampling_mask": masks, "output_token_sampling_logprobs": logprobs}
    return whole(Reply(series=series))


def spanned(*ends: int, start: int = 0, version: str = "v2") -> Stream:
    """A whole answer whose spans of weights end at these ids."""
    starts = (start, *ends)
    spans = [
        {"version": f"v{number}", "start": first, "end": end}
        for number, (first, end) in enumerate(zip(starts, ends, strict=False), 1)
    ]
    return whole(Reply(details={"weight_versions": spans, "weight_version": version}))


def spanned_prompt(*ends: int, versions: Sequence[str]) -> Stream:
    """A whole answer to a prompt of five tokens, whose spans of weights end at these tokens."""
    spans = spans_of(*ends, versions=versions)
    return whole(Reply(details={"prefill_weight_versions": spans}, counters={"prompt_tokens": 5}))


def spans_of(*ends: int, versions: Sequence[str]) -> list[dict[str, Any]]:
    """Spans of weights that end at these ids."""
    starts = (0, *ends)
    named = zip(versions, starts, ends, strict=False)
    return [{"version": version, "start": start, "end": end} for version, start, end in named]


def spanned_stream(*ends: int, versions: Sequence[str]) -> Stream:
    """A stream of twelve tokens, the first of which arrived before the weights got another version."""
    ids = (*IDS, *IDS)
    reply = Reply(ids=ids, text=None, details={"weight_versions": spans_of(*ends, versions=versions)})
    stream = sent_at(build(choices=(reply,), sizes=(1, 1, 10), name="generate/renamed"), 10)
    return _arriving(stream, 0.1, 0.2, 0.9)


def _arriving(stream: Stream, *times: float) -> Stream:
    """A stream whose events arrive at these times."""
    (choice,) = stream.choices
    emissions = tuple(
        replace(emission, event=replace(emission.event, place=emission.event.place._replace(time=time)))
        for emission, time in zip(choice.emissions, times, strict=True)
    )
    return replace(stream, choices=(replace(choice, emissions=emissions),))


def requested(seconds: float, first: float, name: str = "generate/while") -> Stream:
    """A stream of two tokens that is requested at this time, and gets its first token so much later."""
    reply = Reply(ids=IDS[:2], text=None, finish=LENGTH)
    return _arriving(sent_at(build(choices=(reply,), name=name), seconds), first, 0.9)


def running(duration: float, come: int = 1) -> Stream:
    """A stream that was running at a pause, had delivered `come` tokens, and took this long."""
    reply = Reply(ids=IDS, text=None, finish=LENGTH)
    stream = build(choices=(reply,), sizes=(come, 6 - come), prompt_key="p", name="generate/running")
    return _arriving(sent_at(stream, 10, duration), 0.1, duration)


def state(seconds: float, reported: Any) -> ControlCall:
    """A report of a server, whether it is paused."""
    return asked_for("/is_paused", {"is_paused": reported}, seconds=seconds)


def experts(rows: int, *, first: int = 0, zeros: int = 0) -> str:
    """Experts of rows of eight numbers, the first of them zeros."""
    numbers = [
        (first + row + column) % 16 if row >= zeros else 0 for row in range(rows) for column in range(WIDTH)
    ]
    return base64.b64encode(struct.pack(f"<{len(numbers)}i", *numbers)).decode()


def routed(value: Any, name: str = "generate/routed", delivery: Delivery = Delivery.WHOLE) -> Stream:
    reply = Reply(details={"routed_experts": value})
    return named(build(delivery, choices=(reply,), sizes=(6,), body=BODY), name)


NO_IDS = base64.b64encode(struct.pack(f"<{RUN * WIDTH}i", *[5000, *[1] * (RUN * WIDTH - 1)])).decode()
EXPERTS = Wanted("return_routed_experts", ("routed_experts",))
GOOD_MASKS = [[token, 90] for token in IDS]
WHOLE = routed(experts(RUN), "generate/whole")

ABORTED = Target(calls=(abort(0.5, everything=True),))
CONTINUED = called(Action.CONTINUE, 10.4)
PAUSED = Target(calls=(called(Action.PAUSE, 10.3, effect="keeps"), CONTINUED))
ENDED = Target(calls=(called(Action.PAUSE, 0.5, everything=True, effect="ends"),))


def flushed_in_pause(status: int = 200) -> Target:
    """A flush while a pause had taken back what ran."""
    pause, flush = called(Action.PAUSE, 10.3, effect="retracts"), called(Action.FLUSH, 10.35, status=status)
    return Target(calls=(pause, flush, CONTINUED))


def live(finish: Any, ids: Sequence[int] | None = IDS, **asked: Any) -> Stream:
    """A stream that was under way when everything was aborted."""
    reply = Reply(ids=ids, text=None, finish=finish)
    return sent_at(
        build(choices=(reply,), sizes=(len(ids or ()) or 1,), **({"max_new_tokens": 100} | asked)), 0
    )


def versioned(name: str, version: str, seconds: float) -> Stream:
    return sent_at(named(whole(Reply(details={"weight_version": version})), name), seconds)


def paused(ids: Sequence[int] = IDS, finish: Any = LENGTH) -> Stream:
    reply = Reply(ids=ids, text=None, finish=finish)
    return sent_at(named(whole(reply, prompt_key="p", max_new_tokens=6), "generate/paused"), 10)


def drawn(logprob: float) -> Stream:
    """An answer at temperature 1 whose masks hold two ids of one logprob."""
    logprobs = (logprob,) * 6
    top = [[[-0.5, token, None], [-0.5, 90, None]] for token in IDS]
    series = {
        "output_token_sampling_mask": GOOD_MASKS,
        "output_token_sampling_logprobs": logprobs,
        "output_top_logprobs": top,
    }
    return whole(Reply(series=series), temperature=1.0)


def states(*firsts: int, ids: Sequence[int] = IDS) -> Stream:
    """Hidden states of a prompt in one list, then of each output id."""
    rows = [[float(first + column) for column in range(WIDTH)] for first in firsts]
    prompt = rows[: len(PROMPT)]
    return whole(
        Reply(
            ids=tuple(ids),
            details={"hidden_states": [prompt, *rows[len(PROMPT) :]]},
            counters={"prompt_tokens": len(PROMPT), "cached_tokens": 0},
        )
    )


def shorter(value: str) -> Stream:
    reply = Reply(ids=IDS[:3], text=None, details={"routed_experts": value})
    return named(build(Delivery.WHOLE, choices=(reply,), sizes=(3,), body=BODY), "generate/shorter")


RENAMED = Target(calls=(called(Action.RENAME, 10.3, version="v2"),))
NAMED_BEFORE = sent_at(spanned(6), 0)
UNDISTURBED = sent_at(named(whole(prompt_key="p"), "generate/undisturbed"), 0)
QUICK = sent_at(UNDISTURBED, 0, 0.05)
"""An answer that takes less time than the pause."""

ROLLOUT_PAIRS = [
    Pair("abort-all-ends-every-request", (live(ABORT),), (live(LENGTH),), 0, "/finish", target=ABORTED),
    Pair("abort-all-ends-every-request", (live(ABORT),), (live(LENGTH),), 0, "/finish", target=ENDED),
    Pair("abort-all-gives-back", (live(ABORT),), (live(FAILED),), 0, "/finish", target=ABORTED),
    Pair(
        "pause-changes-nothing",
        (UNDISTURBED, paused()),
        (UNDISTURBED, paused(IDS[:4], ABORT)),
        target=PAUSED,
    ),
    Pair(
        "paused-server-generates-nothing",
        (requested(0, 0.02, "generate/short"), requested(10.32, 0.09)),
        (requested(0, 0.02, "generate/short"), requested(10.32, 0.05)),
        2,
        target=PAUSED,
    ),
    Pair("paused-stream-does-not-end", (QUICK, running(0.5)), (QUICK, running(0.35)), 2, target=PAUSED),
    Pair(
        "paused-state-is-reported",
        (),
        (),
        target=Target(calls=(*PAUSED.calls, state(10.33, reported=True))),
        bad_target=Target(calls=(*PAUSED.calls, state(10.33, reported=False))),
    ),
    Pair(
        "unknown-pause-is-refused",
        (),
        (),
        target=Target(calls=(called(Action.PAUSE, 10.2, status=400), *PAUSED.calls)),
        bad_target=Target(calls=(called(Action.PAUSE, 10.2), *PAUSED.calls)),
    ),
    Pair(
        "retracted-cache-can-be-flushed",
        (UNDISTURBED, paused()),
        (UNDISTURBED, paused()),
        target=flushed_in_pause(),
        bad_target=flushed_in_pause(400),
    ),
    Pair(
        "weights-change-by-update",
        (versioned("one/a", "v1", 0), versioned("one/b", "v1", 2)),
        (versioned("one/a", "v1", 0), versioned("one/b", "v2", 2), versioned("one/c", "v1", 4)),
        pointer="/weight_version",
    ),
    Pair(
        "weights-change-by-update",
        (versioned("one/a", "v1", 0), versioned("one/b", "v1", 2), versioned("one/c", "v1", 4)),
        (versioned("one/a", "v1", 0), versioned("one/b", "v2", 6)),
        pointer="/weight_version",
        bad_target=Target(calls=(called(Action.UPDATE, 5, version="v2", status=400),)),
        why="the update was refused",
    ),
    Pair(
        "mask-holds-the-sampled-id",
        masked(GOOD_MASKS),
        masked([[90, 91], *GOOD_MASKS[1:]]),
        pointer="/output_token_sampling_mask",
    ),
    Pair(
        "mask-names-an-id-once",
        masked(GOOD_MASKS),
        masked([[*GOOD_MASKS[0], 90], *GOOD_MASKS[1:]]),
        pointer="/output_token_sampling_mask",
    ),
    Pair(
        "mask-logprob-is-legal",
        masked(GOOD_MASKS),
        masked(GOOD_MASKS, (-0.5, 0.5, -0.5, -0.5, -0.5, -0.5)),
        pointer="/output_token_sampling_logprobs",
    ),
    Pair("weight-spans-partition-the-output", spanned(2, 6), spanned(2, 5), pointer="/weight_versions"),
    Pair(
        "weight-spans-partition-the-output",
        spanned(6),
        spanned(6, start=1),
        pointer="/weight_versions",
        why="begins late",
    ),
    Pair(
        "prompt-spans-partition-the-prompt",
        spanned_prompt(2, 5, versions=("v1", "v2")),
        spanned_prompt(2, 4, versions=("v1", "v2")),
        pointer="/prefill_weight_versions",
    ),
    Pair(
        "neighbouring-weight-spans-differ",
        spanned_prompt(2, 5, versions=("v1", "v2")),
        spanned_prompt(2, 5, versions=("v1", "v1")),
        pointer="/prefill_weight_versions",
        why="of a prompt",
    ),
    Pair(
        "neighbouring-weight-spans-differ",
        spanned_stream(2, 12, versions=("v1", "v2")),
        spanned_stream(2, 12, versions=("v1", "v1")),
        2,
        "/weight_versions",
    ),
    Pair(
        "weight-spans-follow-updates",
        (NAMED_BEFORE, spanned_stream(3, 12, versions=("v1", "v2"))),
        (NAMED_BEFORE, spanned_stream(1, 12, versions=("v1", "v2"))),
        2,
        "/weight_versions",
        target=RENAMED,
        why="a token that had arrived has the new version",
    ),
    Pair(
        "weight-spans-follow-updates",
        (NAMED_BEFORE, spanned_stream(3, 12, versions=("v1", "v2"))),
        (NAMED_BEFORE, spanned_stream(12, versions=("v1",))),
        2,
        "/weight_versions",
        target=RENAMED,
        why="no token has the new version",
    ),
    Pair(
        "weight-version-is-that-of-the-last-span",
        spanned(2, 6),
        spanned(2, 6, version="v1"),
        pointer="/weight_version",
    ),
    Pair(
        "array-covers-what-was-run",
        (WHOLE, routed(experts(RUN), "generate/two")),
        (WHOLE, routed(experts(RUN), "generate/two"), routed(experts(RUN - 1), "generate/short")),
        pointer="/routed_experts",
    ),
    Pair(
        "array-covers-what-was-run",
        (WHOLE,),
        (routed("not base64!"),),
        pointer="/routed_experts",
        why="one answer",
    ),
    Pair(
        "array-rows-are-not-filler",
        WHOLE,
        routed(experts(RUN, zeros=2)),
        pointer="/routed_experts",
    ),
    Pair(
        "array-equals-whole",
        Comparison(WHOLE, routed(experts(RUN), delivery=Delivery.CUMULATIVE)),
        Comparison(WHOLE, routed(experts(RUN, first=1), delivery=Delivery.CUMULATIVE)),
        event=0,
        pointer="/routed_experts",
    ),
    Pair(
        "mask-logprob-is-among-the-mask",
        drawn(-math.log(2)),
        drawn(-math.log(2) * 1.7),
        pointer="/output_token_sampling_logprobs",
    ),
    Pair("expert-ids-are-ids", WHOLE, routed(NO_IDS), pointer="/routed_experts"),
    Pair(
        "neighbouring-states-differ",
        states(*range(RUN)),
        states(*range(RUN - 1), RUN - 2),
        pointer="/hidden_states",
    ),
    Pair(  # a model without positions has one state for a token that comes again
        "neighbouring-states-differ",
        states(*range(RUN - 1), RUN - 2, ids=(*IDS[:-2], IDS[-3], IDS[-1])),
        states(*range(RUN - 2), RUN - 2, RUN - 2),
        pointer="/hidden_states",
    ),
    Pair(
        "array-rows-are-of-their-tokens",
        (WHOLE, shorter(experts(RUN - 3))),
        (WHOLE, shorter(experts(RUN - 3, first=1))),
        pointer="/routed_experts",
    ),
    Pair(
        "arrays-only-on-request",
        whole(Reply(details={"routed_experts": experts(RUN)}), wanted=(EXPERTS,)),
        whole(Reply(details={"routed_experts": experts(RUN)})),
        pointer="/routed_experts",
    ),
]
