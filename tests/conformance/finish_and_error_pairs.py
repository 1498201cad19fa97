"""The pairs of the chapters on finish and usage and on errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from control_calls import sent_at
from pair import Pair
from stream_builder import (
    GONE,
    IDS,
    LENGTH,
    PROMPT,
    STOP,
    TEXT,
    Reply,
    append,
    change,
    change_event,
    incremental,
    named,
    refusal,
    whole,
    with_exchange,
)
from wire_answers import DONE, answered

from tokenwire.ask import SentField
from tokenwire.checks.check import Target
from tokenwire.record import Finish, Stream, Usage
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import WAITING_TIMEOUT
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending, HttpRequest

COUNTS: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def sent_fields(**values: Any) -> dict[str, SentField]:
    """What a request says, each field by its own name."""
    return {name: SentField(name, (value,)) for name, value in values.items()}


def bad(name: str, value: Any, **asked: Any) -> dict[str, Any]:
    """A request with one bad value."""
    return {"sent": sent_fields(**{"input_ids": PROMPT, name: value}), **asked}


def timed_out(words: str) -> Stream:
    """The refusal of a request that waited for two seconds."""
    return sent_at(refusal(503, error={"error": {"message": words}}), 1, 2)


def told_usage(stream: Stream, *counts: tuple[int, dict[str, Any]]) -> Stream:
    """The stream with usage in some of its events, by their index."""
    usages = tuple(
        Usage(stream.events[index].place.at("/usage"), usage, (0,) if index < len(IDS) else ())
        for index, usage in counts
    )
    return replace(stream, usages=usages, usage=usages[-1].counts, usage_place=usages[-1].place)


def with_error(stream: Stream, error: Any, index: int) -> Stream:
    """The stream with an error in the place of one event."""
    stream = change_event(stream, index, data={"error": error}, error=error)
    choice = stream.choices[0]
    kept = tuple(emission for emission in choice.emissions if emission.event.index != index)
    return replace(stream, choices=(replace(choice, emissions=kept),), error=error)


def budgeted(budget: int, finish: Finish, name: str) -> Stream:
    """An answer under a budget whose stop is met at the fourth token."""
    size = min(budget, 4)
    reply = Reply(ids=IDS[:size], text=TEXT[:size], finish=finish)
    return named(whole(reply, max_new_tokens=budget, prompt_key="p", stop_token_ids=(14,)), name)


FAR = budgeted(9, STOP, "generate/far")
SMALL = Target(advertised=Advertised(context_length=10))
LONG: dict[str, Any] = {"input_ids": (tuple(range(8)),), "max_new_tokens": 1}
ONE = Reply(ids=IDS[:1], text=TEXT[:1])

FAILED = {"message": "the worker died", "code": 502}
IN_TIME = with_error(incremental(), FAILED, 5)
CONTEXT = Target(advertised=Advertised(context_length=32))
NO_TOKENIZER = Target(advertised=Advertised(tokenizer=False))
RUNNING = sent_at(named(incremental(), "generate/running"), 1.5, 5)
"""A stream that gets all its tokens while another request waits."""


_UNFINISHED = change(incremental(), finish=None)
CUT_OFF = with_exchange(replace(_UNFINISHED, events=_UNFINISHED.events[:-1]), ending=Ending.TRUNCATED)
"""A stream whose connection broke before its finish."""


def severed(stream: Stream) -> Target:
    """A gateway that gave this stream when its worker broke off."""
    return Target(severed=(stream,))


def asking(stream: Stream, **asked: Any) -> Stream:
    """The stream as the answer to a request that asks for more."""
    return replace(stream, asked=replace(stream.asked, **asked))


USAGE_EVENT = append(
    incremental(), lambda emission: replace(emission, text=None, output_ids=None, finish=None)
)
AT_THE_END = asking(told_usage(USAGE_EVENT, (6, COUNTS)), usage=True)


def so_far(*counts: int) -> Stream:
    """A stream with usage in every event that carries text."""
    found = [
        (index, {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count})
        for index, count in enumerate(counts)
    ]
    return asking(told_usage(incremental(), *found), continuous_usage=True)


def unreadable(stream: Stream, body: bytes = b"{") -> Stream:
    """The answer to a request whose body is none."""
    request = HttpRequest("POST", "/generate", raw_body=body)
    return with_exchange(stream, request=request)


TWO_ROWS = {"rid": ["a"], "input_ids": [[1], [2]]}
BATCH: dict[str, Any] = {"input_ids": ((1,), (2,)), "prompts": 2, "batch": True, "body": TWO_ROWS}
BATCH |= {
    "sent": {"request_id": SentField("rid", (["a"],)), "input_ids": SentField("input_ids", (((1,), (2,)),))}
}
DIED = with_exchange(replace(whole(), events=(), choices=()), status=None, ending=Ending.UNREACHABLE)
NAMED = {"error": {"message": "max_new_tokens must be at least 0, got -1."}}

MISFIT = Reply(ids=(775,), text=" R", finish=Finish("abort", code=400))
"""What SGLang 0.5.23 streams for a prompt that is too long: a token, and a refusal in its finish."""
NOTHING = replace(MISFIT, ids=(), text="")
FLAT = {"object": "error", "message": "input_ids cannot be empty.", "code": 400}
LEAKING = {
    "message": "1 validation error:\n  {'type': 'value_error', 'loc': ('body', 'max_tokens')}\n\n  File "
    '"/opt/venv/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py", line 1860, in post'
}

SCORED: dict[str, Any] = {"logprobs": True}
STOPPED: dict[str, Any] = {"stop": ("x",)}
EITHER = (named(whole(**SCORED), "generate/logprobs"), named(whole(**STOPPED), "generate/stop"))

DRAFTED = {"draft_rounds": 2, "drafts_proposed": 6, "drafts_right": 3, "drafts_right_by_round": [0, 1, 1, 0]}
MISCOUNTED: dict[str, dict[str, Any]] = {
    "drafts_right": {"drafts_proposed": 2, "drafts_right_rate": 1.5},
    "drafts_right_rate": {"drafts_right_rate": 0.6},
    "drafts_right_by_round": {"drafts_right_by_round": [0, 2]},
    "tokens_per_round": {"tokens_per_round": 2.5},
    "completion_tokens": {"drafts_right": 2, "drafts_right_by_round": [0, 2], "drafts_right_rate": 1 / 3},
}
"""By the counter that is wrong then."""


def vllm_drafted(count: int = 6, **wrong: Any) -> Stream:
    """Ids of which two steps gave five, as vLLM counts them."""
    counted = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3}
    quotients = {"acceptance_histogram": [0, 1, 1, 0], "draft_acceptance_rate": 0.5}
    metrics = {"speculative_decoding": {**counted, **quotients, "mean_acceptance_length": 2.5, **wrong}}
    choice = {"index": 0, "text": "x" * count, "token_ids": [*range(5, 5 + count)], "finish_reason": "length"}
    body = {"prompt": [7, 8], "max_tokens": count, "return_token_ids": True}
    return answered("vllm-completions", body, {"id": "c", "choices": [choice], "metrics": metrics})


def rows_of_ids(rows: list[list[int]], *, start: int = 0, refused: bool = False) -> Stream:
    """The answer to a request with these rows of ids for a prompt of three ids."""
    choice = {"index": 0, "token_ids": [5], "finish_reason": "length"}
    params = {"max_tokens": 1, "prompt_logprob_token_ids": rows, "prompt_logprob_start": start}
    body = {"token_ids": [7, 8, 9], "sampling_params": params}
    document = {"request_id": "generate-tokens-r", "choices": [choice]}
    error = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    return answered("vllm-generate", body, error if refused else document, status=400 if refused else 200)


METRICS: dict[str, Any] = {
    **{"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3},
    **{"acceptance_histogram": [0, 1, 1, 0], "draft_acceptance_rate": 0.5, "mean_acceptance_length": 2.5},
}


def streamed_drafts(early: bool = False, again: bool = False, **wrong: Any) -> Stream:
    """A stream of six ids with vLLM's counts of drafts beside its usage.

    early, again: also in the event before the finish, or with the finish.
    """
    counts = {"metrics": {"speculative_decoding": METRICS | wrong}}
    usage = {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    options = {"include_usage": True, "continuous_usage_stats": True}
    params = {"max_tokens": 6}
    body = {"token_ids": [7, 8], "sampling_params": params, "stream": True, "stream_options": options}
    events = [
        {
            "choices": [{"index": 0, "token_ids": [5, 6, 7], "finish_reason": None}],
            **(counts if early else {}),
        },
        {
            "choices": [{"index": 0, "token_ids": [8, 9, 10], "finish_reason": "length"}],
            **(counts if again else {}),
        },
        {"choices": [], "usage": usage, **counts},
    ]
    events[1]["usage"] = usage
    return answered("vllm-generate", body, *({"request_id": "generate-tokens-r", **e} for e in events), DONE)


def drafts_of_samples(metrics: Any) -> Stream:
    """Two samples, with counts of drafts beside them."""
    choices = [{"index": index, "token_ids": [5, 6], "finish_reason": "length"} for index in (0, 1)]
    body = {"token_ids": [7, 8], "sampling_params": {"max_tokens": 2, "n": 2}}
    document = {"request_id": "generate-tokens-r", "choices": choices, "metrics": metrics}
    return answered("vllm-generate", body, document)


def unlimited(count: int, finish: str | None = "length", **params: Any) -> Stream:
    """An answer with as many ids, to a request without a budget."""
    choice = {"index": 0, "token_ids": [*range(5, 5 + count)], "finish_reason": finish}
    body = {"token_ids": [7, 8], "sampling_params": params}
    return answered("vllm-generate", body, {"request_id": "generate-tokens-r", "choices": [choice]})


def drafted(**counted: Any) -> Stream:
    """Six ids, of which two steps gave five."""
    quotients = {"drafts_right_rate": 0.5, "tokens_per_round": 3.0}
    return whole(Reply(details=DRAFTED | quotients | counted))


FINISH_AND_ERROR_PAIRS = [
    Pair(
        "refusals-have-one-shape",
        (refusal(), refusal(error=NAMED), refusal()),
        (refusal(), named(refusal(error=FLAT), "generate/two"), refusal()),
    ),
    Pair(
        "stops-and-logprobs-go-together",
        (*EITHER, named(whole(**SCORED, **STOPPED), "generate/both")),
        (*EITHER, named(refusal(max_new_tokens=6, **SCORED, **STOPPED), "generate/both")),
    ),
    Pair("errors-keep-internals", refusal(), refusal(error=LEAKING)),
    Pair("errors-keep-internals", IN_TIME, with_error(incremental(), LEAKING, 5), 5, why="in a stream"),
    Pair("refused-stream-delivers-nothing", incremental(NOTHING), incremental(MISFIT), 0, "/output_ids"),
    Pair(
        "refused-stream-delivers-nothing",
        refusal(stream=True),
        change(incremental(NOTHING), series={"output_token_logprobs": [[-0.5, 775, None]]}),
        0,
        "/output_ids",
        why="an entry of a series",
    ),
    Pair("refused-answer-delivers-nothing", whole(NOTHING), whole(MISFIT), pointer="/output_ids"),
    Pair(
        "stop-wins-within-the-budget",
        (FAR, budgeted(4, STOP, "generate/at")),
        (FAR, budgeted(4, LENGTH, "generate/at")),
        pointer="/finish",
    ),
    Pair(
        "stop-wins-within-the-budget",
        (FAR, budgeted(3, LENGTH, "generate/before")),
        (FAR, budgeted(3, STOP, "generate/before")),
        pointer="/finish",
        why="the budget comes first",
    ),
    Pair(
        "one-length-rule",
        (refusal(**LONG), named(refusal(**LONG), "generate/stream")),
        (refusal(**LONG), named(whole(ONE, **LONG), "generate/stream")),
        target=SMALL,
    ),
    Pair(
        "keys-do-not-come-and-go",
        incremental(),
        change(incremental(), 2, counters={"prompt_tokens": GONE}),
        2,
    ),
    Pair(
        "usage-comes-once",
        AT_THE_END,
        asking(told_usage(USAGE_EVENT, (2, COUNTS), (6, COUNTS)), usage=True),
        2,
        "/usage",
    ),
    Pair("usage-comes-last", AT_THE_END, asking(USAGE_EVENT, usage=True), 6),
    Pair(
        "usage-only-on-request",
        incremental(),
        told_usage(USAGE_EVENT, (6, COUNTS)),
        6,
        "/usage",
        target=Target(capabilities=frozenset({"usage"})),
    ),
    Pair("continuous-usage-follows", so_far(1, 2, 3, 4, 5, 6), so_far(1, 2, 3, 2, 5, 6), 3, "/usage"),
    Pair(
        "continuous-usage-follows",
        so_far(1, 2, 3, 4, 5, 6),
        so_far(1, 1, 1, 1, 1, 1),
        1,
        "/usage",
        why="a count that stands still",
    ),
    Pair("continuous-usage-in-every-event", so_far(1, 2, 3, 4, 5, 6), so_far(1, 2, 3, 4, 5), 5),
    Pair(
        "cached-within-prompt",
        told_usage(whole(), (0, COUNTS | {"prompt_tokens_details": {"cached_tokens": 3}})),
        told_usage(whole(), (0, COUNTS | {"prompt_tokens_details": {"cached_tokens": 4}})),
        pointer="/usage",
        why="in usage",
    ),
    Pair(
        "reasoning-within-output",
        change(whole(), counters={"reasoning_tokens": 6}),
        change(whole(), counters={"reasoning_tokens": 7}),
        pointer="/reasoning_tokens",
    ),
    Pair(
        "draft-counts-add-up",
        streamed_drafts(),
        streamed_drafts(num_spec_steps=3),
        2,
        "/metrics/speculative_decoding/num_spec_steps",
        why="beside the usage of a stream",
    ),
    Pair(
        "draft-counts-come-once",
        streamed_drafts(),
        streamed_drafts(early=True),
        0,
        "/metrics/speculative_decoding/num_spec_steps",
        why="before the finish",
    ),
    Pair(
        "draft-counts-come-once",
        streamed_drafts(),
        streamed_drafts(again=True),
        2,
        "/metrics/speculative_decoding/num_spec_steps",
        why="twice",
    ),
    Pair(
        "draft-counts-are-of-one-choice",
        drafts_of_samples(None),
        drafts_of_samples({"speculative_decoding": METRICS}),
        pointer="/metrics/speculative_decoding/num_spec_steps",
    ),
    Pair(
        "unnamed-budget-is-the-room",
        unlimited(30),
        unlimited(16),
        pointer="/choices/0/token_ids",
        target=CONTEXT,
    ),
    Pair("draft-counts-add-up", drafted(), drafted(draft_rounds=3), pointer="/draft_rounds"),
    *(
        Pair("draft-counts-add-up", drafted(), drafted(**wrong), pointer=f"/{name}", why=name)
        for name, wrong in MISCOUNTED.items()
    ),
    *(
        Pair(
            "draft-counts-add-up",
            vllm_drafted(),
            vllm_drafted(**wrong),
            pointer=f"/metrics/speculative_decoding/{name}",
            why=f"vLLM's {name}",
        )
        for name, wrong in {
            "num_spec_steps": {"num_spec_steps": 3},
            "mean_acceptance_length": {"mean_acceptance_length": 3.0},
            "draft_acceptance_rate": {"draft_acceptance_rate": 0.6},
            "num_accepted_draft_tokens": {"num_draft_tokens": 2, "draft_acceptance_rate": 1.5},
        }.items()
    ),
    Pair(
        "draft-counts-add-up",
        vllm_drafted(),
        vllm_drafted(count=2),
        pointer="/choices/0/token_ids",
        why="fewer ids than vLLM's steps yield",
    ),
    Pair(
        "stream-usage-equals-whole",
        Comparison(whole(usage=COUNTS), AT_THE_END),
        Comparison(whole(usage=COUNTS | {"prompt_tokens": 2}), AT_THE_END),
        6,
        "/usage",
    ),
    Pair(
        "unknown-prompt-ids-refused",
        refusal(**bad("input_ids", [1, -1], input_ids=((1, -1),))),
        whole(**bad("input_ids", [1, -1], input_ids=((1, -1),))),
    ),
    Pair(
        "unknown-prompt-ids-refused",
        refusal(**bad("input_ids", [1, 99], input_ids=((1, 99),))),
        whole(**bad("input_ids", [1, 99], input_ids=((1, 99),))),
        target=Target(advertised=Advertised(vocab_size=99)),
        why="the vocabulary that the server tells",
    ),
    Pair(
        "unknown-chosen-ids-refused",
        refusal(**bad("chosen_ids", [2**31])),
        whole(**bad("chosen_ids", [2**31])),
    ),
    Pair(
        "unknown-parameter-ids-refused",
        refusal(**bad("stop_token_ids", [-5])),
        whole(**bad("stop_token_ids", [-5])),
    ),
    Pair(
        "unknown-parameter-ids-refused",
        refusal(body={"logit_bias": {"-1": 1.0}}),
        whole(body={"logit_bias": {"-1": 1.0}}),
        why="biased ids",
    ),
    Pair("wrong-types-refused", refusal(**bad("n", "two")), whole(**bad("n", "two"))),
    Pair("impossible-values-refused", refusal(**bad("n", 0)), whole(**bad("n", 0))),
    Pair(
        "impossible-values-refused",
        refusal(**bad("min_new_tokens", 9, min_new_tokens=9, max_new_tokens=6)),
        whole(**bad("min_new_tokens", 9, min_new_tokens=9, max_new_tokens=6)),
        why="more at least than at most",
    ),
    Pair(
        "misfitting-rows-refused",
        rows_of_ids([[4], [5]], start=1, refused=True),
        rows_of_ids([[4], [5]], start=1),
        why="more rows than positions",
    ),
    Pair(
        "unknown-chosen-ids-refused",
        rows_of_ids([[4], [2**31]], refused=True),
        rows_of_ids([[4], [2**31]]),
        why="of the prompt",
    ),
    Pair("unreadable-bodies-refused", unreadable(refusal()), unreadable(whole())),
    Pair(
        "missing-prompts-refused",
        refusal(input_ids=None, sent=sent_fields(n=1)),
        whole(input_ids=None, sent=sent_fields(n=1)),
    ),
    Pair("misfitting-lists-refused", refusal(**BATCH), whole(Reply(), Reply(), n=1, **BATCH)),
    Pair(
        "refusal-names-the-value",
        (refusal(error=NAMED, **bad("max_new_tokens", -1)),),
        (refusal(error={"error": {"message": "That is no request."}}, **bad("max_new_tokens", -1)),),
    ),
    Pair("requests-do-not-break-the-server", (whole(), refusal()), (whole(), refusal(500))),
    Pair(
        "requests-do-not-break-the-server",
        (whole(), refusal(503), refusal()),
        (whole(), DIED, DIED),
        why="cut",
    ),
    Pair(
        "waiting-timeout-is-named",
        (RUNNING, timed_out("Request waiting timeout reached.")),
        (RUNNING, timed_out("Service Unavailable")),
        target=Target(capabilities=frozenset({WAITING_TIMEOUT})),
    ),
    Pair(
        "gateway-shows-a-cut",
        (whole(),),
        (whole(),),
        6,
        target=severed(IN_TIME),
        bad_target=severed(incremental()),
        why="a finish of its own",
    ),
    Pair(
        "gateway-shows-a-cut",
        (whole(),),
        (whole(),),
        5,
        target=severed(CUT_OFF),
        bad_target=severed(with_exchange(CUT_OFF, ending=Ending.COMPLETE)),
        why="the body ends properly",
    ),
    Pair(
        "gateway-explains-a-cut",
        (whole(),),
        (whole(),),
        5,
        target=severed(IN_TIME),
        bad_target=severed(CUT_OFF),
    ),
    Pair("stream-errors-say-why", IN_TIME, with_error(incremental(), {"message": "the worker died"}, 5), 5),
    Pair("stream-errors-are-final", IN_TIME, with_error(incremental(), FAILED, 2), 3),
    Pair(
        "stream-errors-replace-the-finish",
        IN_TIME,
        with_error(append(incremental(), lambda emission: emission), FAILED, 6),
        6,
    ),
    Pair(
        "ids-need-no-tokenizer",
        whole(Reply(text=None)),
        with_exchange(replace(whole(), choices=()), status=500),
        target=NO_TOKENIZER,
    ),
    Pair(
        "text-needs-a-tokenizer",
        refusal(input_ids=None, sent=sent_fields(text="Hello")),
        whole(input_ids=None, sent=sent_fields(text="Hello")),
        target=NO_TOKENIZER,
    ),
    Pair(
        "text-needs-a-tokenizer",
        refusal(stop=("x",), sent=sent_fields(stop="x")),
        whole(stop=("x",), sent=sent_fields(stop="x")),
        target=NO_TOKENIZER,
        why="stop strings",
    ),
]
