"""Illegal edits of recorded streams are caught, legal ones change nothing; and what catches could miss."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from proofs.mutation import trial
from proofs.mutation.edit import Edit, body_of
from proofs.mutation.illegal import ILLEGAL
from proofs.mutation.legal import LEGAL
from proofs.mutation.source import Source
from proofs.mutation.trial import Tally, try_illegal, try_legal
from proofs.mutations import Dice, recorded, run

from tokenwire.judging.verdict import Verdict

OF_EACH_KIND = 5 * settings().max_examples

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def every() -> list[Source]:
    return recorded()


class Drawn:
    """A hand that lets hypothesis draw, and so make small what fails."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def choose(self, options):
        return self._data.draw(st.sampled_from(options))


def test_there_are_streams_of_every_dialect_and_mode(every):
    assert len(every) >= 100
    assert {source.stream.dialect for source in every} >= {"sglang-generate", "sglang-chat", "vllm-chat"}
    assert {source.cumulative for source in every} == {True, False}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_edit_is_caught_at_the_edit_or_later(every, name):
    @settings(SETTINGS, max_examples=-(-OF_EACH_KIND // len(ILLEGAL)))
    @given(st.data())
    def caught(data):
        hand, tally = Drawn(data), Tally()
        assume(try_illegal(tally, hand.choose(every), name, hand))
        assert tally.missed == []

    caught()


def test_a_lost_finish_is_seen_where_it_stood_in_every_dialect(every):
    of_a_dialect = {source.stream.dialect: source for source in every}
    assert "anthropic-messages" in of_a_dialect
    for source in of_a_dialect.values():
        tally = Tally()
        assert try_illegal(tally, source, "the-finish-is-lost", Dice(0))
        assert tally.missed == []


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_edit_changes_no_verdict(every, name):
    @settings(SETTINGS, max_examples=-(-OF_EACH_KIND // len(LEGAL)))
    @given(st.data())
    def unchanged(data):
        hand, tally = Drawn(data), Tally()
        assume(try_legal(tally, hand.choose(every), name, hand))
        assert tally.false_alarms == []

    unchanged()


def test_the_long_run_tries_what_it_counts(every):
    tally = run(every, LEGAL, try_legal, 2 * len(LEGAL), seed=1)
    assert set(tally.tried) == set(LEGAL)
    assert set(tally.tried.values()) == {2}


def test_an_edit_without_a_place_is_no_success(every, monkeypatch):
    monkeypatch.setitem(LEGAL, "nowhere", lambda source, hand: None)
    with pytest.raises(ValueError, match="the edit 'nowhere' is not possible"):
        run(every[:1], ["nowhere"], try_legal, 1, seed=0)


def test_an_edit_that_nothing_sees_is_missed(every, monkeypatch):
    def invisible(source, hand):
        body = body_of(source)
        body.before = {0: ": a comment\n"}
        return Edit(body, 0)

    monkeypatch.setitem(ILLEGAL, "invisible", invisible)
    tally = Tally()
    assert try_illegal(tally, every[0], "invisible", Dice(0))
    assert "violations only before the edit: nothing" in tally.missed[0]


def test_a_change_of_a_verdict_is_an_alarm(every, monkeypatch):
    def harmful(source, hand):
        return ILLEGAL["the-end-mark-comes-twice"](source, hand)

    monkeypatch.setitem(LEGAL, "harmful", harmful)
    tally = Tally()
    assert try_legal(tally, every[0], "harmful", Dice(0))
    assert any(": done-ends-the-stream was " in words and " is FAIL" in words for words in tally.false_alarms)


def test_a_check_that_crashes_is_no_catch(every, monkeypatch):
    judged = trial.judge

    def crashed(runs):
        return [
            type(judgement)(
                judgement.requirement,
                judgement.scenario,
                Verdict.HARNESS_ERROR,
                reason="Oops",
                violations=judgement.violations,
            )
            for judgement in judged(runs)
        ]

    monkeypatch.setattr(trial, "judge", crashed)
    tally = Tally()
    assert try_illegal(tally, every[0], "the-end-mark-comes-twice", Dice(0))
    assert tally.missed[0].endswith(": Oops")
