"""The checked-in digests of requests match the scenarios, and another request changes one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proofs import same_requests

from tokenwire.asking.scenario import SCENARIOS, Conversation, load_scenarios

SOME = ("abort-of-one", "batch", "chat", "disconnect", "greedy", "logprobs", "stop-ids", "usage")


@pytest.mark.parametrize("part", SOME)
def test_requests_are_what_was_written_down(part: str) -> None:
    quick = same_requests.circumstances()[0]
    now = same_requests.digests(quick, [part])
    assert now
    written = same_requests.read_digests()
    assert {name: written.get(name) for name in now} == now


def test_requests_of_every_scenario_are_written_down() -> None:
    written = {name.split()[0] for name in same_requests.read_digests()}
    assert written == set(load_scenarios())


def test_another_request_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenarios()["probe"]

    async def twice(talk: Conversation) -> None:
        await scenario.run(talk)
        await scenario.run(talk)

    monkeypatch.setitem(SCENARIOS, "probe", replace(scenario, run=twice))
    (name, now), *_ = same_requests.digests(same_requests.circumstances()[0], ["probe"]).items()
    assert same_requests.read_digests()[name] != now


def test_an_update_drops_the_scenarios_that_are_gone_and_keeps_those_that_were_not_chosen() -> None:
    written = {"gone quick": "1 a", "stop quick": "1 b", "usage quick": "1 c"}
    now = {"stop quick": "2 d"}
    assert same_requests.updated(written, now, ["stop"]) == written | now
    assert same_requests.updated(written, now) == now
