"""What a run would ask for, told before anything is asked; and limits to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from canned import CannedSender

from tokenwire.ask import Ask, Budget
from tokenwire.asking.planning import planned
from tokenwire.asking.politeness import Limits, Metered, PoliteSender, Price, Purse
from tokenwire.asking.rehearsal import Estimate, Rehearsal
from tokenwire.asking.run import Plan, Progress, Unreached, interrogate, rehearse
from tokenwire.asking.scenario import NotAsked, text_of
from tokenwire.commands.plan import plan_in_words
from tokenwire.demo_server import demo_server
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.run import has_record
from tokenwire.settings import Settings
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import HttpRequest

DIALECTS = load_dialects()
ASKS = (Ask(input_ids=((1, 2, 3),)), Ask(text=("Hello",)), Ask(messages=({"role": "user", "content": "Hi"},)))


def requests(dialect: str, **words: Any) -> list[HttpRequest]:
    every = (DIALECTS[dialect].render(Ask(**{**vars(ask), **words})) for ask in ASKS)
    return [item for item in every if isinstance(item, HttpRequest)]


@pytest.mark.parametrize("dialect", [name for name, known in DIALECTS.items() if known.gives_results])
def test_where_nothing_is_sampled_a_result_is_answered_and_no_output_is_counted(dialect: str) -> None:
    rehearsal = Rehearsal([DIALECTS[dialect]], 512)
    exchange = asyncio.run(rehearsal.send(f"{dialect}/one/label", "one", requests(dialect)[0]))
    assert [choice.details("result") for choice in DIALECTS[dialect].read(exchange).choices] == [[0.0]]
    (count,) = rehearsal.asked.values()
    assert (count.requests, count.output_tokens) == (1, 0)


@pytest.mark.parametrize("dialect", [name for name, known in DIALECTS.items() if not known.gives_results])
@pytest.mark.parametrize("stream", [False, True])
def test_every_dialect_is_answered_with_a_record(dialect: str, stream: bool) -> None:
    rehearsal = Rehearsal([DIALECTS[dialect]], 512)
    request = requests(dialect, max_new_tokens=5, stream=stream)[0]
    exchange = asyncio.run(rehearsal.send(f"{dialect}/one/label", "one", request))
    read = DIALECTS[dialect].read(exchange)
    assert has_record(read)
    assert read.choices[0].finish is not None
    assert len([event for event in read.events if not event.done]) == (5 if stream else 1)
    (count,) = rehearsal.asked.values()
    assert (count.requests, count.output_tokens) == (1, 5)
    assert 3 <= count.prompt_tokens < 100


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_admits_one_text_is_answered_with_it(stream: bool) -> None:
    """Else a plan leaves out what is asked of servers with such a grammar."""
    dialect = DIALECTS["sglang-chat"]
    assert dialect.request.says is not None
    asked = replace(ASKS[2], raw=dialect.request.says.body("Hello, {1}.", 0), stream=stream, max_new_tokens=5)
    request = dialect.render(asked)
    assert isinstance(request, HttpRequest)
    exchange = asyncio.run(Rehearsal([dialect], 512).send("sglang-chat/one/label", "one", request))
    assert text_of(dialect.read(exchange)) == "Hello, {1}."


def test_a_run_asks_no_more_than_was_planned() -> None:
    """Of the small server of the demonstration, scenario by scenario, in one that looks at answers too."""
    names = ("greedy-stream", "stop-string", "samples", "batch-of-prompts", "stop-ids")
    with demo_server((), 0) as url:
        plan = Plan(Settings(target=url, scenario=names, budget=Budget.QUICK))
        asked = asyncio.run(rehearse(plan))
        assert not isinstance(asked, Unreached)
        ran = asyncio.run(interrogate(plan, Progress()))
    assert not isinstance(ran, Unreached)
    streams = [stream for stream in ran.runs[0].streams if "-confirm-" not in stream.exchange.name]
    real = Counter((stream.dialect, stream.exchange.scenario) for stream in streams)
    assert real.keys() <= asked.keys()
    assert {key for key, count in real.items() if count > asked[key].requests} == set()
    scenarios = [item.requests for (dialect, _), item in asked.items() if dialect in DIALECTS]
    assert sum(scenarios) <= 1.5 * sum(real.values())


PLANNED = {
    ("a-chat", "one"): Estimate(2, 1000, 2000),
    ("a-chat", "two"): Estimate(1, 0, 1_000_000),
    ("b", "one"): Estimate(10, 5, 10),
}


def test_a_plan_is_told_by_dialect_and_scenario_with_its_cost() -> None:
    lines = list(plan_in_words(PLANNED, Price(1.0, 2.0)))
    assert lines[1].split() == ["a-chat", "3", "1,000", "1,002,000", "2.0050"]
    assert lines[5].split() == ["one", "12", "1,005", "2,010", "0.0050"]
    tokens = "1,005 prompt tokens and 1,002,010 output tokens"
    assert lines[-1].startswith(f"At most 13 requests with {tokens}, which cost 2.0050. Retries of a busy ")
    assert not any("cost" in line for line in plan_in_words(PLANNED, None))
    assert any(line.startswith("a-chat/two ") for line in plan_in_words(PLANNED, None, full=True))
    assert max(map(len, lines[:-1])) <= 80


def test_a_run_stops_at_its_limits() -> None:
    (small,) = requests("sglang-generate", max_new_tokens=4)[:1]

    def sent(limits: Limits) -> tuple[int, str]:
        inner = CannedSender()
        dialects = [DIALECTS["sglang-generate"]]
        purse = Purse(limits)
        sender = PoliteSender(Metered(inner, purse, dialects=dialects, context_length=512), purse)

        async def ask() -> None:
            for number in range(5):
                try:
                    await sender.send(f"x/{number}", "s", small)
                except NotAsked:
                    continue

        asyncio.run(ask())
        return len(inner.names), sender.cut_off

    assert sent(Limits(max_requests=3)) == (
        3,
        "2 exchanges were not asked: 3 of --max-requests 3 are sent",
    )
    count, cut_off = sent(Limits(max_cost=25.0, price=Price(1e6, 2e6)))  # 3 prompt tokens and 4 others
    assert count == 2
    assert cut_off.startswith("3 exchanges were not asked: 22.0000 of --max-cost 25.0 are spent")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_cost": 1.0}, "add --price IN,OUT"),
        ({"price": "3"}, "write IN,OUT"),
        ({"price": "3,-1"}, "write IN,OUT"),
        ({"price": "3,inf"}, "write IN,OUT"),
    ],
)
def test_a_price_is_two_numbers_and_a_cost_needs_one(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(Settings(**options))
    assert planned(Settings(price="0.5, 1.5")).limits.price == Price(0.5, 1.5)
