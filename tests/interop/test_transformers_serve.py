"""`transformers serve`, judged for real as an OpenAI-compatible server.

Its verdicts are pinned, with what proves each violation. The version is that of `constraints/interop.txt`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from programs import MODELS, answers, free_port, program
from suite_report import Report

from tokenwire.requirement import load_requirements

VERSION = "5.23.0"
MODEL = str(MODELS / "tiny-llama")

VIOLATED: Mapping[str, str] = {
    "choices-complete": "n is read and forgotten: one choice comes, whatever was asked for",
    "asked-or-refused": "logprobs are read and forgotten: the answer has none, and nobody is told",
    "stop-string-not-shown": "the text keeps the stop string, whole and streamed",
    "done-ends-the-stream": "no stream ends with [DONE]",
}
HELD = {
    "answer-fits-schema",
    "one-finish-per-choice",
    "finish-comes-last",
    "finish-type-is-known",
    "budget-is-kept",
    "length-means-budget",
    "usage-adds-up",
    "stream-text-equals-whole",
    "stream-finish-equals-whole",
    "unmatched-stop-changes-nothing",
    "answer-content-type",
    "stream-content-type",
    "stream-is-utf8",
    "events-are-json-objects",
    "events-fit-schema",
    "stream-ends-cleanly",
    "events-are-unnamed",
    "chat-role-comes-first",
    "chat-chunks-share-a-choice-id",
    "chat-content-never-null",
}
HAS_NOT = {
    "output-ids",
    "input-ids",
    "prompt-token-ids",
    "series",
    "logprobs",
    "customized-info",
    "cumulative",
    "stream-interval",
    "tito-chat",
}
"""Capabilities that an OpenAI-compatible server does not have: what needs one is nobody's fault here."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", MODEL, "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with program(command, tmp_path_factory.mktemp("home")) as running:
        running.until(answers(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def report(url: str, check: Callable[..., Report]) -> Report:
    return check(url, "--model", MODEL)


def test_the_pins_are_of_this_version() -> None:
    assert version("transformers") == VERSION


def test_it_is_recognised_and_the_report_says_how(report: Report) -> None:
    assert report.dialects == ["openai-chat"]
    assert "repetition_penalty" in report.left_out["sglang-chat"], "it refuses what it does not know"
    assert "404" in report.left_out["sglang-generate"]


def test_it_violates_what_it_is_known_to_violate_and_nothing_else(report: Report) -> None:
    assert report.requirements("FAIL") == VIOLATED.keys()
    assert report.requirements("HARNESS_ERROR") == set()


def test_it_keeps_what_it_is_known_to_keep(report: Report) -> None:
    assert report.requirements("PASS") >= HELD


def test_what_it_has_not_is_unsupported_and_no_fault(report: Report) -> None:
    needing = {row.id for row in load_requirements().values() if HAS_NOT & set(row.applies_when)}
    excused = report.requirements("UNSUPPORTED") | report.requirements("NOT_TESTABLE")
    assert needing <= excused
    assert not excused & (VIOLATED.keys() | HELD)


def test_one_choice_comes_where_two_were_asked_for(report: Report) -> None:
    evidence = report.evidence("choices-complete")
    assert {place["exchange"] for place in evidence} == {
        "openai-chat/chat-samples/plain",
        "openai-chat/chat-samples/stream",
    }
    assert all((place["expected"], place["actual"]) == ([0, 1], [0]) for place in evidence)


def test_every_stream_ends_with_its_finish_reason_instead_of_the_end_mark(report: Report) -> None:
    evidence = report.evidence("done-ends-the-stream")
    assert len(evidence) >= 5
    assert all(place["event"] > 0 for place in evidence)
    assert {place["actual"] for place in evidence} == {"no [DONE]"}


def test_the_stop_string_stands_at_the_end_of_the_text(report: Report) -> None:
    evidence = report.evidence("stop-string-not-shown")
    assert evidence
    for place in evidence:
        stop = place["expected"].removeprefix("no ").strip("'\"")
        assert stop in place["actual"]


def test_a_server_that_is_asked_for_the_wrong_model_is_told_apart_from_a_faulty_one(
    url: str, check: Callable[..., Report]
) -> None:
    report = check(url, "--model", "no-such-model")
    assert report.document["exit_status"] == 4
    assert "Server is pinned to" in report.left_out["openai-chat"]
