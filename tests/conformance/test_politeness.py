"""Politeness, with a clock and a sleep of its own: no test waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from canned import CannedSender

from tokenwire.ask import Ask
from tokenwire.asking.politeness import Limits, Metered, Pace, PoliteSender, Price, Purse, retry_after
from tokenwire.asking.scenario import Conversation, NotAsked, Transcript
from tokenwire.dialects.dialect import load_dialects
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

GENERATE = load_dialects()["sglang-generate"]


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Busy(CannedSender):
    """Turns the first attempts away with these statuses, and says when to come back."""

    def __init__(self, *statuses: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(b"{}")
        self.statuses = list(statuses)
        self.headers = headers

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        exchange = await super().send(name, scenario, request, **how)
        status = self.statuses.pop(0) if self.statuses else 200
        return replace(exchange, status=status, headers=self.headers)


def polite(inner: CannedSender, clock: Clock | None = None, **limits: Any) -> PoliteSender:
    clock = clock or Clock()
    given = Limits(**limits)
    purse = Purse(given, pace=Pace(given.rate, clock, clock.sleep))
    metered = Metered(inner, purse, dialects=[GENERATE], context_length=512)
    return PoliteSender(metered, purse, sleep=clock.sleep)


def request(max_new_tokens: int | None = 4, **words: Any) -> HttpRequest:
    rendered = GENERATE.render(Ask(input_ids=((1, 2),), max_new_tokens=max_new_tokens, **words))
    assert isinstance(rendered, HttpRequest)
    return rendered


def send(sender: PoliteSender, *requests: HttpRequest) -> list[Exchange]:
    async def one_after_another() -> list[Exchange]:
        return [await sender.send(f"x/{i}", "s", wanted) for i, wanted in enumerate(requests)]

    return asyncio.run(one_after_another())


def test_requests_keep_the_rate_from_the_first_on_and_time_that_passed_is_not_saved_up() -> None:
    clock = Clock()
    sender = polite(CannedSender(), clock, rate=4.0)
    send(sender, *[request()] * 3)
    assert clock.slept == pytest.approx([0.25, 0.25])
    clock.now += 60
    clock.slept.clear()
    send(sender, *[request()] * 3)
    assert clock.slept == pytest.approx([0.25, 0.25])


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    send(polite(CannedSender(), clock), *[request()] * 5)
    assert clock.slept == []


def test_so_many_at_a_time() -> None:
    at_once, most = 0, 0
    gate = asyncio.Event()

    class Counting(CannedSender):
        async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if at_once == 3:
                gate.set()
            await gate.wait()
            at_once -= 1
            return await super().send(name, scenario, request, **how)

    async def together() -> None:
        sender = polite(Counting(), max_concurrency=3)
        await asyncio.gather(*(sender.send(f"x/{i}", "s", request()) for i in range(9)))

    asyncio.run(together())
    assert most == 3


def test_what_the_tokens_do_not_pay_for_is_not_asked_and_told() -> None:
    inner = CannedSender()
    sender = polite(inner, max_tokens=20)
    send(sender, request(12))
    with pytest.raises(NotAsked, match="requests 9 output tokens, and 12 of --max-tokens 20 are used"):
        send(sender, request(9))
    send(sender, request(8))
    assert len(inner.names) == 2
    assert sender.cut_off == "1 exchange was not asked: 20 of --max-tokens 20 are spent"


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (request(5, n=3, temperature=1.0), 15),
        (GENERATE.render(Ask(input_ids=((1,), (2,)), batch=True, max_new_tokens=5)), 10),
        (request(None), 128),  # what this dialect's servers make of no budget
        (HttpRequest("POST", "/generate", raw_body=b"not JSON"), 512),
        (HttpRequest("GET", "/server_info"), 0),
    ],
)
def test_a_request_costs_all_that_it_may_be_answered_with(asked: HttpRequest, tokens: int) -> None:
    assert send(polite(CannedSender(), max_tokens=max(tokens, 1)), asked)
    if tokens:
        with pytest.raises(NotAsked, match=f"requests {tokens} output tokens"):
            send(polite(CannedSender(), max_tokens=tokens - 1), asked)


def test_a_refused_request_costs_nothing_and_one_that_hangs_all() -> None:
    refusing = polite(CannedSender(status=400), max_tokens=10)
    send(refusing, request(10), request(10))
    hanging = polite(CannedSender(b"", None, ending=Ending.TIMEOUT), max_tokens=10)
    with pytest.raises(NotAsked):
        send(hanging, request(10), request(10))


def test_a_busy_server_is_asked_again_later_and_that_is_told() -> None:
    clock = Clock()
    inner = Busy(503, 429)
    sender = polite(inner, clock)
    (exchange,) = send(sender, request())
    assert (exchange.status, exchange.name) == (200, "x/0-retry-2")
    assert inner.names == ["x/0", "x/0-retry-1", "x/0-retry-2"]
    assert clock.slept == [0.5, 1.0]
    assert [(refused.name, refused.status) for refused in sender.turned_away] == [
        ("x/0", 503),
        ("x/0-retry-1", 429),
    ]
    assert list(sender.remarks()) == [
        "the target was busy: 2 requests were sent again after status 429, 503 (x/0, x/0-retry-1)"
    ]


@pytest.mark.parametrize("status", [400, 404, 408, 500, 502, 504])
def test_nothing_else_is_asked_again(status: int) -> None:
    sender = polite(Busy(status))
    (exchange,) = send(sender, request())
    assert (exchange.status, exchange.name) == (status, "x/0")
    assert list(sender.remarks()) == []


def test_the_server_says_when_but_not_after_how_long_we_give_up() -> None:
    clock = Clock()
    (exchange,) = send(polite(Busy(429, headers=(("Retry-After", "7"),)), clock), request())
    assert (clock.slept, exchange.status) == ([7.0], 200)
    impatient = polite(Busy(429, headers=(("Retry-After", "3600"),)), clock)
    (exchange,) = send(impatient, request())
    assert (exchange.status, exchange.name, impatient.turned_away) == (429, "x/0", [])
    assert list(impatient.remarks()) == ["still busy, and not asked again: x/0"]


def test_a_server_that_stays_busy_is_left_alone_in_the_end() -> None:
    inner = Busy(*[503] * 100)
    sender = polite(inner)
    (exchange,) = send(sender, request())
    assert (exchange.status, len(inner.names), len(sender.turned_away)) == (503, 4, 3)


def test_a_retry_waits_for_its_turn_like_any_other_request() -> None:
    clock = Clock()
    send(polite(Busy(503), clock, rate=0.5), request())
    assert clock.slept == [0.5, 1.5]


def test_every_attempt_is_paid_for_and_the_last_answer_is_the_end() -> None:
    """One request of `--max-requests 1` was sent four times to a server that stayed busy."""
    inner = Busy(*[503] * 100)
    sender = polite(inner, max_requests=2)
    (exchange,) = send(sender, request())
    assert (exchange.status, exchange.name) == (503, "x/0-retry-1")
    assert inner.names == ["x/0", "x/0-retry-1"]
    assert [refused.name for refused in sender.turned_away] == ["x/0"]
    assert list(sender.remarks())[1] == (
        "still busy, and not asked again because 2 of --max-requests 2 are sent: x/0"
    )
    assert sender.cut_off == ""
    with pytest.raises(NotAsked):
        send(sender, request())
    assert sender.cut_off == "1 exchange was not asked: 2 of --max-requests 2 are sent"


def test_a_retry_pays_its_tokens_and_its_price() -> None:
    tokens = polite(Busy(503), max_tokens=4)
    assert [exchange.status for exchange in send(tokens, request(4))] == [200]  # the refusal cost none
    with pytest.raises(NotAsked):
        send(tokens, request(1))
    costly = polite(Busy(503), max_cost=10.0, price=Price(0.0, 1e6))
    assert [exchange.status for exchange in send(costly, request(10))] == [200]
    with pytest.raises(NotAsked, match=r"may cost 1\.0000, and 10\.0000 of --max-cost 10\.0 are"):
        send(costly, request(1))


def test_what_goes_at_once_is_paid_for_and_keeps_the_rate() -> None:
    clock = Clock()
    inner = CannedSender()
    sender = polite(inner, clock, rate=4.0, max_requests=2)

    async def aside() -> None:
        for number in range(2):
            await sender.send(f"x/{number}", "s", request(), aside=True)

    asyncio.run(aside())
    assert clock.slept == pytest.approx([0.25])
    with pytest.raises(NotAsked, match="2 of --max-requests 2 are sent"):
        asyncio.run(aside())
    assert len(inner.names) == 2


def test_a_request_that_reached_nobody_is_not_counted() -> None:
    nobody = CannedSender(b"", None, ending=Ending.UNREACHABLE, detail="ConnectError: refused")
    send(polite(nobody, max_requests=1, max_tokens=4), *[request()] * 3)
    assert len(nobody.names) == 3
    cut = CannedSender(b"", None, ending=Ending.UNREACHABLE, detail="ReadError: reset")
    with pytest.raises(NotAsked):
        send(polite(cut, max_requests=1), *[request()] * 2)


def test_two_targets_share_the_limits() -> None:
    inner = CannedSender()
    purse = Purse.of(Limits(max_requests=5)).split(2)
    sender = PoliteSender(Metered(inner, purse), purse)
    with pytest.raises(NotAsked, match="2 of --max-requests 5 for 2 targets are sent"):
        send(sender, *[request()] * 3)
    assert len(inner.names) == 2


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("12", 12.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:00:00 GMT", 0.0),
        ("soon", None),
        ("-4", None),
        ("", None),
    ],
)
def test_seconds_or_a_date(header: str, seconds: float | None) -> None:
    exchange = asyncio.run(Busy(503, headers=(("retry-after", header),)).send("x", "s", request()))
    assert retry_after(exchange, datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds


def test_a_scenario_goes_on_without_what_was_not_asked() -> None:
    transcript = Transcript()
    sender = polite(CannedSender(b"{}"), max_tokens=4)
    talk = Conversation("made-up", GENERATE, sender, Advertised(), transcript)
    ask = Ask(input_ids=((1,),), max_new_tokens=4)
    answers = asyncio.run(talk.ask_all({"one": ask, "two": ask}))
    assert list(answers) == ["one"]
    assert "--max-tokens 4" in transcript.not_asked["sglang-generate/made-up/two"]
