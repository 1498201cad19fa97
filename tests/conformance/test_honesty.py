"""What is made of the answers to requests with something unknown in them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from canned import CannedSender
from hand_made_stream import ids_stream, made_up_row
from stream_builder import refusal

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.target.advertised import Advertised
from tokenwire.target.honesty import SCENARIO, UNKNOWN_FIELD, UNKNOWN_MODEL, UNKNOWN_PARAMETER, honesty
from tokenwire.wire.exchange import HttpRequest


def answered(what: str) -> Stream:
    return ids_stream([1], [2], name=f"sglang-generate/{SCENARIO}/{what}", scenario=SCENARIO)


def refused(what: str) -> Stream:
    stream = refusal()
    exchange = replace(stream.exchange, name=f"sglang-generate/{SCENARIO}/{what}", scenario=SCENARIO)
    return replace(stream, exchange=exchange)


def test_a_server_that_refuses_the_unknown_can_be_believed() -> None:
    seen = honesty([refused(UNKNOWN_FIELD), refused(UNKNOWN_PARAMETER)])
    assert (seen.trusted, seen.caveat, seen.remarks()) == (True, "", [])
    assert seen.refused == {UNKNOWN_FIELD: ("sglang-generate",), UNKNOWN_PARAMETER: ("sglang-generate",)}


@pytest.mark.parametrize("what", [UNKNOWN_FIELD, UNKNOWN_PARAMETER])
def test_a_server_that_ignores_the_unknown_cannot(what: str) -> None:
    seen = honesty([refused(UNKNOWN_FIELD), answered(what)])
    assert not seen.trusted
    assert "ignores unknown fields" in seen.caveat
    assert len(seen.remarks()) == 1
    assert "sglang-generate" in seen.remarks()[0]


def test_an_unknown_model_is_noted_only() -> None:
    seen = honesty([refused(UNKNOWN_FIELD), answered(UNKNOWN_MODEL)])
    assert seen.trusted
    assert "model" in seen.remarks()[0]


def test_without_an_answer_nothing_is_trusted() -> None:
    assert not honesty([]).trusted
    assert "without the scenario" in honesty([]).caveat
    failed = replace(refused(UNKNOWN_FIELD), refused=False)
    assert not honesty([failed]).asked
    assert not honesty([ids_stream([1], [2], name=f"g/other/{UNKNOWN_FIELD}", scenario="other")]).asked


def test_what_is_unsupported_says_whether_that_can_be_trusted() -> None:
    row = made_up_row(applies_when=("retractions",))
    honest = judge([Run((ids_stream([1]), refused(UNKNOWN_FIELD)))], [row])[0]
    careless = judge([Run((ids_stream([1]), answered(UNKNOWN_FIELD)))], [row])[0]
    assert honest.verdict is careless.verdict is Verdict.UNSUPPORTED
    assert "absence proves little" not in honest.message
    assert "absence proves little" in careless.message


# The scenario


def talk(dialect: str, sender: CannedSender) -> Transcript:
    transcript = Transcript()
    conversation = Conversation(SCENARIO, load_dialects()[dialect], sender, Advertised(), transcript)
    asyncio.run(load_scenarios()[SCENARIO].run(conversation))
    return transcript


@pytest.mark.parametrize("dialect", sorted(load_dialects()))
def test_the_scenario_asks_with_names_that_nobody_knows(dialect: str) -> None:
    streams = talk(dialect, CannedSender(b"{}", status=404)).streams
    bodies = {stream.exchange.name.split("/")[-1]: stream.exchange.request for stream in streams}
    assert {UNKNOWN_FIELD, UNKNOWN_MODEL, "unknown-path"} <= bodies.keys()
    (name,) = [key for key in bodies[UNKNOWN_FIELD].body if key.startswith("tokenwire_")]
    assert bodies["unknown-path"].path == f"/{name}"
    assert bodies[UNKNOWN_MODEL].body["model"] == name
    if UNKNOWN_PARAMETER in bodies:
        assert any(
            isinstance(held, dict) and name in held for held in bodies[UNKNOWN_PARAMETER].body.values()
        )
    assert (UNKNOWN_PARAMETER in bodies) is (dialect in {"sglang-generate", "vllm-generate"})


# unknown-paths-are-not-found


def seen(status: int, path: str = "unknown-path") -> list[bool]:
    check = CHECKS["unknown-paths-are-not-found"].on_stream
    stream = refused(path)
    stream = replace(stream, exchange=replace(stream.exchange, status=status))
    assert check is not None
    return [observation.holds for observation in check(stream, Target())]


def test_an_unknown_path_is_not_found() -> None:
    assert seen(404) == [True]
    assert seen(200) == seen(500) == [False]
    assert seen(401) == seen(200, path=UNKNOWN_FIELD) == []


def test_a_replay_knows_the_unknown_path_by_its_name() -> None:
    streams = talk("sglang-generate", CannedSender(b"{}", status=404)).streams
    exchange = next(s.exchange for s in streams if s.exchange.name.endswith("unknown-path"))
    dialect = DialectResolver([exchange]).dialect_of(exchange)
    assert dialect is not None
    assert dialect.name == "sglang-generate"
    stranger = replace(exchange, scenario="other", request=HttpRequest("POST", "/elsewhere", {}))
    assert DialectResolver([stranger]).dialect_of(stranger) is None
