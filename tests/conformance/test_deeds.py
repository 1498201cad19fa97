"""Deeds have a time, and touch the exchanges that overlap them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_calls import abort, called, load_report, sent_at
from stream_builder import whole

from tokenwire.checks.reading.deeds import DEATH, Deeds
from tokenwire.dialects.control import Action
from tokenwire.target.death import Death


@pytest.mark.parametrize(("seconds", "touches"), [(-1.0, False), (0.0, True), (0.99, True), (1.01, False)])
def test_a_call_touches_what_is_under_way_between_its_sending_and_its_answer(
    seconds: float, touches: bool
) -> None:
    exchange = sent_at(whole(), 0.0, 1.0).exchange
    deeds = Deeds((abort(seconds, everything=True),), ())
    assert bool(deeds.beside(exchange, Action.ABORT)) is touches


def test_a_deed_or_an_exchange_of_unknown_time_overlaps_all() -> None:
    call = abort(50.0, "r-1")
    timeless = replace(call, exchange=replace(call.exchange.load(), started=""))
    assert Deeds((timeless,), ()).beside(sent_at(whole(), 0.0).exchange, Action.ABORT)
    assert Deeds((call,), ()).beside(whole().exchange, Action.ABORT)


def test_deeds_are_told_apart_by_kind_and_by_whom_they_name() -> None:
    calls = (abort(0.1, "r-1"), called(Action.PAUSE, 0.2), load_report(0.3, 1))
    death = Death(whole(), 1, frozenset(), early=False, final=True, began=0.0, ended=1.0)
    deeds = Deeds(calls, (death,))
    assert [deed.kind for deed in deeds.every] == [Action.ABORT, Action.PAUSE, DEATH]
    (found,) = deeds.beside(sent_at(whole(), 0.0).exchange, Action.ABORT)
    assert (found.names({"r-1", "q"}), found.names({"q"})) == (True, False)
