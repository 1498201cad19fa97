"""Pairs for the chapters on aborts, isolation and invariance."""

from __future__ import annotations

from dataclasses import replace

from control_calls import abort, called, load_report, sent_at, without_ids
from pair import Pair
from stream_builder import (
    ABORT,
    GONE,
    IDS,
    PROMPT,
    STOP,
    Reply,
    change,
    cumulative,
    incremental,
    logprobs,
    named,
    refusal,
    top_logprobs,
    whole,
    with_exchange,
)
from wire_answers import answered

from tokenwire.ask import SentField
from tokenwire.checks.caches import ADAPTERS, UNKNOWN
from tokenwire.checks.check import Target
from tokenwire.dialects.control import Action
from tokenwire.record import Place, Stream
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending

LONG = tuple(range(100, 700))
"""More tokens than a neighbour may get before a request whose client left is gone."""

ABORTED = Target(calls=(abort(0.05, "r-1"),))
CUT = Reply(ids=IDS[:3], text="abc", finish=ABORT)


def aborted(told_of: Reply = CUT, **asked: object) -> Stream:
    """A stream that was aborted after its first token, in the middle of six."""
    wanted = {"request_id": "r-1", "max_new_tokens": 6, "ignore_eos": True} | asked
    return sent_at(incremental(told_of, **wanted), 0.0)


def _twin(stream: Stream, name: str = "generate/undisturbed") -> Stream:
    return named(stream, name)


UNDISTURBED = _twin(whole(Reply(series={"output_token_logprobs": logprobs()}), prompt_key="p"))
CUT_SERIES = replace(CUT, series={"output_token_logprobs": logprobs(IDS[:3])})
PREFIX = aborted(CUT_SERIES, prompt_key="p", ignore_eos=False)

NEIGHBOUR = sent_at(incremental(request_id="r-10"), 0.0)
FIRST = sent_at(incremental(request_id="r-1"), 0.0)
LASTING = sent_at(incremental(request_id="r-1"), 0.0, 3.5)
"""Longer than the server takes to clear away the second, which ends after 1.2 s."""
SECOND = sent_at(_twin(incremental(request_id="r-1")), 0.2)


AGAIN = sent_at(_twin(FIRST), 1.5, 3.0)
"""Under way two seconds after the first has ended, when the server clears that one away."""
CUT_AGAIN = _twin(incremental(CUT, request_id="r-1"))
"""Aborted after another had ended under its id, and before any abort was sent."""

IN_QUEUE = Reply(ids=(), text="", finish=ABORT)
GONE_CLIENT = {"error": {"message": "client disconnected", "code": 499}}
"""What the Rust front end of SGLang answers to an aborted request."""


def several(*choices: Reply) -> Stream:
    """Two samples with ids of their own, behind the client's id and a number."""
    named_choices = (
        replace(told_of, details={"request_id": f"r-1_{index}"}) for index, told_of in enumerate(choices)
    )
    return sent_at(incremental(*named_choices, request_id="r-1", max_new_tokens=6, ignore_eos=True), 0.0, 2.0)


ONE_ABORTED = Target(calls=(abort(0.05, "r-1_1"),))


def _error_in_the_place_of_the_end(stream: Stream) -> Stream:
    """The stream with an error event in the place of the finish of its choice."""
    cut = change(stream, finish=None)
    events = (*cut.events[:-1], replace(cut.events[-1], data=GONE_CLIENT, done=False))
    return replace(cut, events=events, error=GONE_CLIENT)


LEFT = _error_in_the_place_of_the_end(aborted())


def _left(*, stream: bool) -> Stream:
    """A request whose client has left after a second."""
    answer = (incremental if stream else whole)(Reply(finish=None))
    answer = answer if stream else replace(answer, choices=(), events=())
    return sent_at(with_exchange(named(answer, "sglang-generate/one/left"), ending=Ending.HUNG_UP), 0.0, 1.0)


STAYING = sent_at(_twin(incremental(Reply(ids=LONG, text=None)), "sglang-generate/one/staying"), 0.0, 70.0)
"""Ten tokens a second, beside the one that was left."""

BUSY = (load_report(-1.0, 0, 40), load_report(0.5, 2, 90))
FREED = Target(calls=(*BUSY, load_report(3.0, 1, 60), load_report(80.0, 0, 40)))
STILL_BUSY = Target(
    calls=(*BUSY, load_report(3.0, 2, 60), load_report(40.0, 2, 60), load_report(80.0, 0, 40))
)
LEAKING = Target(calls=(*BUSY, load_report(3.0, 1, 60), load_report(80.0, 0, 56)))


def crowded(stream: Stream) -> tuple[Stream, ...]:
    """A request twice by itself, and once among five with other prompts."""
    alone = whole(prompt_key="p", key="p")
    others = (
        sent_at(named(whole(prompt_key=f"q{n}"), f"generate/other-{n}"), 10.0, 2.0, scenario="one")
        for n in range(5)
    )
    return (
        sent_at(named(alone, "generate/alone"), 0.0),
        sent_at(named(alone, "generate/alone-again"), 3.0),
        sent_at(named(stream, "generate/among"), 10.5),
        *others,
    )


AMONG = incremental(Reply(ids=IDS[:5], text="abcde"), prompt_key="p", key="p5")

BATCH = whole(
    Reply(), Reply(ids=IDS[::-1], text="fedcba"), prompts=2, n=1, input_ids=(PROMPT, (4, 5)), batch=True
)
SINGLES = tuple(
    named(whole(Reply(ids=ids, text=text), input_ids=(prompt,)), f"generate/single-{text}-{turn}")
    for prompt, ids, text in ((PROMPT, IDS, "abcdef"), ((4, 5), IDS[::-1], "fedcba"))
    for turn in range(2)
)

COLD = _twin(whole(prompt_key="p"), "generate/cold")
COLD = change(COLD, counters={"cached_tokens": 0})
WARM = change(whole(prompt_key="p"), counters={"cached_tokens": 2})


def keyed(key: str, cached: int, seconds: float) -> Stream:
    """An answer under a key of the cache, which counts so many tokens of its prompt as cached."""
    stream = sent_at(_twin(whole(cache_key=key), f"generate/{key}-{seconds}"), seconds)
    return change(stream, counters={"cached_tokens": cached})


ADAPTED = Target(advertised=Advertised(adapters=frozenset({"first", "second"})))


def adapted(adapter: str, cached: int, seconds: float, *, named: str = "lora_path", **details: str) -> Stream:
    """An answer with an adapter or, with an empty one, without any."""
    sent = SentField(named, (adapter,)) if adapter else None
    reply = whole(Reply(details=details), adapter=sent, model=adapter if named == "model" else "")
    stream = sent_at(_twin(reply, f"generate/{adapter}-{seconds}"), seconds)
    return change(stream, counters={"cached_tokens": cached})


PLAIN = (adapted("", 0, 0), adapted("", 2, 2))


def unknown(status: int, words: str) -> Stream:
    """The answer to a request for an adapter that is not there."""
    stream = refusal(status, {"message": words}, adapter=SentField("lora_path", ("nobody",)))
    return with_exchange(named(stream, f"{ADAPTERS}/{UNKNOWN}"), scenario=ADAPTERS)


def drawn(cached: int) -> Stream:
    """The first answer to a prompt that was drawn for it, under a salt that was drawn, too."""
    stream = with_exchange(named(keyed("new", cached, 0), "cache-keys/first"), scenario="cache-keys")
    return replace(stream, asked=replace(stream.asked, input_ids=(DRAWN_IDS,)))


DRAWN_IDS = tuple(range(10, 30))


SALTED = (keyed("one", 0, 0), keyed("one", 2, 2))
FLUSHED = Target(calls=(called(Action.FLUSH, 5),))
SERIES = {"output_token_logprobs": logprobs(), "output_top_logprobs": top_logprobs()}
TOLD_MORE = _twin(whole(Reply(series=SERIES), prompt_key="p", logprobs=True, top_logprobs=2), "generate/more")


def told_less(first: float = -0.5) -> Stream:
    """The answer without top logprobs, the first of whose logprobs may be another."""
    entries = [[first, IDS[0], None], *logprobs()[1:]]
    return whole(Reply(series={"output_token_logprobs": entries}), prompt_key="p", logprobs=True)


CALM = change(_twin(whole(prompt_key="p"), "generate/calm"), counters={"num_retractions": 0})
PREEMPTED = change(whole(prompt_key="p"), counters={"num_retractions": 2})

LONG_STREAM = incremental(Reply(ids=LONG[:120], text=None))


def growing(stream: Stream) -> Stream:
    """The stream with events that get longer and longer."""

    def longer(place: Place) -> Place:
        return place._replace(end=place.end + 20 * (place.event or 0))

    events = tuple(replace(event, place=longer(event.place)) for event in stream.events)
    emissions = tuple(
        replace(emission, event=events[emission.event.index]) for emission in stream.choices[0].emissions
    )
    return replace(stream, events=events, choices=(replace(stream.choices[0], emissions=emissions),))


TWO_RANKS = Target(advertised=Advertised(dp_size=2))


def sharing(label: str, prompt: int, cached: int) -> Stream:
    """An answer to a conversation with a system message that others have."""
    message = {"role": "assistant", "content": "a"}
    usage = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    document = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return answered(
        "openai-chat",
        {"model": "m", "messages": [{"role": "user", "content": label}], "max_tokens": 1},
        {**document, "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}},
        scenario="shared-beginnings",
        label=label,
    )


ABORT_AND_INVARIANCE_PAIRS = [
    Pair(
        "rank-is-the-asked-one",
        whole(Reply(details={"dp_rank": 1}), rank=1),
        whole(Reply(details={"dp_rank": 0}), rank=1),
        pointer="/dp_rank",
    ),
    Pair("unknown-rank-refused", refusal(400, rank=2), whole(rank=2), target=TWO_RANKS),
    Pair("unknown-rank-refused", refusal(400, rank=-1), whole(rank=-1), target=TWO_RANKS, why="below 0"),
    Pair(
        "abort-ends-the-request",
        aborted(),
        aborted(Reply()),
        5,
        "/finish",
        target=ABORTED,
    ),
    Pair(
        "abort-knows-the-clients-id",
        aborted(dialect="vllm-generate"),
        aborted(Reply(), dialect="vllm-generate"),
        5,
        "/finish",
        target=ABORTED,
        why="the server has an id of its own for it",
    ),
    Pair("abort-is-told", aborted(), aborted(replace(CUT, finish=STOP)), 2, "/finish", target=ABORTED),
    Pair(
        "aborted-ids-are-counted",
        aborted(),
        change(aborted(), counters={"completion_tokens": 9}),
        2,
        "/output_ids",
        why="count",
    ),
    Pair(
        "aborted-ids-are-counted",
        cumulative(CUT),
        change(cumulative(CUT), output_ids=[13], counters={"completion_tokens": 1}),
        2,
        "/output_ids",
        why="taken back",
    ),
    Pair(
        "aborted-ids-are-counted",
        aborted(CUT_SERIES),
        change(aborted(CUT_SERIES), series={"output_token_logprobs": []}),
        2,
        "/output_ids",
        why="series",
    ),
    Pair(
        "aborted-answer-is-a-prefix",
        (UNDISTURBED, PREFIX),
        (UNDISTURBED, change(PREFIX, text="abc")),
        2,
        "/text",
        why="text again",
    ),
    Pair(
        "aborted-answer-is-a-prefix",
        (UNDISTURBED, PREFIX),
        (UNDISTURBED, change(PREFIX, output_ids=[99])),
        2,
        "/output_ids",
        why="another id",
    ),
    Pair(
        "abort-spares-others",
        (NEIGHBOUR,),
        (sent_at(incremental(CUT, request_id="r-10"), 0.0),),
        2,
        "/finish",
        target=ABORTED,
    ),
    Pair(
        "abort-of-nobody-is-no-failure",
        (NEIGHBOUR,),
        (NEIGHBOUR,),
        6,
        target=Target(calls=(abort(0.5, "nobody", status=404),)),
        bad_target=Target(calls=(abort(0.5, "nobody", status=500),)),
    ),
    Pair(
        "abort-without-ids-is-refused",
        (NEIGHBOUR,),
        (NEIGHBOUR,),
        6,
        target=Target(calls=(abort(0.5, "nobody"), without_ids(400))),
        bad_target=Target(calls=(abort(0.5, "nobody"), without_ids(200))),
    ),
    Pair(
        "left-stream-is-ended",
        (_left(stream=True), STAYING),
        (_left(stream=True), STAYING),
        6,
        target=FREED,
        bad_target=STILL_BUSY,
        why="still live",
    ),
    Pair(
        "left-stream-is-ended",
        (_left(stream=True), STAYING),
        (_left(stream=True), STAYING),
        6,
        target=FREED,
        bad_target=LEAKING,
        why="still held",
    ),
    Pair(
        "left-request-is-ended",
        (_left(stream=False), STAYING),
        (_left(stream=False), STAYING),
        target=FREED,
        bad_target=STILL_BUSY,
    ),
    Pair(
        "id-in-use-spares-the-first",
        (LASTING, SECOND),
        (sent_at(incremental(CUT, request_id="r-1"), 0.0), SECOND),
        2,
        "/finish",
    ),
    Pair("ended-id-is-free-again", (FIRST, AGAIN), (FIRST, sent_at(CUT_AGAIN, 1.5)), 2, "/finish"),
    Pair(
        "abort-ends-every-choice",
        several(CUT, CUT),
        several(CUT, Reply()),
        8,
        "/finish",
        target=ABORTED,
    ),
    Pair(
        "abort-of-a-choice-is-of-that-alone",
        several(Reply(), CUT),
        several(CUT, CUT),
        4,
        "/finish",
        target=ONE_ABORTED,
        why="siblings",
    ),
    Pair(
        "abort-of-a-choice-is-of-that-alone",
        several(Reply(), CUT),
        several(Reply(), Reply()),
        11,
        "/finish",
        target=ONE_ABORTED,
        why="itself",
    ),
    Pair("aborted-request-is-answered", aborted(), LEFT, 3, target=ABORTED, why="in a stream"),
    Pair(
        "aborted-request-is-answered",
        sent_at(whole(CUT, request_id="r-1"), 0.0),
        sent_at(refusal(499, GONE_CLIENT, request_id="r-1"), 0.0),
        target=ABORTED,
        why="whole",
    ),
    Pair(
        "empty-abort-is-an-answer",
        (NEIGHBOUR, aborted(IN_QUEUE)),
        (NEIGHBOUR, change(aborted(IN_QUEUE), counters={"prompt_tokens": GONE})),
        0,
        "/finish",
        why="no count of the prompt",
    ),
    Pair(
        "empty-abort-is-an-answer",
        (NEIGHBOUR, aborted(IN_QUEUE)),
        (NEIGHBOUR, change(aborted(IN_QUEUE), output_ids=None)),
        0,
        "/finish",
        why="no list of ids",
    ),
    Pair(
        "neighbours-change-nothing",
        crowded(AMONG),
        crowded(change(AMONG, output_ids=[7])),
        4,
        "/output_ids",
    ),
    Pair(
        "batch-items-stand-alone",
        (*SINGLES, BATCH),
        (*SINGLES, change(BATCH, choice=1, output_ids=list(IDS))),
        None,
        "/output_ids",
    ),
    Pair(
        "batch-items-stand-alone",
        (*SINGLES, BATCH),
        (*SINGLES, change(BATCH, choice=1, output_ids=[*IDS[::-1], 0])),
        None,
        "/finish",
        why="an item that is padded",
    ),
    Pair(
        "cached-tokens-keep-to-their-key",
        (*SALTED, keyed("two", 0, 4)),
        (*SALTED, keyed("two", 2, 4)),
        pointer="/cached_tokens",
    ),
    Pair("new-prompts-are-not-cached", (drawn(8),), (drawn(9),), pointer="/cached_tokens"),
    Pair(
        "shared-beginnings-alone-are-cached",
        (sharing("beginning", 20, 0), sharing("second", 40, 20)),
        (sharing("beginning", 20, 0), sharing("second", 40, 21)),
        pointer="/usage/prompt_tokens_details/cached_tokens",
    ),
    Pair(
        "cached-tokens-keep-to-their-adapter",
        (*PLAIN, adapted("first", 0, 4)),
        (*PLAIN, adapted("first", 2, 4)),
        pointer="/cached_tokens",
        target=ADAPTED,
    ),
    Pair(
        "unknown-adapters-are-refused",
        unknown(404, "the model 'nobody' does not exist"),
        unknown(500, "KeyError: 'nobody'"),
    ),
    Pair(
        "unknown-adapters-are-refused",
        unknown(400, "nobody is not loaded"),
        unknown(400, "no such adapter"),
        why="it names nothing",
    ),
    Pair(
        "answer-names-its-adapter",
        adapted("first", 0, 4, named="model", model="first"),
        adapted("first", 0, 4, named="model", model="tiny"),
        pointer="/model",
        target=ADAPTED,
    ),
    Pair(
        "flushed-tokens-are-not-counted",
        (*SALTED, keyed("one", 0, 6)),
        (*SALTED, keyed("one", 2, 6)),
        pointer="/cached_tokens",
        target=FLUSHED,
    ),
    Pair(
        "flushed-tokens-are-not-counted",
        (*SALTED, keyed("one", 0, 6)),
        (*SALTED, keyed("one", 2, 6)),
        pointer="/cached_tokens",
        target=Target(calls=(replace(called(Action.UPDATE, 5), flushes=True),)),
        why="an update of the weights flushes",
    ),
    Pair(
        "cache-changes-nothing",
        (COLD, WARM),
        (COLD, change(WARM, output_ids=[11, 12, 13, 14, 15, 9])),
        None,
        "/output_ids",
    ),
    Pair(
        "cache-keys-change-nothing",
        (COLD, _twin(whole(prompt_key="p", cache_key="one"))),
        (COLD, change(_twin(whole(prompt_key="p", cache_key="one")), output_ids=[11, 12, 13, 14, 15, 9])),
        None,
        "/output_ids",
    ),
    Pair(
        "asking-for-more-changes-nothing",
        (TOLD_MORE, told_less()),
        (TOLD_MORE, told_less(0.0)),
        why="the first logprob",
    ),
    Pair(
        "asking-for-more-changes-nothing",
        (TOLD_MORE, told_less()),
        (TOLD_MORE, change(told_less(), output_ids=[*IDS[:5], 99])),
        pointer="/output_ids",
        why="an id",
    ),
    Pair(
        "preemption-changes-nothing",
        (CALM, PREEMPTED),
        (CALM, change(PREEMPTED, text="abcabc")),
        None,
        "/text",
    ),
    Pair("events-do-not-grow", LONG_STREAM, growing(LONG_STREAM), 90),
]


def near_tie(gap: float) -> tuple[Stream, Stream]:
    """A cold answer, and a warm one whose third id is the runner-up, so much less likely."""
    tops = top_logprobs()
    tops[2] = [[-0.5, 13, None], [-0.5 - gap, 90, None]]
    sampled = [*logprobs()[:2], [-0.5, 13, None], *logprobs()[3:]]
    series = {"output_token_logprobs": sampled, "output_top_logprobs": tops}
    cold = change(
        named(whole(Reply(series=series), prompt_key="p"), "generate/cold"), counters={"cached_tokens": 0}
    )
    return cold, change(WARM, output_ids=[11, 12, 90, 1, 2, 3], text="abxyz?")
