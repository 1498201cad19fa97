"""What exploration asks, makes smaller and keeps. A stand-in for the judge says what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from canned import CannedSender
from recorded import IDS, document

from tokenwire.ask import Ask, Asked
from tokenwire.asking import exploration
from tokenwire.asking.exploration import Exploration, demand_hypothesis
from tokenwire.asking.politeness import Limits, Metered, PoliteSender, Purse
from tokenwire.asking.scenario import Conversation, Sender, Transcript
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.run import Run
from tokenwire.record import Stream
from tokenwire.report.subject import EXPLORATION
from tokenwire.target.advertised import Advertised
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Exchange, HttpRequest

GENERATE = load_dialects()["sglang-generate"]
Verdicts = Callable[[Stream], tuple[str, ...]]


def answering() -> CannedSender:
    return CannedSender(json.dumps(document(IDS, finished=True)).encode())


@pytest.fixture
def explore(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[tuple[str, ...], Transcript]]:
    """Explore a target that a sender stands in for, judged by a function."""

    def run(
        verdicts: Verdicts,
        *,
        sender: Sender | None = None,
        requests: int = 40,
        seed: int = 0,
        earlier: tuple[Stream, ...] = (),
    ) -> tuple[tuple[str, ...], Transcript]:
        monkeypatch.setattr(exploration, "violated_by", lambda answer, _run: verdicts(answer))
        transcript = Transcript()
        talk = Conversation("-", GENERATE, sender or answering(), Advertised(), transcript)

        async def explored() -> tuple[str, ...]:
            return await Exploration([talk], Run(earlier), requests, seed).explore()

        return asyncio.run(explored()), transcript

    return run


def asked(transcript: Transcript) -> list[Asked]:
    return [stream.asked for stream in transcript.streams]


def test_all_that_holds_goes_to_the_run_and_nothing_is_asked_twice(explore) -> None:
    sender = answering()
    found, transcript = explore(lambda _: (), sender=sender)
    assert found == (f"exploration: {len(sender.names)} requests, 0 requirements violated",)
    assert [stream.exchange.name for stream in transcript.streams] == sender.names
    assert all(name.startswith("sglang-generate/exploration/") for name in sender.names)
    assert {stream.exchange.scenario for stream in transcript.streams} == {EXPLORATION}
    bodies = [json.dumps(stream.exchange.request.body, sort_keys=True) for stream in transcript.streams]
    assert 20 <= len(bodies) == len(set(bodies)) <= 40


def test_shapes_are_many_and_only_of_what_the_target_has(explore) -> None:
    _, transcript = explore(lambda _: (), requests=200)
    shapes = asked(transcript)
    assert {shape.n for shape in shapes} == {1, 2, 3}
    assert {shape.prompts for shape in shapes} == {1, 2, 3}
    assert any(shape.text_prompt for shape in shapes)
    assert any(shape.stop for shape in shapes)
    assert any(shape.seed is not None for shape in shapes)
    assert not any(shape.stream or shape.logprobs or shape.return_prompt_token_ids for shape in shapes)


def test_each_requirement_shrinks_to_a_request_of_its_own(explore) -> None:
    def verdicts(answer: Stream) -> tuple[str, ...]:
        shape = answer.asked
        return (
            *(["of-samples"] if shape.n > 1 else []),
            *(["of-long-ones"] if (shape.max_new_tokens or 0) > 17 else []),
        )

    found, transcript = explore(verdicts)
    failed = {
        name: stream.exchange.request.body
        for stream in transcript.streams
        for name in verdicts(stream)
        if f"again-{name}" in stream.exchange.name
    }
    assert failed["of-long-ones"] == {
        "input_ids": [10],
        "sampling_params": {"max_new_tokens": 18, "temperature": 0.0},
    }
    assert failed["of-samples"] == {
        "input_ids": [10],
        "sampling_params": {"max_new_tokens": 0, "n": 2, "temperature": 1.0},
    }
    assert found[0].endswith("2 requirements violated")
    assert all("asked again, it does so again" in words for words in found[1:])


def test_of_what_fails_only_the_smallest_is_kept_and_once_more(explore) -> None:
    _, transcript = explore(lambda answer: ("always",))
    assert transcript.streams[0].exchange.name.endswith("/again-always")
    assert len(transcript.streams) == 2
    first, second = asked(transcript)
    assert first == second


def test_a_failure_that_does_not_come_back_is_told_with_the_answer_that_failed(explore) -> None:
    failures = iter([(), (), ("now-and-then",)])
    found, transcript = explore(lambda answer: next(failures, ()))
    assert "now-and-then" in found[1]
    assert found[1].endswith("asked again, it does not: the target is not steady")
    names = [stream.exchange.name for stream in transcript.streams]
    assert "sglang-generate/exploration/2" in names
    assert names.count("sglang-generate/exploration/again-now-and-then") == 1


def test_making_smaller_has_an_end(explore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "_SMALLER_AT_MOST", 5)
    sender = answering()
    explore(lambda answer: ("always",), sender=sender, requests=10)
    assert len(sender.names) <= 10 + 5 + 1


def test_a_sender_that_gives_up_ends_the_exploration_and_what_failed_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([(), ("once",), ()])
    monkeypatch.setattr(exploration, "violated_by", lambda answer, run: next(seen))

    class Dying(CannedSender):
        async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
            if len(self.names) == 3:
                raise ConnectionResetError("gone")
            return await super().send(name, scenario, request, **how)

    sender = Dying(answering().body)
    transcript = Transcript()
    talk = Conversation("-", GENERATE, sender, Advertised(), transcript)

    async def explored() -> None:
        await Exploration([talk], Run(()), 40, 0).explore()

    with pytest.raises(ConnectionResetError):
        asyncio.run(explored())
    assert len(sender.names) == len(transcript.streams) == 3


def test_the_limits_of_the_run_hold(explore) -> None:
    inner = answering()
    purse = Purse(Limits(max_tokens=30))
    sender = PoliteSender(Metered(inner, purse, dialects=[GENERATE], context_length=512), purse)
    _, transcript = explore(lambda _: (), sender=sender)
    assert sum(shape.prompts * shape.n * (shape.max_new_tokens or 0) for shape in asked(transcript)) <= 30
    assert transcript.not_asked
    assert len(transcript.streams) == len(inner.names) > 0


def test_stops_are_made_of_what_was_answered(explore) -> None:
    transcript = Transcript()
    talk = Conversation("-", GENERATE, answering(), Advertised(), transcript)
    asyncio.run(talk.ask("earlier", Ask(input_ids=((1,),), max_new_tokens=6)))
    _, then = explore(lambda _: (), requests=100, earlier=tuple(transcript.streams))
    stops = {stop for shape in asked(then) for stop in shape.stop}
    assert {stop for stop in stops if stop in "hello!"} != set()
    assert {token for shape in asked(then) for token in shape.stop_token_ids} <= set(IDS)


def test_without_hypothesis_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install hypothesis"):
        demand_hypothesis()
