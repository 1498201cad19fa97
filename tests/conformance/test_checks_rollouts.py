"""Pauses: which answers they may change, and which flushes they have to let through."""

from __future__ import annotations

import pytest
from control_calls import called, sent_at
from rollout_pairs import (
    CONTINUED,
    PAUSED,
    QUICK,
    UNDISTURBED,
    flushed_in_pause,
    paused,
    requested,
    running,
    state,
)
from stream_builder import ABORT, IDS, named, whole
from test_checks_pairs import observe, why_left_out

from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.record import Stream

ENDS = called(Action.PAUSE, 10.3, everything=True, effect="ends")
CUT = paused(IDS[:4], ABORT)


def observed(requirement: str, target: Target, *streams: Stream) -> list[bool]:
    on_run = CHECKS[requirement].on_run
    assert on_run is not None
    return [seen.holds for seen in on_run(streams, target)]


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ((ENDS, CONTINUED), "the pause ends what runs"),
        ((*PAUSED.calls, called(Action.ABORT, 10.35, everything=True)), "all was aborted in the pause"),
        ((*PAUSED.calls, called(Action.UPDATE, 10.35)), "other weights came in the pause"),
        ((*PAUSED.calls, called(Action.UPDATE, 5, status=400)), "other weights may have come before it"),
        ((called(Action.PAUSE, 10.3), CONTINUED), "nobody knows what the mode does"),
    ],
)
def test_another_answer_after_a_pause_is_legal(calls: tuple[ControlCall, ...], why: str) -> None:
    assert observed("pause-changes-nothing", Target(calls=calls), UNDISTURBED, CUT) == [], why


def test_the_answer_under_the_same_weights_is_the_one_that_counts() -> None:
    target = Target(calls=(*PAUSED.calls, called(Action.UPDATE, 5)))
    later = sent_at(named(whole(prompt_key="p"), "generate/later"), 20)
    assert observed("pause-changes-nothing", target, UNDISTURBED, CUT, later) == [False]


@pytest.mark.parametrize(
    ("starts", "duration"), [(10.0, 0.305), (10.0, 0.35), (10.2, 0.15)], ids=["before", "within", "too short"]
)
def test_an_answer_that_ends_before_it_is_continued_was_not_changed_by_a_pause(
    starts: float, duration: float
) -> None:
    """The pause is answered after 10.31 s, and over after 10.4 s."""
    row = "pause-changes-nothing"
    assert observed(row, PAUSED, UNDISTURBED, paused()) == [True]
    short = sent_at(paused(), starts, duration)
    assert observe(row, (UNDISTURBED, short), PAUSED) == []
    assert why_left_out(row, (UNDISTURBED, short), PAUSED) == ["it was not running during the whole pause"]
    assert observed(row, PAUSED, UNDISTURBED, sent_at(CUT, starts, duration)) == [False]


def test_a_cache_is_flushed_below_what_was_taken_back_only_if_something_was() -> None:
    row, target = "retracted-cache-can-be-flushed", flushed_in_pause()
    assert observed(row, target, paused()) == [True]
    for stream in (UNDISTURBED, sent_at(paused(), 10.0, 0.32), sent_at(paused(), 10.32)):
        assert observe(row, (stream,), target) == []
        assert why_left_out(row, (stream,), target) == [
            "the pause retracted no request that was still unfinished at the flush"
        ]
        assert observed(row, flushed_in_pause(400), stream) == [False]


@pytest.mark.parametrize("effect", ["keeps", "ends", ""])
def test_a_flush_may_be_refused_in_other_pauses(effect: str) -> None:
    _, flush, _ = flushed_in_pause(400).calls
    calls = (called(Action.PAUSE, 10.3, effect=effect), flush, CONTINUED)
    assert observed("retracted-cache-can-be-flushed", Target(calls=calls)) == []


def test_a_flush_after_the_pause_or_beside_its_end_may_be_refused() -> None:
    pause, _, _ = flushed_in_pause().calls
    for seconds in (10.405, 10.5):
        calls = (pause, CONTINUED, called(Action.FLUSH, seconds, status=400))
        assert observed("retracted-cache-can-be-flushed", Target(calls=calls)) == []
    beside = (pause, called(Action.FLUSH, 10.395, status=400), CONTINUED)
    assert observed("retracted-cache-can-be-flushed", Target(calls=beside)) == []


@pytest.mark.parametrize(
    ("seconds", "reported", "seen"),
    [
        (10.33, False, [False]),
        (10.33, None, [False]),
        (10.45, False, [True]),
        (10.45, True, [False]),
        (10.305, False, []),
        (10.405, True, []),
        (9.0, True, []),
    ],
    ids=["in it", "a null", "after it", "still", "beside the pause", "beside its end", "before all"],
)
def test_a_state_is_judged_between_the_calls_that_change_it(
    seconds: float, reported: object, seen: list[bool]
) -> None:
    target = Target(calls=(*PAUSED.calls, state(seconds, reported)))
    assert observed("paused-state-is-reported", target) == seen


def test_a_refused_pause_changes_no_state() -> None:
    refused = called(Action.PAUSE, 10.5, status=400)
    calls = (*PAUSED.calls, refused, state(10.6, reported=False))
    assert observed("paused-state-is-reported", Target(calls=calls)) == [True]


def test_an_unknown_pause_is_judged_where_a_known_one_is_done() -> None:
    row, unknown = "unknown-pause-is-refused", called(Action.PAUSE, 10.2, status=404)
    assert observed(row, Target(calls=(unknown, called(Action.PAUSE, 10.3, status=404)))) == []
    assert observed(row, Target(calls=(unknown, *PAUSED.calls))) == [True]


def test_a_pause_shorter_than_the_wait_for_a_token_shows_nothing() -> None:
    row, late = "paused-server-generates-nothing", requested(10.32, 0.09)
    slow = requested(0, 0.085, "generate/short")
    for streams in ((slow, late), (late,)):
        assert observe(row, streams, PAUSED) == []
        assert why_left_out(row, streams, PAUSED) == [
            "the pause was shorter than a stream waits for its first token"
        ]
    assert observed(row, PAUSED, slow, requested(10.32, 0.05)) == [False], "a token proves it all the same"
    for sent in (10.2, 10.305, 10.41):
        assert observed(row, PAUSED, slow, requested(sent, 0.01)) == [], "not requested in the pause"


def test_a_stream_that_would_have_lasted_longer_than_the_pause_shows_nothing() -> None:
    row = "paused-stream-does-not-end"
    assert observe(row, (UNDISTURBED, running(0.5)), PAUSED) == []
    assert why_left_out(row, (UNDISTURBED, running(0.5)), PAUSED) == [
        "the pause was shorter than the stream takes without a pause"
    ]
    assert observed(row, PAUSED, QUICK, running(0.35, come=2)) == [], "more than a quarter had come"
    assert observed(row, PAUSED, QUICK, running(0.305)) == [], "it ended beside the pause"
    assert observed(row, Target(calls=(ENDS, CONTINUED)), QUICK, running(0.35)) == []
