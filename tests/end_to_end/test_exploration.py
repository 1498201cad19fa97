"""Exploration against the reference engine: silent where nothing is wrong, and small where something is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tokenwire.asking.run import Plan, Progress, interrogate
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.settings import Settings


def explored(url: str, *scenarios: str, fault: str = "", **options: Any) -> Subject:
    headers = (("x-tokenwire-fault", fault),) if fault else ()
    settings = Settings(target=url, scenario=scenarios, **{"explore": 50, **options})
    subject = asyncio.run(interrogate(Plan(settings, headers=headers), Progress()))
    assert isinstance(subject, Subject)
    return subject


def requests(subject: Subject) -> dict[str, Any]:
    """The bodies of what was drawn, by the names of their exchanges."""
    streams = [s for s in subject.runs[0].streams if s.exchange.scenario == EXPLORATION]
    return {stream.exchange.name: stream.exchange.request.body for stream in streams}


def violations(subject: Subject) -> dict[str, list[str]]:
    """The exchanges of the exploration that violate a requirement."""
    return {
        judgement.requirement.id: [violation.place.exchange for violation in judgement.violations]
        for judgement in judge(subject.runs)
        if judgement.verdict is Verdict.FAIL and judgement.scenario == EXPLORATION
    }


@pytest.fixture
def url(start_reference: Callable[..., str]) -> str:
    return start_reference("--enable-faults", "--sampling-backend", "mirror")


def test_a_conforming_server_is_left_in_peace(url: str) -> None:
    subject = explored(url, "greedy-stream", "logprob-families", "chat-messages")
    assert violations(subject) == {}
    drawn = requests(subject)
    assert 25 <= len(drawn) <= 50
    assert len({name.split("/")[0] for name in drawn}) > 1
    (found,) = [remark for remark in subject.remarks if remark.startswith(EXPLORATION)]
    assert found == f"exploration: {len(drawn)} requests, 0 requirements violated"


def test_the_same_seed_draws_the_same_and_another_others(url: str) -> None:
    def drawn(seed: int) -> list[Any]:
        return list(requests(explored(url, "greedy-stream", explore=12, seed=seed)).values())

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def smallest(url: str, fault: str, requirement: str) -> Any:
    subject = explored(
        url, "prompt-ids", "logprob-families", fault=fault, dialect=("sglang-generate",), explore=80
    )
    return requests(subject)[violations(subject)[requirement][0]]


def test_a_fault_of_every_answer_shrinks_to_a_request_for_nothing(url: str) -> None:
    body = smallest(url, "prompt-ids-null", "prompt-ids-only-on-request")
    assert body == {"input_ids": [10], "sampling_params": {"max_new_tokens": 0, "temperature": 0.0}}


def test_a_fault_of_one_field_shrinks_to_that_field_and_one_token(url: str) -> None:
    body = smallest(url, "top-logprobs-one-short", "top-logprobs-have-k")
    assert body == {
        "input_ids": [10],
        "return_logprob": True,
        "top_logprobs_num": 1,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
    }
