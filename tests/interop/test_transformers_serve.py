"""`transformers serve`, judged for real as an OpenAI-compatible server.

Its verdicts are pinned, with what proves each violation. The version is that of `constraints/interop.txt`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from programs import MODELS, answers, free_port, program
from suite_report import Report

from tokenwire.requirement import load_requirements
from tokenwire_parrot.checkpoint import write_parrot

VERSION = "5.23.0"
MODEL = str(MODELS / "tiny-llama")

VIOLATED: Mapping[str, str] = {
    "choices-complete": "n is read and forgotten: one choice comes, whatever was asked for",
    "asked-or-refused": "logprobs are read and forgotten: the answer has none, and nobody is told",
    "stop-string-not-shown": "the text keeps the stop string, whole and streamed",
    "stop-string-ends-generation": "and all of the token that completes it",
    "stop-wins-within-the-budget": "a stop at the budget's end is called length, a spent budget completed",
    "stream-text-equals-whole": "a stream of completions keeps an incomplete last character to itself",
    "echo-begins-with-the-prompt": "an echo is read and forgotten",
    "echo-adds-only-the-prompt": "so the text begins with the output",
    "logit-bias-is-kept": "completions read a bias and forget it",
    "done-ends-the-stream": "no stream ends with [DONE]",
    "wrong-types-refused": "a field of the wrong type ends in a status of 500, or is taken for another",
    "impossible-values-refused": "a negative temperature is answered, and n of 0 or -1 is forgotten",
    "missing-prompts-refused": "a request without messages ends in a status of 500",
    "requests-do-not-break-the-server": "all of these",
    "events-fit-schema": "an error in a stream is a bare string",
    "answer-content-type": "/v1/responses answers with events where no stream was asked for",
    "endpoints-agree-on-channels": "its streams keep an incomplete last character, and chat shows it",
    "refusal-is-json": "a refusal says why in `detail`, where no client of OpenAI's looks for an error",
}
REMARKED: Mapping[str, str] = {
    "event-name-is-its-type": "the events of /v1/responses have no names",
    "created-is-constant": "each chunk of a stream has a time of its own",
    "unknown-efforts-refused": "an effort of reasoning that no model knows is answered by /v1/responses",
    "unknown-parameter-ids-refused": "a bias for an id that is in no vocabulary ends in a status of 500",
}
HELD = {
    "answer-fits-schema",
    "one-finish-per-choice",
    "finish-comes-last",
    "finish-type-is-known",
    "budget-is-kept",
    "length-means-budget",
    "usage-adds-up",
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


@contextmanager
def serving(model: str, home: Path) -> Iterator[str]:
    """Serve a model; the URL of the server."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", model, "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with program(command, home) as running:
        running.until(answers(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(MODEL, tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture(scope="module")
def report(url: str, check: Callable[..., Report]) -> Report:
    return check(url, "--model", MODEL)


WRONG: Mapping[str, str] = {
    "script-text-is-right": "the stop string and special tokens are shown, the blank at the beginning is not",
    "script-text-so-far-is-right": "the stop string is shown as it comes",
    "script-finish-is-right": "an end that comes with the last token of the budget is called length",
}


FORGOTTEN: Mapping[str, str] = {
    "tool-choice-is-kept": "tool_choice none is read and forgotten: the call is made",
    "one-call-at-most": "so is parallel_tool_calls: two calls come where one is wanted",
    "strict-arguments-fit": "and strict: the arguments are what the model says",
}


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory, check: Callable[..., Report]) -> Iterator[Any]:
    """Give `parrot(*scenarios)`: what a parrot that transformers serves is judged to be."""
    home = tmp_path_factory.mktemp("parrot")
    model = home / "model"
    write_parrot(model)
    with serving(str(model), home) as served:
        yield lambda *names: check(served, "--model", str(model), *(f"--scenario={name}" for name in names))


def test_what_a_request_says_of_its_calls_is_read_and_forgotten(parrot: Callable[..., Report]) -> None:
    report = parrot("tool-choice")
    assert report.requirements("FAIL") >= FORGOTTEN.keys()
    called = {name: report.evidence(name)[0]["actual"] for name in FORGOTTEN}
    assert called["tool-choice-is-kept"] == ["get_weather"]
    assert called["one-call-at-most"] == ["get_weather", "ping"]
    assert json.loads(called["strict-arguments-fit"]) == {"unit": "k"}


def test_a_parrot_tells_what_its_answers_should_be(parrot: Callable[..., Report]) -> None:
    report = parrot("script-budgets", "script-logprobs")
    rows = {row.id for row in load_requirements().values() if row.oracle == "script"}
    assert report.requirements("FAIL") & rows == WRONG.keys()
    assert (report.requirements("PASS") - WRONG.keys()) & rows == {"script-counts-are-right"}
    assert report.requirements("INCONCLUSIVE") & rows == {"script-match-is-right"}, "it names no stop"


def test_the_pins_are_of_this_version() -> None:
    assert version("transformers") == VERSION


def test_it_is_recognised_and_the_report_says_how(report: Report) -> None:
    assert report.dialects == ["openai-chat", "openai-completions", "openai-responses"]
    assert set(report.dialects) == report.detected.keys()
    assert "/v1/chat/completions uses it" in report.detected["openai-chat"]
    for name, refused in (("sglang-chat", "repetition_penalty"), ("sglang-completions", "return_token_ids")):
        assert refused in report.left_out[name], "it refuses what it does not know"
    for name in ("sglang-generate", "vllm-generate", "llamacpp-completion"):
        assert "404" in report.left_out[name]


def test_it_is_asked_in_words_where_it_refuses_ids(report: Report) -> None:
    assert report.detected["openai-completions"].endswith("it wants prompts as text")


def test_it_violates_what_it_is_known_to_violate_and_nothing_else(report: Report) -> None:
    assert report.requirements("FAIL") == VIOLATED.keys()
    assert report.requirements("WARN") == REMARKED.keys()
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
    assert {"openai-chat/chat-samples/plain", "openai-chat/chat-samples/stream"} <= {
        place["exchange"] for place in evidence
    }
    assert all(len(place["expected"]) > 1 and place["actual"] == [0] for place in evidence)


def test_the_server_breaks_at_what_it_cannot_read(report: Report) -> None:
    broken = report.evidence("requests-do-not-break-the-server")
    assert {place["actual"] for place in broken} == {"status 500"}
    assert {place["exchange"] for place in report.evidence("missing-prompts-refused")} <= {
        place["exchange"] for place in broken
    }


def test_an_error_in_a_stream_is_a_bare_string(report: Report) -> None:
    evidence = report.evidence("events-fit-schema")
    assert evidence
    assert all('{"error":' in place["excerpt"] for place in evidence)


def test_every_stream_ends_with_its_finish_reason_or_an_error_instead_of_the_end_mark(report: Report) -> None:
    evidence = report.evidence("done-ends-the-stream")
    assert len(evidence) >= 5
    assert all(place["event"] > 0 or '{"error":' in place["excerpt"] for place in evidence)
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
