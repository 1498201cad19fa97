"""One cause, one failure: what is folded under what, and how every form of the report tells it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hand_made_stream import ids_stream
from rich.console import Console

from tokenwire.checks.evidence import expect
from tokenwire.judging.causes import causes
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.pytest_plugin import run_items
from tokenwire.record import Place
from tokenwire.report.document import document
from tokenwire.report.github import step_summary, workflow_commands
from tokenwire.report.junit import fold
from tokenwire.report.overview import overview
from tokenwire.report.page import page
from tokenwire.report.sarif import sarif
from tokenwire.report.subject import Subject
from tokenwire.report.terminal import print_report
from tokenwire.requirement import Level, load_requirements
from tokenwire.spec_files import load_schema

ROWS = load_requirements()
RUN = Run(())


def place_of(exchange: str, event: int | None = None, pointer: str = "") -> Place:
    return Place(exchange, event, pointer)


def violated(
    requirement: str, *places: Place, scenario: str = "one", related: tuple[Place, ...] = (), known: str = ""
) -> Judgement:
    """A requirement that is violated at these places, each held against the related ones."""
    row = ROWS[requirement]
    seen = tuple(
        expect(place, "right", "wrong", f"{requirement} is broken", holds=False, related=related)
        for place in places
    )
    verdict = Verdict.FAIL if row.level is Level.MUST else Verdict.WARN
    return Judgement(row, scenario, verdict, 3, seen[0].message, seen, run=RUN, known=known)


def folded(*judgements: Judgement) -> dict[str, str]:
    """What follows, and from what."""
    found = causes(judgements).folded
    return {judgements[n].requirement.id: judgements[m].requirement.id for n, m in found.items()}


def test_the_id_of_another_choice_is_one_cause() -> None:
    """SGLang 0.5.23, chat with n 2: the finish chunk of choice 0 carries the id of choice 1."""
    place = place_of("sglang-chat/chat-samples/stream", 20, "/id")
    assert folded(
        violated("request-id-constant", place), violated("chat-chunks-share-a-choice-id", place)
    ) == {"request-id-constant": "chat-chunks-share-a-choice-id"}


def test_a_value_that_should_have_been_refused_explains_what_its_answer_says() -> None:
    """SGLang 0.5.23, n -1: answered, with a count of 0 prompt tokens."""
    answer = "sglang-completions/impossible-values/n-1"
    assert folded(
        violated("prompt-tokens-count-the-input-ids", place_of(answer, None, "/usage")),
        violated("prompt-ids-match-their-count", place_of(answer, None, "/choices/0/prompt_token_ids")),
        violated("impossible-values-refused", place_of(answer)),
    ) == {
        "prompt-tokens-count-the-input-ids": "impossible-values-refused",
        "prompt-ids-match-their-count": "impossible-values-refused",
    }


def test_ids_that_are_ignored_explain_that_bad_ones_are_not_refused() -> None:
    """SGLang 0.5.23's Rust front end: chat input_ids are replaced by those of the template."""
    empty, unknown = "sglang-chat/malformed-ids/empty", "sglang-chat/unknown-ids/prompt-negative"
    assert folded(
        violated(
            "prompt-tokens-count-the-input-ids", place_of(empty, None, "/usage"), scenario="malformed-ids"
        ),
        violated(
            "prompt-tokens-count-the-input-ids", place_of(unknown, None, "/usage"), scenario="unknown-ids"
        ),
        violated("empty-input-ids-refused", place_of(empty), scenario="malformed-ids"),
        violated("unknown-prompt-ids-refused", place_of(unknown), scenario="unknown-ids"),
    ) == {
        "empty-input-ids-refused": "prompt-tokens-count-the-input-ids",
        "unknown-prompt-ids-refused": "prompt-tokens-count-the-input-ids",
    }


def test_a_usage_of_zero_is_one_cause() -> None:
    answer = "sglang-completions/prompt-logprobs/whole"
    assert folded(
        violated("usage-adds-up", place_of(answer, None, "/usage/total_tokens")),
        violated("prompt-tokens-count-the-input-ids", place_of(answer, None, "/usage")),
        violated("prompt-ids-match-their-count", place_of(answer, None, "/choices/0/prompt_token_ids")),
        violated("logprob-values-are-legal", place_of(answer, None, "/choices/0/logprobs/token_logprobs")),
        violated(
            "top-logprobs-belong-to-position", place_of(answer, None, "/choices/0/logprobs/top_logprobs")
        ),
    ) == dict.fromkeys(
        (
            "usage-adds-up",
            "prompt-ids-match-their-count",
            "logprob-values-are-legal",
            "top-logprobs-belong-to-position",
        ),
        "prompt-tokens-count-the-input-ids",
    )


def test_an_entry_that_an_echo_lacks_is_one_cause() -> None:
    """llama-cpp-python 0.3.36 drops the first entry, and gives each token that of the next."""
    answer = "openai-completions/echoed-prompt/ids-echo-logprobs"
    entries, ranks = (
        place_of(answer, None, f"/choices/0/logprobs/{name}") for name in ("token_logprobs", "top_logprobs")
    )
    assert folded(
        violated("echo-logprobs-cover-the-prompt", entries),
        violated("script-logprobs-are-right", entries),
        violated("script-prompt-logprobs-are-right", entries),
        violated("script-top-logprobs-are-right", ranks),
    ) == dict.fromkeys(
        ("script-logprobs-are-right", "script-prompt-logprobs-are-right", "script-top-logprobs-are-right"),
        "echo-logprobs-cover-the-prompt",
    )


def test_what_compares_answers_follows_from_any_answer_of_its_endpoint_in_the_same_field() -> None:
    """SGLang 0.5.13 loses text in streams of /v1/completions: whatever is compared with one differs."""
    stream = ids_stream([1], [2])
    other = replace(stream, exchange=replace(stream.exchange, name="generate/two"))
    run = Run((stream, other))
    lost = violated(
        "stream-text-equals-whole", place_of(stream.exchange.name, 1, "/choices/0/text"), scenario="a"
    )
    alone = violated(
        "batch-items-stand-alone", place_of(other.exchange.name, 1, "/choices/0/text"), scenario="b"
    )
    ids = violated("batch-items-stand-alone", place_of(other.exchange.name, 1, "/output_ids"), scenario="c")
    warned = [replace(item, run=run, verdict=Verdict.WARN) for item in (lost, alone, ids)]
    assert causes(warned).folded == {1: 0}, "what differs in another field has another cause"
    assert causes([lost, alone]).folded == {}, "exchanges of no known endpoint have none in common"
    assert causes([replace(item, run=run) for item in (lost, alone)]).folded == {}, "a FAIL shares an answer"
    both = replace(alone, violations=(alone.violations[0]._replace(related=(lost.violations[0].place,)),))
    assert causes([replace(item, run=run) for item in (lost, both)]).folded == {1: 0}


def test_a_failure_is_not_folded_by_its_place_under_another_answer_that_is_shown() -> None:
    """Invalid JSON for a tool (vLLM) stood in half a line under an innocent answer."""
    innocent, broken = place_of("a/one", None, "/text"), place_of("a/two", None, "/text")
    shown = violated("channels-hold-all-text", innocent, broken)
    assert folded(shown, violated("arguments-are-json", broken, related=(broken,))) == {}
    shown = violated("channels-hold-all-text", broken, innocent)
    assert folded(shown, violated("arguments-are-json", broken)) != {}


def test_nothing_is_folded_with_a_finding_left_to_explain() -> None:
    stream, other = place_of("a/one", 3, "/id"), place_of("a/two", 5, "/id")
    cause = violated("chat-chunks-share-a-choice-id", stream)
    assert folded(cause, violated("request-id-constant", stream, other)) == {}
    assert folded(cause, violated("request-id-constant", stream)) != {}


def test_two_requirements_at_one_event_but_not_at_one_pointer_have_two_causes() -> None:
    assert (
        folded(
            violated("usage-adds-up", place_of("a/one", 3, "/usage/total_tokens")),
            violated("finish-comes-last", place_of("a/one", 3, "/choices/0/finish_reason")),
        )
        == {}
    )
    assert (
        folded(
            violated("asked-or-refused", place_of("a/one")), violated("choices-complete", place_of("a/one"))
        )
        == {}
    )


def test_the_more_specific_is_the_cause_at_one_pointer() -> None:
    place = place_of("a/one", 3, "/choices/0/text")
    assert folded(violated("own-ids-are-accepted", place), violated("done-ends-the-stream", place)) == {
        "own-ids-are-accepted": "done-ends-the-stream"
    }
    assert folded(
        violated("own-ids-are-accepted", place_of("a/two"), related=(place,)),
        violated("done-ends-the-stream", place),
    ) == {"own-ids-are-accepted": "done-ends-the-stream"}


def test_a_failure_does_not_hide_under_a_warning_nor_under_what_a_baseline_knows() -> None:
    place = place_of("a/one", 3, "/output_ids")
    fail, warning = violated("own-ids-are-accepted", place), violated("created-is-constant", place)
    assert warning.verdict is Verdict.WARN
    assert folded(fail, warning) == {}
    known = violated("done-ends-the-stream", place, known="it is being worked on")
    assert folded(fail, known) == {}
    assert folded(replace(fail, known="so is this"), violated("done-ends-the-stream", place)) == {}


def test_what_lies_in_no_field_is_no_field_in_common() -> None:
    """Two whole answers are no one thing: refusals of many shapes hid under a server that broke."""
    stream = ids_stream([1], [2])
    other = replace(stream, exchange=replace(stream.exchange, name="generate/two"))
    run = Run((stream, other))
    lost = violated("stream-text-equals-whole", Place(stream.exchange.name))
    alone = violated("batch-items-stand-alone", Place(other.exchange.name))
    assert causes([replace(item, run=run) for item in (lost, alone)]).folded == {}


def test_runs_are_kept_apart() -> None:
    place = place_of("a/one", 3, "/id")
    cause, effect = violated("chat-chunks-share-a-choice-id", place), violated("request-id-constant", place)
    assert folded(cause, replace(effect, run=Run((), name="another"))) == {}


def test_a_capability_that_is_declared_and_not_shown_is_one_cause() -> None:
    run = Run((ids_stream([1], [2]),), declared=frozenset({"tito-chat"}))
    judgements = judge([run], [row for row in ROWS.values() if row.applies_when == ("tito-chat",)])
    assert len(judgements) > 1
    assert {judgement.verdict for judgement in judgements} <= {Verdict.FAIL, Verdict.WARN}
    assert len(judgements) - len(causes(judgements).folded) == 1
    (cause,) = {judgements[n].violations[0].message for n in causes(judgements).folded.values()}
    assert cause.startswith("tito-chat is declared, but ")


@pytest.fixture
def judgements() -> list[Judgement]:
    """Two causes; the first one in two scenarios, and in both with something that follows."""
    scenarios = [place_of("a/one", 3, "/id"), place_of("a/two", 5, "/id")]
    return [
        violated("finish-comes-last", place_of("a/three", 9, "/choices/0/finish_reason"), scenario="a/three"),
        *(violated("request-id-constant", place, scenario=place.exchange) for place in scenarios),
        *(violated("chat-chunks-share-a-choice-id", place, scenario=place.exchange) for place in scenarios),
    ]


@pytest.fixture
def report(judgements: list[Judgement]) -> Mapping[str, Any]:
    return document(Subject(url="http://h:1", runs=(RUN,)), judgements, 1)


MORE = "1 more follows from the same cause: request-id-constant"


def test_the_json_report_names_causes_and_what_follows(report: Mapping[str, Any]) -> None:
    jsonschema.validate(report, load_schema("report"))
    # Which of two unrelated causes comes first hangs on all that follows from any other.
    assert {cause["requirement"]: cause for cause in report["causes"]} == {
        "finish-comes-last": {"requirement": "finish-comes-last", "verdict": "FAIL", "follow": []},
        "chat-chunks-share-a-choice-id": {
            "requirement": "chat-chunks-share-a-choice-id",
            "verdict": "FAIL",
            "follow": [{"requirement": "request-id-constant", "scenarios": ["a/one", "a/two"]}],
        },
    }
    found = [(row["requirement"], row["verdict"], row.get("follows_from")) for row in report["verdicts"]]
    assert found == [
        ("finish-comes-last", "FAIL", None),
        *[("request-id-constant", "FAIL", "chat-chunks-share-a-choice-id")] * 2,
        *[("chat-chunks-share-a-choice-id", "FAIL", None)] * 2,
    ]


def test_the_terminal_shows_a_cause_once(report: Mapping[str, Any]) -> None:
    console = Console(width=140, record=True, file=StringIO())
    print_report(console, report)
    text = console.export_text(clear=False)
    assert text.count("FAIL  chat-chunks-share-a-choice-id  in ") == 1
    assert "FAIL  request-id-constant  in " not in text
    assert MORE in text
    assert "also in a/two" in text
    print_report(console, report, verbosity=1)
    assert "follows from chat-chunks-share-a-choice-id" in console.export_text(), "the table says why"
    assert overview(report).last_line.endswith("does not conform (3 FAIL; 2 causes of 3 violations)")


def test_github_is_told_of_each_cause(report: Mapping[str, Any]) -> None:
    lines = workflow_commands(report)
    by_title = {line.partition("::")[2].partition("::")[0]: line for line in lines}
    shared = "error title=FAIL chat-chunks-share-a-choice-id"
    assert by_title.keys() == {"error title=FAIL finish-comes-last", shared}
    assert by_title[shared].endswith(MORE)
    summary = step_summary(report)
    assert summary.count("<details><summary>FAIL") == 2
    assert MORE in summary


def test_sarif_holds_a_result_for_each_cause(report: Mapping[str, Any]) -> None:
    results = sarif(report)["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == {"finish-comes-last", "chat-chunks-share-a-choice-id"}
    assert len(results) == 2
    (found,) = (item["message"]["text"] for item in results if item["ruleId"] != "finish-comes-last")
    assert found.startswith("chat-chunks-share-a-choice-id is broken (in a/one, a/two). ")
    assert found.endswith(f"{MORE}.")


def test_the_page_folds_what_follows(report: Mapping[str, Any]) -> None:
    text = page(report)
    assert '<section id="chat-chunks-share-a-choice-id">' in text
    assert '<section id="request-id-constant">' not in text
    assert '<a href="#request-id-constant">' not in text
    assert f"<summary>{MORE}</summary>" in text
    assert "request-id-constant is broken" in text
    assert "2 causes of 3 violations" in text


def test_junit_holds_a_failure_for_each_cause(
    report: Mapping[str, Any], judgements: list[Judgement], tmp_path: Path
) -> None:
    path = tmp_path / "report.xml"
    run_items(judgements, Subject(url="http://h:1", runs=(RUN,)), junit=path)
    path.write_text(fold(path, report), "utf-8")
    assert max(map(len, path.read_text("utf-8").splitlines())) < 2_000
    (suite,) = ET.parse(path).iter("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "5",
        "failures": "2",
        "skipped": "3",
        "errors": "0",
    }
    failing = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    failing = {name: failure for name, failure in failing.items() if failure is not None}
    assert set(failing) == {"finish-comes-last[a/three]", "chat-chunks-share-a-choice-id[a/one]"}
    assert failing["chat-chunks-share-a-choice-id[a/one]"].text.endswith(MORE)
    skipped = {case.get("name"): case.find("skipped") for case in suite.iter("testcase")}
    assert skipped["request-id-constant[a/two]"].get("message") == (
        "FAIL: follows from chat-chunks-share-a-choice-id"
    )


def test_a_report_of_before_there_were_causes_is_still_told(report: Mapping[str, Any]) -> None:
    old = {key: value for key, value in report.items() if key != "causes"}
    old["verdicts"] = [
        {key: value for key, value in row.items() if key != "follows_from"} for row in report["verdicts"]
    ]
    assert overview(old).last_line.endswith("does not conform (3 FAIL)")
    assert len(workflow_commands(old)) == 3
    assert '<section id="request-id-constant">' in page(old)
