"""No requirement passes by a target that says nothing: every answer is replaced by an empty, valid one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokenwire.dialects.recognition import DialectResolver
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import ExitStatus, Verdict, exit_status
from tokenwire.replay import read_run
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire.wire.capture import exchanges_of
from tokenwire.wire.exchange import Ending, Exchange, Read
from tokenwire.wire.foreign_capture import any_chunks

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = {
    "cumulative": ("sglang/0.5.23/F_mirror.jsonl.gz", "tiny-qwen2"),
    "incremental": ("sglang/0.5.23/I4_extra_mirror_incr.jsonl.gz", "tiny-qwen2"),
    "many endpoints": ("sglang/0.5.23/A_base.jsonl.gz", "tiny-qwen2"),
    "vllm": ("vllm/0.32.0-cpu/si3.jsonl.gz", "tiny-llama"),
}


def hollow(value: Any) -> Any:
    """A value of the same shape that says nothing."""
    if isinstance(value, dict):
        return {key: hollow(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return []
    return {str: "", int: 0, float: 0.0, bool: False}.get(type(value))


def hollow_choices(value: Any) -> Any:
    """The same, but with as many choices as there were, each of them hollow."""
    if isinstance(value, list):
        return [hollow(entry) for entry in value]
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return {**hollow(value), "choices": [hollow(choice) for choice in value["choices"]]}
    return hollow(value)


def nothing(value: Any) -> Any:
    return [] if isinstance(value, list) else {}


def emptied(body: bytes, empty: Any) -> bytes:
    """A body with every JSON document in it emptied; `[DONE]` stays."""
    if not body.startswith(b"data:"):
        try:
            return json.dumps(empty(json.loads(body))).encode()
        except ValueError:
            return b""
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event.strip()]
    return b"".join(
        b"data: " + (event if event == b"[DONE]" else json.dumps(empty(json.loads(event))).encode()) + b"\n\n"
        for event in events
    )


def only_the_end(body: bytes) -> bytes:
    return b"data: [DONE]\n\n" if body.startswith(b"data:") else b"{}"


WAYS = {
    "hollow documents": lambda body: emptied(body, hollow),
    "hollow choices": lambda body: emptied(body, hollow_choices),
    "empty objects": lambda body: emptied(body, nothing),
    "only the end": only_the_end,
    "no body": lambda _: b"",
    "an error object": lambda _: b'{"error": {"message": "", "code": 400}}',
}


@pytest.fixture(scope="module")
def captures() -> dict[str, list[Exchange]]:
    return {name: list(exchanges_of(any_chunks(FIXTURES / path))) for name, (path, _) in CAPTURES.items()}


def judged(exchanges: list[Exchange], model: str, answers: list[Exchange]) -> set[tuple[str, Verdict]]:
    run, _ = read_run(
        answers, DialectResolver(exchanges), "audit", LocalTokenizer(FIXTURES / "models" / model)
    )
    return {(judgement.requirement.id, judgement.verdict) for judgement in judge([run])}


@pytest.mark.parametrize("status", [200, 400, None], ids=["all 200", "all 400", "status as it was"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CAPTURES)
def test_who_says_nothing_conforms_to_nothing(captures, name, way, status):
    def answer(exchange: Exchange) -> Exchange:
        reads = (Read(0.001, body),) if (body := WAYS[way](exchange.body)) else ()
        if exchange.status is None:
            return exchange
        return replace(exchange, status=status or exchange.status, reads=reads, ending=Ending.COMPLETE)

    verdicts = judged(captures[name], CAPTURES[name][1], [answer(exchange) for exchange in captures[name]])
    assert {requirement for requirement, verdict in verdicts if verdict is Verdict.PASS} == set()
    assert {requirement for requirement, verdict in verdicts if verdict is Verdict.HARNESS_ERROR} == set()
    assert exit_status(verdict for _, verdict in verdicts) in {
        ExitStatus.VIOLATION,
        ExitStatus.NOTHING_EVALUATED,
    }


@pytest.mark.parametrize("name", CAPTURES)
def test_who_said_something_conformed_to_much(captures, name):
    verdicts = judged(captures[name], CAPTURES[name][1], captures[name])
    assert len({requirement for requirement, verdict in verdicts if verdict is Verdict.PASS}) >= 30
