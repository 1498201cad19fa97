"""Whether the server lives, what becomes of a run where it does not, and how it goes on later."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from canned import CannedSender
from recorded import IDS, document

from tokenwire.asking.scenario import NotAsked
from tokenwire.asking.vital_signs import LEAST_PATIENCE, Revival, VitalSigns
from tokenwire.dialects.dialect import load_dialects
from tokenwire.target.death import RESTARTED, VITALS
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

SMALL = HttpRequest("POST", "/generate", {"input_ids": [1]})
GOOD = CannedSender(json.dumps(document(IDS, finished=True)).encode())
DEAD = CannedSender(b"", None, ending=Ending.UNREACHABLE, detail="ConnectError: nobody")
SILENT = CannedSender(b"", None, ending=Ending.TIMEOUT, detail="nothing came")
ENDLESS = CannedSender(b"", None, ending=Ending.OUTGROWN, detail="more than the run allows")
FAILED = CannedSender(b"oops", 500)


class Server:
    """Lives until a request of `kills` comes; `beside` of them must be under way first."""

    def __init__(self, kills: tuple[str, ...] = (), beside: int = 1) -> None:
        self.kills, self.beside = kills, beside
        self.lives = True
        self.names: list[str] = []
        self._arrived = asyncio.Condition()
        self._under_way = 0

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.names.append(name)
        label = name.rpartition("/")[2].removesuffix("-after-restart")
        if not self.lives:
            return await DEAD.send(name, scenario, request)
        async with self._arrived:
            self._under_way += 1
            self._arrived.notify_all()
            if scenario == "together" and not name.endswith("-after-restart"):
                fatal = label in self.kills
                await self._arrived.wait_for(
                    lambda: self._under_way >= self.beside if fatal else not self.lives
                )
            self.lives = self.lives and label not in self.kills
            self._arrived.notify_all()
        return await (GOOD if self.lives else DEAD).send(name, scenario, request)

    @property
    def in_earnest(self) -> list[str]:
        return [name for name in self.names if not any(word in name for word in (VITALS, RESTARTED))]


class Supervisor:
    """Starts a server again as soon as somebody looks for it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.starts = 0

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.starts += 1
        self.server.lives = True
        return await GOOD.send(name, scenario, request)


def vital_signs(inner: Any, **how: Any) -> VitalSigns:
    return VitalSigns(inner, load_dialects()["sglang-generate"], SMALL, **how)


async def ask(vitals: VitalSigns, name: str, scenario: str = "s", **how: Any) -> Exchange:
    return await vitals.send(f"sglang-generate/s/{name}", scenario, SMALL, **how)


def labels(exchanges: list[Exchange]) -> list[str]:
    return [exchange.name.partition("/")[2] for exchange in exchanges]


def test_a_request_that_fails_by_itself_ends_nothing() -> None:
    class Failing(CannedSender):
        async def send(self, name: str, *rest: Any, **how: Any) -> Exchange:
            return await (GOOD if VITALS in name else FAILED).send(name, *rest)

    async def often() -> VitalSigns:
        vitals = vital_signs(Failing())
        for place in range(2 * LEAST_PATIENCE):
            assert (await ask(vitals, str(place))).status == 500
        return vitals

    vitals = asyncio.run(often())
    assert vitals.over == ""
    assert labels(vitals.besides)[:2] == [f"{VITALS}/1", f"{VITALS}/2"]


@pytest.mark.parametrize(
    ("dead", "looks", "why"),
    [
        (DEAD, 3, "the server died"),
        (FAILED, 3, "the server died"),
        (SILENT, 1, r"the target stopped answering \(timeout\)"),
        (ENDLESS, 3, r"the target stopped answering \(outgrown\)"),
    ],
)
def test_nothing_is_sent_to_a_server_that_does_not_answer_a_small_good_request_either(
    dead: CannedSender, looks: int, why: str
) -> None:
    async def twice() -> VitalSigns:
        vitals = vital_signs(dead)
        await ask(vitals, "first")
        with pytest.raises(NotAsked, match=f"{why} before this was asked"):
            await ask(vitals, "second")
        return vitals

    assert len(asyncio.run(twice()).besides) == looks


def test_a_server_that_lives_and_ends_no_answer_is_given_up() -> None:
    class Stalling(CannedSender):
        async def send(self, name: str, *rest: Any, **how: Any) -> Exchange:
            return await (GOOD if VITALS in name else SILENT).send(name, *rest)

    async def often() -> None:
        vitals = vital_signs(Stalling())
        for place in range(LEAST_PATIENCE):
            assert vitals.over == ""
            await ask(vitals, str(place))
        assert f"{LEAST_PATIENCE} exchanges in a row" in vitals.over
        with pytest.raises(NotAsked):
            await ask(vitals, "more")

    asyncio.run(often())


@pytest.mark.parametrize("ending", [Ending.HUNG_UP, Ending.CANCELLED])
def test_what_the_suite_ended_is_no_reason_to_look(ending: Ending) -> None:
    inner = CannedSender(b"", None, ending=ending)
    asyncio.run(ask(vital_signs(inner), "left"))
    assert len(inner.names) == 1


def test_of_several_suspects_each_is_asked_once_more_alone_and_the_others_get_their_answers() -> None:
    async def run() -> tuple[Server, Supervisor, VitalSigns, list[Exchange]]:
        server = Server(kills=("r2",), beside=4)
        supervisor = Supervisor(server)
        vitals = vital_signs(server, revival=Revival(wait_s=5), scout=supervisor)
        answers = await asyncio.gather(*(ask(vitals, f"r{n}", "together") for n in range(4)))
        return server, supervisor, vitals, [*answers, await ask(vitals, "next")]

    server, supervisor, vitals, answers = asyncio.run(run())
    assert supervisor.starts == 2, "the cause kills again, alone; the others do not"
    assert vitals.over == ""
    killed = [answer.name.rpartition("/")[2] for answer in answers if answer.status is None]
    assert killed == ["r2-after-restart"]
    assert answers[-1].status == 200
    besides = labels(vitals.besides)
    assert {"s/r0", "s/r1", "s/r2", "s/r3", f"{RESTARTED}/1", f"{RESTARTED}/2"} <= set(besides)
    assert server.in_earnest[-1].endswith("/next")


def test_a_request_that_killed_alone_is_not_asked_again() -> None:
    async def run() -> list[str]:
        server = Server(kills=("bad",))
        vitals = vital_signs(server, revival=Revival(wait_s=5), scout=Supervisor(server))
        assert (await ask(vitals, "bad")).status is None
        assert (await ask(vitals, "control")).status == 200
        return server.in_earnest

    assert [name.rpartition("/")[2] for name in asyncio.run(run())] == ["bad", "control"]


def _over(revival: Revival, scout: Callable[[Server], Any]) -> str:
    async def run() -> str:
        server = Server(kills=("bad",))
        vitals = vital_signs(server, revival=revival, scout=scout(server))
        await ask(vitals, "bad")
        return vitals.over

    return asyncio.run(run())


def test_a_server_that_does_not_come_back_is_given_up_with_the_reason() -> None:
    assert "was not back after 0.01 s" in _over(Revival(wait_s=0.01), lambda _: DEAD)
    command = f"{sys.executable} -c 'import sys; sys.exit(\"no such unit\")'"
    assert "--restart ended with status 1 (no such unit)" in _over(Revival(command, 20), lambda _: DEAD)
    assert _over(Revival("true", 5), Supervisor) == ""


CLOSED = CannedSender(b"", None, ending=Ending.UNREACHABLE, detail="RemoteProtocolError: no response")


class Closing(CannedSender):
    """Closes so many connections without a byte, and lives."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    async def send(self, name: str, *rest: Any, **how: Any) -> Exchange:
        self.names.append(name)
        if VITALS in name or not self.left:
            return await GOOD.send(name, *rest)
        self.left -= 1
        return await CLOSED.send(name, *rest)


@pytest.mark.parametrize(("times", "status"), [(1, 200), (2, None)])
def test_a_request_whose_connection_was_closed_without_a_byte_is_asked_once_more(
    times: int, status: int | None
) -> None:
    server = Closing(times)
    vitals = vital_signs(server)
    exchange = asyncio.run(ask(vitals, "closed"))
    assert (exchange.name, exchange.status) == ("sglang-generate/s/closed-asked-again", status)
    assert labels(vitals.besides) == [f"{VITALS}/1", "s/closed"]
    assert len(server.names) == 3
    assert asyncio.run(ask(vitals, "left", tap=object())).name == "sglang-generate/s/left"


class Roomless:
    """Answers a failure, then 503 to everything until so many seconds were waited."""

    def __init__(self, seconds: float, after: str = "", back: CannedSender = GOOD) -> None:
        self.seconds, self.back, self.waited = seconds, back, list[float]()
        self._after = (("retry-after", after),) if after else ()
        self._full = CannedSender(b'{"message":"retry shortly","code":503}', 503)

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        if name.endswith("/first"):
            return await FAILED.send(name, scenario, request)
        if sum(self.waited) >= self.seconds:
            return await self.back.send(name, scenario, request)
        exchange = await self._full.send(name, scenario, request)
        return replace(exchange, headers=(*exchange.headers, *self._after))

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


def _asked_without_room(server: Roomless, **how: Any) -> tuple[VitalSigns, Exchange, list[str]]:
    words: list[str] = []

    async def run() -> tuple[VitalSigns, Exchange, list[str]]:
        vitals = vital_signs(server, sleep=server.sleep, on_wait=words.append, **how)
        return vitals, await ask(vitals, "first"), words

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("after", "waited"), [("", [0, 0.5, 1, 2, 4]), ("3", [0, 3, 3]), ("0", [0] + 10 * [0.5])]
)
def test_a_server_that_answers_503_lives_and_is_waited_for_as_it_says(
    after: str, waited: list[float]
) -> None:
    server = Roomless(5, after)
    vitals, exchange, words = _asked_without_room(server)
    assert (vitals.over, exchange.status) == ("", 500)
    assert server.waited == waited
    assert words == ["the target answers 503 to a small request; waiting up to 30 s until it has room"]
    assert asyncio.run(ask(vitals, "next")).status == 200


@pytest.mark.parametrize("after", ["", "3600", "99999999999999999999999999"])
def test_a_server_that_answers_503_for_long_is_given_up_and_the_option_is_named(after: str) -> None:
    server = Roomless(10_000, after)
    vitals, _, _ = _asked_without_room(server)
    assert vitals.over == "the target answered 503 for 30 s (--wait N waits longer) before this was asked"
    assert sum(server.waited) == 30
    patient = Roomless(200)
    assert _asked_without_room(patient, revival=Revival(wait_s=300))[0].over == ""
    assert sum(patient.waited) >= 200


def test_a_server_that_dies_behind_its_503_is_dead() -> None:
    vitals, _, _ = _asked_without_room(Roomless(3, back=DEAD))
    assert vitals.over == "the server died before this was asked"


def test_a_run_says_what_it_waits_for_while_a_server_is_started_again() -> None:
    async def run() -> list[str]:
        server, words = Server(kills=("bad",)), list[str]()
        vitals = vital_signs(
            server, revival=Revival("true", 5), scout=Supervisor(server), on_wait=words.append
        )
        await ask(vitals, "bad")
        return words

    assert asyncio.run(run()) == [
        "the server died; started again by 'true', waiting up to 5 s until it answers"
    ]
