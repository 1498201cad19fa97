"""Where the checks of aborts, isolation and invariance say nothing, or let pass what servers may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from abort_and_invariance_pairs import (
    ABORTED,
    AMONG,
    BUSY,
    COLD,
    FIRST,
    LASTING,
    LONG,
    NEIGHBOUR,
    PREFIX,
    SECOND,
    STAYING,
    UNDISTURBED,
    WARM,
    _left,
    aborted,
    crowded,
    near_tie,
)
from control_calls import abort, called, load_report, sent_at, without_ids
from live_captures import live_run, verdict
from stream_builder import (
    ABORT,
    FAILED,
    IDS,
    LENGTH,
    Reply,
    change,
    incremental,
    logprobs,
    named,
    whole,
    with_exchange,
)
from test_checks_pairs import observe, why_left_out

from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.requirement import Level
from tokenwire.wire.exchange import Ending


def faults(requirement: str, subject: object, target: Target | None = None) -> list[str]:
    return [seen.message for seen in observe(requirement, subject, target) if not seen.holds]  # type: ignore[arg-type]  # any subject


@pytest.mark.parametrize(
    "target",
    [
        Target(),
        Target(calls=(abort(0.05, "r-10"),)),
        Target(calls=(abort(0.05, "r-1", status=404),)),
        Target(calls=(abort(-1.0, "r-1"),)),
        Target(calls=(abort(0.3, "r-1"),)),
    ],
    ids=["no abort", "of another", "refused", "before the first token", "late"],
)
def test_only_an_abort_in_good_time_has_to_end_a_stream(target: Target) -> None:
    assert observe("abort-ends-the-request", aborted(Reply()), target) == []


def _came_at(stream: Stream, *times: float) -> Stream:
    """The stream with the times at which its events came."""
    events = [
        replace(event, place=event.place._replace(time=time))
        for event, time in zip(stream.events, [*times, times[-1]], strict=True)
    ]
    (choice,) = stream.choices
    emissions = zip(choice.emissions, events, strict=False)
    moved = tuple(replace(emission, event=event) for emission, event in emissions)
    return replace(stream, events=tuple(events), choices=(replace(choice, emissions=moved),))


@pytest.mark.parametrize(
    ("times", "judged"),
    [
        ((7.83, 8.87, 8.87, 8.9, 9.0, 9.08), False),
        ((0.1, 1.2, 1.2, 1.2, 1.2, 1.2), False),
        ((0.1, 0.11, 0.12, 0.13, 0.14, 0.15), False),
        ((0.1, 0.2, 0.203, 0.206, 0.21, 0.213), False),
        ((0.1, 0.2, 0.203, 0.206, 0.21, 0.216), True),
        ((0.1, 0.5, 0.9, 1.3, 1.7, 2.1), True),
    ],
    ids=["slow to write", "stalled reader", "all at once", "too fast", "just slow enough", "as made"],
)
def test_tokens_that_had_to_wait_do_not_show_that_an_abort_was_ignored(
    times: tuple[float, ...], judged: bool
) -> None:
    """As 440 tokens came from vLLM 0.32.0, whose front end was busy: in a fifth of a second, after 7.8 s."""
    sent = {7.83: 8.34, 0.1: 0.105}[times[0]]
    target = Target(calls=(abort(sent, "r-1"),))
    assert bool(observe("abort-ends-the-request", _came_at(aborted(Reply()), *times), target)) is judged


def test_a_request_that_may_stop_by_itself_need_not_say_abort() -> None:
    cut = Reply(ids=IDS[:3], text="abc", finish=replace(LENGTH, type="stop"))
    assert faults("abort-is-told", aborted(cut), ABORTED)
    assert observe("abort-is-told", aborted(cut, ignore_eos=False), ABORTED) == []
    assert observe("abort-is-told", aborted(Reply()), ABORTED) == []


def test_a_failure_is_no_abort() -> None:
    cut = Reply(ids=IDS[:3], text="abc", finish=FAILED)
    assert observe("aborted-ids-are-counted", aborted(cut)) == []


def test_a_broken_character_at_the_end_of_an_aborted_text_is_not_compared() -> None:
    assert faults("aborted-answer-is-a-prefix", (UNDISTURBED, change(PREFIX, text="\ufffd"))) == []
    assert faults("aborted-answer-is-a-prefix", (UNDISTURBED, change(PREFIX, 0, text="\ufffd")))


def test_an_abort_of_everything_names_everybody() -> None:
    ended = sent_at(incremental(Reply(finish=replace(LENGTH, type="abort")), request_id="r-10"), 0.0)
    assert faults("abort-spares-others", (ended,), ABORTED)
    everything = Target(calls=(*ABORTED.calls, abort(0.1, everything=True)))
    assert observe("abort-spares-others", (ended,), everything) == []
    assert observe("abort-spares-others", (sent_at(NEIGHBOUR, 50.0),), ABORTED) == []


def test_an_abort_that_names_a_request_may_end_it_whichever_others_were_sent_beside_it() -> None:
    ended = sent_at(incremental(Reply(finish=ABORT), request_id="r-10"), 0.0)
    target = Target(calls=(*ABORTED.calls, abort(0.1, "r-10")))
    assert observe("abort-spares-others", (ended,), target) == []


@pytest.mark.parametrize(
    ("aborted_ids", "blamed"), [(("r-1", "q"), "'r-1'"), (("q", "s"), "'q', 's'"), (("0", "q"), "'0', 'q'")]
)
def test_of_several_aborts_the_one_whose_id_begins_the_name_of_what_it_ended_is_blamed(
    aborted_ids: tuple[str, ...], blamed: str
) -> None:
    ended = sent_at(incremental(Reply(finish=ABORT), request_id="r-10"), 0.0)
    target = Target(calls=tuple(abort(0.1, aborted_token) for aborted_token in aborted_ids))
    (found,) = observe("abort-spares-others", (ended,), target)
    assert found.message == f"request 'r-10' was ended by an abort of {blamed}"
    assert (found.holds, found.actual) == (False, "abort")


@pytest.mark.parametrize(
    ("call", "holds"),
    [
        (abort(5.0, "r-10", status=500), False),
        (abort(5.0, "r-10", status=499), True),
        (abort(5.0, "nobody", "r-10", status=503), False),
        (abort(0.5, "nobody", "r-10", status=500), None),
        (abort(0.5, "r-10", status=500), None),
        (abort(0.5, everything=True, status=500), None),
        (called(Action.FLUSH, 5.0, status=500), None),
    ],
    ids=["too late", "no failure", "both too late", "not of nobody", "in time", "of all", "no abort"],
)
def test_an_abort_that_comes_too_late_is_no_reason_to_fail(call: ControlCall, holds: bool | None) -> None:
    seen = observe("abort-of-nobody-is-no-failure", (NEIGHBOUR,), Target(calls=(call,)))
    assert [observation.holds for observation in seen] == ([] if holds is None else [holds])


def test_an_abort_is_too_late_for_an_id_that_was_used_again_while_it_is_too_late_for_one_of_its_users() -> (
    None
):
    late = Target(calls=(abort(5.5, "r-10", status=500),))
    assert faults("abort-of-nobody-is-no-failure", (NEIGHBOUR, sent_at(NEIGHBOUR, 5.0)), late)


def test_a_request_that_no_abort_met_in_full_shows_no_care() -> None:
    """It ended while the abort of another was on its way, or was sent behind it."""
    row = "abort-spares-others"
    assert observe(row, (NEIGHBOUR,), ABORTED)[0].holds
    for stream in (sent_at(NEIGHBOUR, 0.0, 0.055), sent_at(NEIGHBOUR, 0.055)):
        assert observe(row, (stream,), ABORTED) == []
        assert why_left_out(row, (stream,), ABORTED) == [
            "no other request was aborted while this one was running"
        ]


def test_an_abort_of_somebody_is_no_witness_for_one_of_nobody() -> None:
    row, timeless = "abort-of-nobody-is-no-failure", with_exchange(NEIGHBOUR, started="")
    target = Target(calls=(abort(5.5, "r-10"),))
    for streams in ((NEIGHBOUR, sent_at(NEIGHBOUR, 5.0)), (timeless,)):
        assert observe(row, streams, target) == []
        assert why_left_out(row, streams, target) == ["a request with the aborted id may have been running"]
    assert observe(row, (NEIGHBOUR,), target)[0].holds


@pytest.mark.parametrize(
    ("calls", "seen"),
    [
        ((abort(0.5, "nobody"), without_ids(422)), [True]),
        ((abort(0.5, "nobody"), without_ids(500)), [False]),
        ((abort(0.5, "nobody", status=501), without_ids(501)), []),
        ((without_ids(400),), []),
        ((abort(0.5, "nobody"), called(Action.ABORT, 0.6)), []),
    ],
    ids=["refused", "failed", "no endpoint", "no abort with ids", "no ids required"],
)
def test_an_abort_without_ids_is_judged_where_aborts_are_taken(
    calls: tuple[ControlCall, ...], seen: list[bool]
) -> None:
    observations = observe("abort-without-ids-is-refused", (NEIGHBOUR,), Target(calls=calls))
    assert [observation.holds for observation in observations] == seen


def test_an_abort_of_nobody_that_got_no_answer_says_nothing() -> None:
    call = abort(5.0, "nobody", status=500)
    cut = replace(call, exchange=replace(call.exchange, ending=Ending.TIMEOUT))
    assert observe("abort-of-nobody-is-no-failure", (NEIGHBOUR,), Target(calls=(cut,))) == []
    assert (
        observe("abort-of-nobody-is-no-failure", (sent_at(NEIGHBOUR, 0.0, scenario="x"),), Target((call,)))
        == []
    )


def test_a_second_request_after_the_first_is_no_collision() -> None:
    assert observe("id-in-use-spares-the-first", (FIRST, sent_at(SECOND, 5.0))) == []
    assert observe("id-in-use-spares-the-first", (FIRST, SECOND), ABORTED) == []


def test_a_first_request_that_ends_before_the_second_is_cleared_away_shows_nothing() -> None:
    """Four runs of a fast model passed whose server ends the first after two seconds."""
    check = CHECKS["id-in-use-spares-the-first"].on_run
    assert check is not None
    (seen,) = check((FIRST, SECOND), Target())
    assert seen.condition_only
    assert seen.message.startswith("it ended -0.2 s after the other; the server clears that one after 2 s")
    assert observe("id-in-use-spares-the-first", (LASTING, SECOND))[0].holds
    other = [replace(stream, dialect="vllm-completions") for stream in (LASTING, SECOND)]
    shorter = sent_at(other[0], 0.0, 1.3)
    assert observe("id-in-use-spares-the-first", (shorter, other[1]))[0].holds
    assert verdict(live_run("id-in-use-passes"), "id-in-use-spares-the-first") is Verdict.INCONCLUSIVE


def test_of_two_requests_under_one_id_the_one_that_began_first_has_to_be_spared() -> None:
    cut = sent_at(named(incremental(Reply(finish=ABORT), request_id="r-1"), "generate/second"), 0.2)
    assert faults("id-in-use-spares-the-first", (cut, FIRST)) == []
    first = sent_at(incremental(Reply(finish=ABORT), request_id="r-1"), 0.0)
    third = sent_at(named(SECOND, "generate/third"), 0.3)
    (found,) = observe("id-in-use-spares-the-first", (SECOND, third, first))
    assert (found.holds, found.actual, found.place.event) == (False, "abort", 5)
    assert [place.exchange for place in found.related] == [SECOND.exchange.name]


@pytest.mark.parametrize(
    "calls",
    [
        (),
        (load_report(-1.0, 1, 40), *BUSY[1:], load_report(40.0, 2, 60)),
        BUSY,
        (*BUSY, load_report(3.0, 2, 60), load_report(20.0, 2, 60)),
    ],
    ids=["nothing told", "others use it", "nothing told after", "too early to say"],
)
def test_a_load_that_does_not_tell_is_no_finding(calls: tuple[object, ...]) -> None:
    target = Target(calls=calls)  # type: ignore[arg-type]  # calls of any kind
    assert observe("left-stream-is-ended", (_left(stream=True), STAYING), target) == []


LEFT_THREE = [_left(stream=True) for _ in range(3)]


def with_duration(call: ControlCall, seconds: float) -> ControlCall:
    """The call as one that took so long."""
    return replace(call, exchange=replace(call.exchange.load(), duration=seconds))


def _staying(tokens_per_second: int) -> Stream:
    """The neighbour who stays."""
    staying = sent_at(
        named(incremental(Reply(ids=LONG, text=None)), "sglang-generate/one/staying"),
        0.0,
        600 / tokens_per_second,
    )
    reads = {number: number / tokens_per_second for number in range(len(LONG) + 1)}
    choice = staying.choices[0]
    emissions = tuple(
        replace(e, event=replace(e.event, place=e.event.place._replace(time=reads[e.event.index])))
        for e in choice.emissions
    )
    return replace(staying, choices=(replace(choice, emissions=emissions),))


def _gone_after(*looks: tuple[float, int], tokens_per_second: int) -> list[str]:
    """The faults found where three clients left a second after the start, and the server told its load so."""
    staying = _staying(tokens_per_second)
    left = [named(item, f"sglang-generate/one/leaving-{place}") for place, item in enumerate(LEFT_THREE)]
    calls = (load_report(-1.0, 0), *(load_report(when, live) for when, live in looks))
    seen = observe("left-stream-is-ended", (*left, staying), Target(calls=calls))
    return [("" if observation.holds else observation.message) for observation in seen]


def test_only_a_look_that_shows_live_requests_says_that_clients_who_left_are_still_served() -> None:
    """A stream of four tokens an event was 300 tokens further at the first look, which showed nobody live."""
    assert _gone_after((0.5, 4), (1.9, 0), tokens_per_second=300) == []
    found = _gone_after((0.5, 4), (1.9, 4), (1.98, 1), tokens_per_second=300)
    assert found == ["3 clients left, and 270 tokens later 4 of 4 requests were still live"]


def test_a_look_that_began_while_the_last_client_was_leaving_shows_that_all_are_gone() -> None:
    """As vLLM was asked: a look sent before the last hang-up was over, answered after it."""
    assert _gone_after((0.5, 4), (0.995, 1), (2.9, 0), tokens_per_second=160) == [""]


def test_a_look_sent_before_the_last_client_left_shows_nobody_as_still_served() -> None:
    """As SGLang's router was asked: the look was sent 4 ms too early, and read 2.4 s later."""
    staying = _staying(300)
    left = [named(item, f"sglang-generate/one/leaving-{place}") for place, item in enumerate(LEFT_THREE)]
    early, late = (
        with_duration(load_report(sent, 4), seconds) for sent, seconds in ((0.99, 0.9), (1.9, 0.01))
    )
    for look_at, found in ((early, []), (late, [False])):
        calls = (load_report(-1.0, 0), load_report(0.5, 4), look_at)
        seen = observe("left-stream-is-ended", (*left, staying), Target(calls=calls))
        assert [observation.holds for observation in seen] == found


def test_a_server_that_has_not_counted_all_requests_yet_says_nothing() -> None:
    """SGLang's count lagged half a second: 2 of the 4 requests under way."""
    assert _gone_after((0.5, 2), (1.2, 4), (1.98, 4), tokens_per_second=300) == []
    assert _gone_after((0.5, 3), (1.2, 1), tokens_per_second=300) == []


def test_after_the_neighbour_is_over_no_token_tells_how_late_a_look_is() -> None:
    assert _gone_after((0.5, 4), (1.2, 4), (30.0, 0), tokens_per_second=500) == []


def test_who_stays_to_the_end_has_not_left() -> None:
    stayed = with_exchange(_left(stream=True), ending=Ending.COMPLETE)
    assert (
        observe("left-stream-is-ended", (stayed, STAYING), Target(calls=(*BUSY, load_report(40.0, 2)))) == []
    )


def test_near_ties_may_flip_and_others_may_not() -> None:
    assert faults("cache-changes-nothing", near_tie(0.05)) == []
    assert faults("cache-changes-nothing", near_tie(0.5))


@pytest.mark.parametrize(
    ("target", "level"),
    [
        (Target(capabilities=frozenset({"batch-invariance"})), None),
        (Target(), Level.SHOULD),
    ],
    ids=["told or declared", "undeclared"],
)
def test_what_differs_by_chance_fails_who_declares_determinism_and_warns_of_others(
    target: Target, level: Level | None
) -> None:
    other = change(WARM, output_ids=[11, 12, 13, 14, 15, 9])
    torn = [
        observation
        for observation in observe("cache-changes-nothing", (COLD, other), target)
        if not observation.holds
    ]
    assert [(observation.by_chance, observation.level) for observation in torn] == [(True, level)]
    text = [
        observation
        for observation in observe("cache-changes-nothing", (COLD, change(WARM, text="x")), target)
        if not observation.holds
    ]
    assert [(observation.by_chance, observation.level) for observation in text] == [(False, None)], (
        "the same ids have the same text"
    )


def test_logprobs_may_drift_and_not_change() -> None:
    series = {"output_token_logprobs": logprobs()}
    cold = change(COLD, series=series)
    warm = change(
        WARM, series={"output_token_logprobs": [[logprob - 0.1, *rest] for logprob, *rest in logprobs()]}
    )
    assert faults("cache-changes-nothing", (cold, warm)) == []
    other = change(
        WARM, series={"output_token_logprobs": [[logprob - 0.5, *rest] for logprob, *rest in logprobs()]}
    )
    assert faults("cache-changes-nothing", (cold, other))


def test_what_was_not_asked_for_alike_is_not_compared() -> None:
    cold = change(COLD, series={"output_top_logprobs": [[[-0.5, 7, None]]] * 6})
    warm = change(WARM, series={"output_top_logprobs": [[[-0.5, 7, None], [-4.0, 8, None]]] * 6})
    assert faults("cache-changes-nothing", (cold, warm))
    asked = replace(warm, asked=replace(warm.asked, top_logprobs=2))
    assert faults("cache-changes-nothing", (cold, asked)) == []


def test_sampled_answers_are_not_compared() -> None:
    sampled = [
        replace(item, asked=replace(item.asked, greedy=False)) for item in (COLD, change(WARM, text="x"))
    ]
    assert observe("cache-changes-nothing", tuple(sampled)) == []


def test_without_a_crowd_or_without_repetition_nothing_is_said_of_neighbours() -> None:
    changed = change(AMONG, output_ids=[7])
    first, second, among, *others = crowded(changed)
    assert faults("neighbours-change-nothing", (first, second, among, *others))
    assert observe("neighbours-change-nothing", (first, second, among, *others[:3])) == []
    assert observe("neighbours-change-nothing", (first, among, *others)) == []


def test_a_short_stream_does_not_show_what_events_cost() -> None:
    assert observe("events-do-not-grow", incremental(Reply(ids=tuple(range(60)), text=None))) == []
    assert observe("events-do-not-grow", whole()) == []
