"""Where the checks of how requests end say nothing, or let pass what servers may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from abort_and_invariance_pairs import (
    ABORTED,
    AGAIN,
    CUT,
    CUT_AGAIN,
    FIRST,
    GONE_CLIENT,
    LEFT,
    NEIGHBOUR,
    _error_in_the_place_of_the_end,
    aborted,
    several,
)
from constraint_pairs import WORD_IDS
from control_calls import abort, sent_at
from finish_and_error_pairs import unlimited
from letter_tokenizer import SPECIAL, LetterTokenizer
from stream_builder import ABORT, LENGTH, Reply, change, incremental, named, refusal, with_exchange
from test_checks_pairs import observe, why_left_out
from wire_answers import answered

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending

UNCALLED = Target(calls=(abort(-1.0, "r-1"), abort(0.05, "r-2"), abort(0.05, "r-1", status=500)))


@pytest.mark.parametrize(
    ("stream", "target"),
    [
        (LEFT, UNCALLED),
        (sent_at(refusal(499, GONE_CLIENT, request_id="r-2"), 0.0), ABORTED),
        (sent_at(refusal(400, request_id="r-1"), 0.0), ABORTED),
        (sent_at(refusal(503, request_id="r-1"), 0.0), ABORTED),
        (with_exchange(LEFT, ending=Ending.HUNG_UP), ABORTED),
        (aborted(Reply(finish=LENGTH)), ABORTED),
    ],
    ids=["too early, of another, refused", "of another", "bad request", "busy", "we left", "came too late"],
)
def test_an_error_is_no_answer_to_an_abort_only_where_the_abort_caused_it(
    stream: object, target: Target
) -> None:
    assert observe("aborted-request-is-answered", stream, target) == []  # type: ignore[arg-type]  # any subject


def test_a_refusal_with_400_behind_delivered_tokens_is_the_aborts_doing() -> None:
    error = {"error": {"message": "aborted", "code": 400}}
    text_alone = _error_in_the_place_of_the_end(aborted(Reply(ids=None, text="abc", finish=ABORT)))
    for left in (LEFT, text_alone):
        seen = observe("aborted-request-is-answered", replace(left, error=error), ABORTED)
        assert [observation.holds for observation in seen] == [False]


def test_an_id_that_is_in_use_is_not_one_that_has_ended() -> None:
    assert observe("ended-id-is-free-again", (FIRST, sent_at(CUT_AGAIN, 0.5))) == []
    assert observe("ended-id-is-free-again", (with_exchange(FIRST, ending=Ending.HUNG_UP), AGAIN)) == []
    assert (
        observe(
            "ended-id-is-free-again", (FIRST, sent_at(CUT_AGAIN, 1.5)), Target(calls=(abort(1.6, "r-1"),))
        )
        == []
    )
    assert why_left_out("ended-id-is-free-again", (FIRST, sent_at(CUT_AGAIN, 0.5))) == [
        "requests with the same id overlap"
    ]


@pytest.mark.parametrize(
    ("stream", "context", "verdict"),
    [
        (unlimited(17, None), None, True),  # a client that left has seen enough
        (unlimited(16, None), 32, None),
        (unlimited(16), 32, False),
        (unlimited(16), None, None),  # the context may be full
        (unlimited(16), 26, None),
        (unlimited(16, "stop"), 32, None),
        (unlimited(16, max_tokens=16), 32, None),
        (unlimited(17), 32, True),
    ],
)
def test_an_unnamed_budget_is_judged_where_it_could_be_the_engines(
    stream: Stream, context: int | None, verdict: bool | None
) -> None:
    check = CHECKS["unnamed-budget-is-the-room"].on_stream
    assert check is not None
    found = list(check(stream, Target(advertised=Advertised(context_length=context))))
    assert [observation.holds for observation in found] == [verdict] * (verdict is not None)


def test_of_an_answer_that_counts_nothing_no_count_is_said() -> None:
    counts_nothing = replace(CUT, ids=None, counted=False)
    uncounted = sent_at(named(incremental(counts_nothing, request_id="r-1"), AGAIN.exchange.name), 1.5)
    (found,) = observe("ended-id-is-free-again", (FIRST, uncounted))
    assert "was aborted, and no abort was sent" in found.message


@pytest.mark.parametrize("seconds", [-3.0, 30.0], ids=["before both", "behind both"])
def test_an_abort_of_everything_touches_only_ended_ids_under_way_beside_it(seconds: float) -> None:
    """One such abort in a standard run switched the row off for the whole run."""
    elsewhere = Target(calls=(abort(seconds, everything=True),))
    assert observe("ended-id-is-free-again", (FIRST, AGAIN), elsewhere)
    assert not all(
        observation.holds
        for observation in observe("ended-id-is-free-again", (FIRST, sent_at(CUT_AGAIN, 1.5)), elsewhere)
    )
    beside = Target(calls=(abort(1.6, everything=True),))
    assert observe("ended-id-is-free-again", (FIRST, sent_at(CUT_AGAIN, 1.5)), beside) == []


def test_a_name_of_the_whole_request_is_no_name_of_one_choice() -> None:
    by_all = Target(calls=(abort(0.05, "r-1"), abort(0.05, "r-1_1")))
    assert observe("abort-of-a-choice-is-of-that-alone", several(CUT, CUT), by_all) == []
    assert (
        observe("abort-ends-every-choice", several(CUT, Reply()), Target(calls=(abort(0.05, "r-1_1"),))) == []
    )
    one_name = change(several(CUT, CUT), 0, 1, details={"request_id": "r-1_0"})
    assert observe("abort-of-a-choice-is-of-that-alone", one_name, ABORTED) == []


def test_what_no_answer_of_a_kind_tells_is_not_missed_in_an_empty_one() -> None:
    bare = Reply(ids=(), text="", finish=ABORT, counters={})
    plain = named(incremental(Reply(counters={})), "generate/plain")
    assert [
        observation.holds for observation in observe("empty-abort-is-an-answer", (plain, aborted(bare)))
    ] == [True]
    assert [
        observation.holds for observation in observe("empty-abort-is-an-answer", (NEIGHBOUR, aborted(bare)))
    ] == [False]
    assert observe("empty-abort-is-an-answer", (aborted(bare),)) == []
    with_ids = replace(NEIGHBOUR, asked=replace(NEIGHBOUR.asked, return_token_ids=True))
    assert observe("empty-abort-is-an-answer", (with_ids, aborted(bare))) == []


def test_an_answer_without_ids_counts_none() -> None:
    usual = incremental()
    empty = incremental(Reply(ids=(), text="", finish=ABORT))
    counted = change(empty, counters={"completion_tokens": 3})
    for stream, held in ((empty, True), (counted, False)):
        assert [
            observation.holds for observation in observe("empty-abort-is-an-answer", (usual, stream))
        ] == [held]


@pytest.mark.parametrize(
    ("starts", "duration"),
    [(77.0, 3.0), (1.5, 1.4), (3.1, 3.0)],
    ids=["much later", "too short", "behind it"],
)
def test_only_a_request_that_was_under_way_at_the_timer_shows_that_an_id_is_free(
    starts: float, duration: float
) -> None:
    """The first ended after 1 s, and SGLang clears it away 2 s after that."""
    row, other = "ended-id-is-free-again", sent_at(AGAIN, starts, duration)
    assert [observation.holds for observation in observe(row, (FIRST, AGAIN))] == [True]
    assert observe(row, (FIRST, other)) == []
    (why,) = why_left_out(row, (FIRST, other))
    assert why == "it was not running 2 s after a request with its id ended"
    cut = sent_at(CUT_AGAIN, starts, duration)
    assert [observation.holds for observation in observe(row, (FIRST, cut))] == [False]


def test_a_later_request_may_be_the_one_that_the_timer_of_the_first_meets() -> None:
    row, short = "ended-id-is-free-again", sent_at(AGAIN, 1.5, 0.5)
    third = sent_at(named(AGAIN, "generate/third"), 2.5, 1.0)
    assert [seen.place.exchange for seen in observe(row, (FIRST, short, third))] == ["generate/third"]


def test_where_no_timer_is_known_an_id_that_comes_back_at_once_is_free() -> None:
    row = "ended-id-is-free-again"
    first, again = (
        replace(stream, dialect="vllm-completions") for stream in (FIRST, sent_at(AGAIN, 1.5, 0.1))
    )
    assert [observation.holds for observation in observe(row, (first, again))] == [True]
    late = sent_at(again, 77.0)
    assert observe(row, (first, late)) == []
    (why,) = why_left_out(row, (first, late))
    assert why == "its id was reused more than 2 s after its last request"


def test_the_end_of_a_word_ends_an_answer_that_ignores_ends() -> None:
    """The server need not name an id for it."""
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 9, "ignore_eos": True}}
    answer = {"text": "abc", "output_ids": WORD_IDS, "meta_info": {"finish_reason": {"type": "stop"}}}
    assert [
        seen.holds for seen in observe("stop-has-a-cause", answered("sglang-generate", body, answer))
    ] == [False]
    body["sampling_params"]["regex"] = "abc"
    assert observe("stop-has-a-cause", answered("sglang-generate", body, answer)) == []


def test_where_no_text_is_told_the_ids_say_the_word() -> None:
    body = {"token_ids": [5], "sampling_params": {"max_tokens": 9, "structured_outputs": {"regex": "abc"}}}
    for ids, holds in ((WORD_IDS, True), (WORD_IDS[:2], False)):
        choice = {"index": 0, "logprobs": None, "finish_reason": "stop", "token_ids": [*ids, SPECIAL]}
        stream = answered("vllm-generate", body, {"request_id": "a", "choices": [choice]})
        found = observe("finished-text-is-a-word", stream, Target(tokenizer=LetterTokenizer()))
        assert {seen.holds for seen in found} == {holds}
        assert why_left_out("finished-text-is-a-word", stream)
