"""What checks are about: an answer that a check is not about is not given to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stream_builder import build

from tokenwire.checks.about import ANY, INCREMENTAL, STREAMED, About, about, traits_of
from tokenwire.checks.check import CHECKS, Check, Target
from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.record import Delivery, Stream
from tokenwire.requirement import load_requirements

WHOLE, CUMULATIVE = build(Delivery.WHOLE, name="whole"), build(Delivery.CUMULATIVE, name="cumulative")


@pytest.mark.parametrize(
    ("wanted", "admitted"),
    [
        (ANY, [True, True]),
        (STREAMED, [False, True]),
        (INCREMENTAL, [False, False]),
        (about(delivery=Delivery.WHOLE, finished=True, ended=True, answered=True), [True, False]),
        (about(chat=True), [False, False]),
        (about(chat=False, event_stream=False), [True, False]),
        (about("logprobs"), [False, False]),
        (about("stream"), [False, True]),
        (about(unasked=("stream",)), [True, False]),
    ],
)
def test_an_answer_is_admitted_by_what_it_is(wanted: About, admitted: list[bool]) -> None:
    assert [wanted.admits(traits_of(stream)) for stream in (WHOLE, CUMULATIVE)] == admitted


def test_a_request_admits_by_what_it_asks_for() -> None:
    asking = build(Delivery.WHOLE, logprobs=True, top_logprobs=2)
    assert about("logprobs", "top_logprobs").admits(traits_of(asking))
    assert not about("logprobs", "stop").admits(traits_of(asking))


def test_a_wish_that_no_request_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="'logprob' is unknown; the wishes are"):
        about("logprob")
    with pytest.raises(ValueError, match="'streams' is unknown; the wishes are"):
        about(unasked=("streams",))


def test_what_a_request_must_not_ask_for_is_told_as_a_stage() -> None:
    stages = dict(about("usage", unasked=("echo",)).stages())
    assert list(stages) == ["asked for usage", "not asked for echo"]
    assert stages["not asked for echo"](traits_of(WHOLE))
    assert not stages["not asked for echo"](traits_of(build(Delivery.WHOLE, echo=True)))


def test_the_judge_gives_a_check_only_the_answers_that_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def observe(stream: Stream, _target: Target) -> Iterator[Observation]:
        given.append(stream.exchange.name)
        yield from ()

    requirement = load_requirements()["counter-follows-ids"]
    monkeypatch.setitem(CHECKS, requirement.id, Check(requirement.id, observe=observe, about=STREAMED))
    judge([Run((WHOLE, CUMULATIVE))], [requirement])
    assert given == ["cumulative"]
