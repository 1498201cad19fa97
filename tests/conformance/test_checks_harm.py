"""Harm done by a bad request: what tells it from a target that never repeats itself."""

from __future__ import annotations

from dataclasses import replace

from abort_and_invariance_pairs import crowded
from control_calls import abort, sent_at
from stream_builder import IDS, change, incremental, named, refusal, whole, with_exchange
from test_determinism import copies

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import SentField
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.judging.chance import determinism
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending

HARM = "refused-request-harms-nobody"
BEFORE = named(whole(), "generate/control")
AGAIN = named(whole(), "generate/control-again")
AFTER = named(whole(), "generate/bad-control")
CHANGED = named(change(whole(), output_ids=[*IDS[:5], 99]), "generate/bad-control")
OTHER_KEY = tuple(named(whole(key="other"), f"generate/probe-{which}") for which in (1, 2))


def harmed(*streams: Stream, target: Target | None = None) -> list[Observation]:
    check = CHECKS[HARM].on_run
    assert check is not None
    if target is None:
        seen = determinism(streams)
        target = Target(repeated=seen.repeated, contradicted=seen.contradicted)
    return [observation for observation in check(streams, target) if not observation.holds]


def test_an_answer_that_changed_after_a_bad_request_is_found_though_it_contradicts_itself() -> None:
    found = harmed(*OTHER_KEY, BEFORE, AGAIN, refusal(), CHANGED)
    assert [observation.place.exchange for observation in found] == ["generate/bad-control"]


def test_an_abort_of_everything_elsewhere_excuses_no_bad_request() -> None:
    """One such abort in a standard run switched the row off for the whole run."""
    streams = [
        sent_at(stream, 10.0 * index)
        for index, stream in enumerate((*OTHER_KEY, BEFORE, AGAIN, refusal(), CHANGED))
    ]
    seen = determinism(streams)
    target = Target(repeated=seen.repeated, contradicted=seen.contradicted)
    elsewhere, beside = (replace(target, calls=(abort(when, everything=True),)) for when in (35.0, 50.5))
    assert len(harmed(*streams, target=elsewhere)) == 1
    assert harmed(*streams, target=beside) == []


def verdicts(*streams: Stream) -> set[Verdict]:
    run = Run((*OTHER_KEY, BEFORE, AGAIN, refusal(), *streams))
    return {judgement.verdict for judgement in judge([run], [load_requirements()[HARM]])}


def test_the_judge_lets_the_check_see_what_contradicts_itself() -> None:
    assert verdicts(change(AFTER, output_ids=list(IDS[:5]))) == {Verdict.FAIL}


def test_one_answer_that_goes_another_way_is_a_warning_where_no_other_ever_did() -> None:
    """It has other ids and the same text. Where others differ, too, it may be a near tie."""
    assert verdicts(CHANGED) == {Verdict.WARN}
    flipping = [
        *copies(whole(key="z"), ["za", "zb"]),
        *copies(change(whole(key="z"), output_ids=[*IDS[:5], 99]), ["zc"]),
    ]
    assert verdicts(CHANGED, *flipping) == {Verdict.INCONCLUSIVE}


def test_answers_that_differ_behind_refusals_alone_do_not_excuse_themselves() -> None:
    """They contradicted the same requests elsewhere, so that the target `did not repeat itself`."""
    assert verdicts(CHANGED, refusal(), named(CHANGED, "generate/control-2")) == {Verdict.FAIL}


def test_one_answer_before_is_not_enough_to_blame_the_bad_request() -> None:
    assert harmed(*OTHER_KEY, BEFORE, refusal(), CHANGED) == []


def test_a_target_that_contradicts_itself_elsewhere_is_not_blamed() -> None:
    unsteady = (named(whole(key="third"), "a"), named(change(whole(key="third"), output_ids=[1]), "b"))
    assert harmed(*OTHER_KEY, *unsteady, BEFORE, AGAIN, refusal(), CHANGED) == []


def test_a_target_that_was_not_seen_to_repeat_itself_is_not_blamed() -> None:
    assert harmed(BEFORE, AGAIN, refusal(), CHANGED, target=Target()) == []


def test_a_bad_request_that_was_answered_can_do_harm_too() -> None:
    answered = whole(sent={"n": SentField("n", (0,))}, key="")
    assert len(harmed(*OTHER_KEY, BEFORE, AGAIN, named(answered, "generate/bad"), CHANGED)) == 1


def test_a_control_that_got_no_answer_is_found() -> None:
    hung = with_exchange(replace(AFTER, choices=()), ending=Ending.TIMEOUT)
    assert [observation.message for observation in harmed(BEFORE, AGAIN, refusal(), hung)] == [
        "the request after a bad one got no complete answer (timeout)"
    ]


def test_what_a_stream_loses_on_its_way_is_no_harm() -> None:
    """The same stream loses its first event at other times too; the whole answer has all of it."""
    lossy = incremental()
    lossy = replace(lossy, choices=(replace(lossy.choices[0], emissions=lossy.choices[0].emissions[1:]),))
    control = named(lossy, "generate/bad-control")
    assert harmed(*OTHER_KEY, BEFORE, AGAIN, refusal(), control) == []
    assert harmed(*OTHER_KEY, BEFORE, AGAIN, named(lossy, "generate/stream"), refusal(), control) == []


def test_a_stream_is_held_against_a_stream() -> None:
    streams = [named(incremental(), f"generate/stream-{number}") for number in range(2)]
    changed = change(incremental(), output_ids=[99])
    found = harmed(*OTHER_KEY, *streams, BEFORE, refusal(), named(changed, "generate/bad-control"))
    assert [observation.place.exchange for observation in found] == ["generate/bad-control"]


def test_a_request_that_was_sent_before_a_refusal_came_is_not_behind_it() -> None:
    """Nothing that the refusal left behind could have changed it."""
    before = [sent_at(stream, 3.0 * n) for n, stream in enumerate((*OTHER_KEY, BEFORE, AGAIN))]
    refused = sent_at(refusal(), 20.0)
    for seconds, count in ((20.5, 0), (21.0, 1)):
        assert len(harmed(*before, refused, sent_at(CHANGED, seconds))) == count


def test_the_refusal_of_another_endpoint_is_another_talk() -> None:
    elsewhere = refusal(dialect="sglang-chat")
    assert harmed(*OTHER_KEY, BEFORE, AGAIN, elsewhere, CHANGED) == []


def test_answers_that_change_after_every_bad_request_do_not_change_by_chance() -> None:
    changed = [
        item
        for number in range(3)
        for item in (
            refusal(),
            named(change(whole(), output_ids=[*IDS[:5], 99]), f"generate/control-{number}"),
        )
    ]
    assert verdicts(*changed) == {Verdict.FAIL}


def test_answers_beside_others_do_not_excuse_that_they_differ_from_those_alone() -> None:
    """They contradicted the answers alone, so that the target `did not repeat itself`. The server declares
    that results do not depend on the batch.
    """
    same = whole(prompt_key="p", key="p")
    alone, again, among, *others = crowded(same)
    for ids, verdict in ((IDS, Verdict.PASS), ((*IDS[:5], 99), Verdict.FAIL)):
        crowd = [change(named(among, f"generate/among-{n}"), output_ids=list(ids)) for n in range(3)]
        run = Run((alone, again, *crowd, *others), advertised=Advertised(deterministic=True))
        found = judge([run], [load_requirements()["neighbours-change-nothing"]])
        assert overall(judgement.verdict for judgement in found) is verdict
