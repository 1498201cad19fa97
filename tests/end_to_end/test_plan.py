"""`--plan` is an upper bound of what a run sends, what finds out who is there included."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tokenwire.ask import Budget
from tokenwire.asking.run import Plan, Progress, Unreached, interrogate, rehearse
from tokenwire.settings import Settings

LED_BY_ANSWERS = (
    *("broken-characters", "chat-logprobs", "disconnect", "stop-places", "stop-string", "uneven-ends"),
    *("chat-stop-string", "special-tokens", "unmatched-stop", "interval-borders"),
)
"""Scenarios that ask what answers lead them to."""


@pytest.mark.parametrize(
    ("flags", "dialects"),
    [
        (("--api-dialect", "vllm"), ("vllm-completions", "vllm-chat")),
        (("--model", "builtin:parrot", "--api-dialect", "vllm"), ("vllm-completions", "vllm-chat")),
        ((), ("sglang-generate", "sglang-chat")),
    ],
)
def test_no_run_sends_more_than_its_plan(
    start_reference, flags: tuple[str, ...], dialects: tuple[str, ...]
) -> None:
    sent: Counter[str] = Counter()

    def count(name: str) -> None:
        first, *rest = name.split("/")
        sent[rest[0] if first in dialects else first] += "-confirm-" not in name

    settings = Settings(
        target=start_reference(*flags), scenario=LED_BY_ANSWERS, budget=Budget.QUICK, dialect=dialects
    )
    planned = asyncio.run(rehearse(Plan(settings)))
    assert not isinstance(planned, Unreached)
    plan = Plan(settings, on_exchange=lambda exchange: count(exchange.name))
    assert not isinstance(asyncio.run(interrogate(plan, Progress())), Unreached)
    at_most: Counter[str] = Counter()
    for (_, scenario), estimate in planned.items():
        at_most[scenario] += estimate.requests
    assert sent["preflight"] >= 2
    assert sent["detokenize"] >= 2
    assert sent - at_most == Counter()


def test_a_standard_run_of_two_doors_costs_little_more_than_a_thousand_requests(start_reference) -> None:
    """Fewer are sent: how often loads are asked for depends on answers. Conversations add 40.

    The split pipeline and a batch of conversations add 34, decisions 8, and versions of the weights 10.
    """
    url = start_reference("--api-dialect", "vllm")
    planned = asyncio.run(rehearse(Plan(Settings(target=url, dialect=("vllm-completions", "vllm-chat")))))
    assert not isinstance(planned, Unreached)
    ordinary = {place: cost for place, cost in planned.items() if place[1] != "constraint-and-least-tokens"}
    assert sum(cost.requests for cost in ordinary.values()) <= 1_096
    assert sum(cost.requests for cost in planned.values()) <= 1_101, "what is perilous is asked apart"
