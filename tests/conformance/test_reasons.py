"""Reasons of what was not judged: each count in them is what the capture holds."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row
from test_scenario import Echo, talk_everything_through

from tokenwire.ask import Asked
from tokenwire.asking.scenario import load_scenarios
from tokenwire.checks.about import STREAMED, about
from tokenwire.checks.check import CHECKS, Check, Target
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging import reasons
from tokenwire.judging.asked_by import asked_by
from tokenwire.judging.beside import GATEWAY, WORKER
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.reasons import NO_WORKER, scenarios_for
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Answer, Place, Stream
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = sorted(
    path.relative_to(FIXTURES).as_posix().removesuffix(".jsonl.gz")
    for path in FIXTURES.glob("*/*/live-*.jsonl.gz")
)
OF_THE_SUITE = {"preflight", "vitals", "restarted"}
"""Scenarios of requests that the suite sends for itself."""
A_FEW = 3
"""So many answers hold a record that none of our patterns finds."""
FEW = 20
"""What a run of fewer scenarios did not decide, it did not ask: there is nothing to count."""
_COUNT = re.compile(r"(\d+) ([a-z][^;,]*)")
_LEFT_OUT = re.compile(r"(\d+) skipped: ")
_NOT_ASKED = re.compile(r"(?:not asked: |was asked \()([a-z0-9, -]+?)(?: and \d+ more)?(?:;|\)|$)")
_PATHS = {dialect.endpoint.path for dialect in load_dialects().values()}


def exchanges(capture: Path) -> list[dict[str, Any]]:
    """Name, scenario, request, status and answer of each exchange, read without the suite."""
    found: list[dict[str, Any]] = []
    with gzip.open(capture, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["kind"] == "request":
                found.append(line | {"status": None, "answer": ""})
            elif line["kind"] == "response":
                found[-1]["status"] = line["status"]
            elif line["kind"] == "read":
                found[-1]["answer"] += line.get("text", "")
            elif line["kind"] == "end":
                found[-1]["ending"] = line["ending"]
    return [item for item in found if item["method"] == "POST" and _is_of_a_dialect(item)]


def _is_of_a_dialect(one: Mapping[str, Any]) -> bool:
    dialect, _, label = one["name"].partition("/")
    known = one["path"].partition("?")[0] in _PATHS or label == "honesty/unknown-path"
    return known and (dialect in load_dialects() or one["scenario"] in OF_THE_SUITE)


def said(message: str) -> Iterator[tuple[int, str]]:
    """The counts of a reason, with the stage of each."""
    for count, stages in _COUNT.findall(message.partition("; ")[0]):
        for stage in stages.split(" and "):
            yield int(count), stage


@pytest.fixture(params=CAPTURES, scope="module")
def judged(request: pytest.FixtureRequest) -> tuple[list[dict[str, Any]], list[Judgement]]:
    capture = FIXTURES / f"{request.param}.jsonl.gz"
    return exchanges(capture), judge(replay([capture]).runs)


def test_every_count_and_name_in_a_reason_is_that_of_the_capture(
    judged: tuple[list[dict[str, Any]], list[Judgement]],
) -> None:
    asked, judgements = judged
    answered = {item["scenario"] for item in asked if item["status"] is not None}
    alone = [item for item in asked if item["scenario"] not in {GATEWAY, WORKER}]
    counted = named = 0
    for judgement in judgements:
        if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.doubted:
            continue
        scenarios = scenarios_for().get(judgement.requirement.id, ())
        mine = [item for item in alone if not scenarios or item["scenario"] in scenarios]
        right = {"asked": mine, "answered": [item for item in mine if item["status"] is not None]}
        reason = judgement.message.partition("a PASS needs; ")[2] or judgement.message
        for count, stage in said(reason):
            if stage in right:
                # Which family a request of the preflight belongs to, its answer decides.
                unsure = sum(item["scenario"] in OF_THE_SUITE for item in right[stage])
                assert 0 <= len(right[stage]) - count <= unsure, (judgement.name, reason)
                counted += 1
        for names in _NOT_ASKED.findall(reason):
            for name in names.split(", "):
                assert name in scenarios, (judgement.name, reason)
                assert name not in answered or "died" in reason, (judgement.name, reason)
                named += 1
    assert counted or len(answered) < FEW
    assert named


def test_no_reason_counts_more_than_came_so_far_or_denies_what_was_seen(
    judged: tuple[list[dict[str, Any]], list[Judgement]],
) -> None:
    for judgement in judged[1]:
        if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.doubted:
            continue
        some, _, reason = judgement.message.rpartition("a PASS needs; ")
        stages = list(dict.fromkeys(said(reason)))
        pairs = next(
            (nth for nth, (_, stage) in enumerate(stages) if stage.startswith("pairs ")), len(stages)
        )
        for unit in (stages[:pairs], stages[pairs:]):  # one answer is in several pairs
            counts = [count for count, _ in unit]
            assert counts == sorted(counts, reverse=True), (judgement.name, reason)
        counts = [count for count, _ in stages]
        left_out = sum(map(int, _LEFT_OUT.findall(reason)))
        assert left_out <= (counts[-1] if counts else 0), (judgement.name, reason)
        assert not (some and "none is" in reason), (judgement.name, judgement.message)


A_NUMBER, A_TEXT = r"-?\d", r'"[^"]'
SHOWN = {
    "output-ids": r'"(output_ids|token_ids|response_token_ids)":\s*\[\s*\d',
    "prompt-token-ids": r'"prompt_token_ids":\s*\[\s*\d',
    "completion-tokens": rf'"meta_info":.*"completion_tokens":\s*{A_NUMBER}',
    "token-count": rf'"(completion|output)_tokens":\s*{A_NUMBER}',
    "usage": r'"usage":\s*\{',
    "cached-tokens": rf'"cached_tokens":\s*{A_NUMBER}',
    "prefix-cache": r'"cached_tokens":\s*[1-9]',
    "cached-tokens-details": r'"cached_tokens_details":\s*\{',
    "customized-info": r'"customized_info":\s*\{\s*"',
    "mirror-sampler": r'"mirror_token_id"',
    "logprobs": rf'"(logprob|output_token_logprobs|token_logprobs)":\s*(\[\s*)*{A_NUMBER}',
    "logprobs-length": r'"output_token_logprobs_length":\s*\d',
    "top-logprobs": r'"(output_)?top_logprobs":\s*\[\s*[\[{]',
    "chosen-logprobs": r'"output_token_ids_logprobs":\s*\[\s*\[',
    "prompt-logprobs": r'"(prompt_logprobs|input_token_logprobs)":\s*\[\s*[^\]\s]',
    "chat-logprobs": r'"logprobs":\s*\{\s*"content":\s*\[\s*\{',
    "completion-logprobs": r'"token_logprobs":\s*\[',
    "text-offsets": r'"text_offset":\s*\[\s*\d',
    "text": rf'"(text|content)":\s*{A_TEXT}',
    "tool-calls": r'"tool_calls":\s*\[\s*\{|"type":\s*"(tool_use|function_call)"|"function_call":\s*\{',
    "reasoning": rf'"reasoning(_content)?":\s*{A_TEXT}',
    "sampling-mask": r'"output_token_sampling_mask":\s*\[',
    "weight-versions": r'"weight_versions":\s*\[',
    "token-arrays": r'"(routed_experts|hidden_states)":\s*["\[{]',
    "routed-experts": r'"routed_experts":\s*["\[{]',
    "hidden-states": r'"hidden_states":\s*["\[{]',
    "retractions": r'"num_retractions":\s*[1-9]',
    "dp-rank": r'"dp_rank":\s*\d',
    "draft-counts": r'"spec_verify_ct":\s*[1-9]',
    "results": r'"(embedding|score)":',
}
"""What stands in an answer that shows a capability."""
SENT = {
    "echo": '"echo": true',
    "stop-patterns": '"stop_regex"',
    "responses": "/v1/responses ",
    "messages": "/v1/messages ",
    "chat": "/v1/chat/completions ",
}
"""What stands in the path and body of a request that an answer with 200 shows a capability of."""
_ABSENT = re.compile(r"(?:^|; )([a-z-]+): ")
_ANSWERS = re.compile(r"\((\d+) answers\b")
_RECORD = re.compile(
    r'"(finish|stop)_reason":\s*(\{\s*"|"[a-z])|"status":\s*"(completed|incomplete)"|"(text|content|delta)":\s*"[^"]'
)


def test_what_is_said_to_be_absent_is_not_in_the_capture(
    judged: tuple[list[dict[str, Any]], list[Judgement]],
) -> None:
    asked, judgements = judged
    answered = [item for item in asked if item["status"] == 200]
    alone = [item for item in answered if item["scenario"] not in {GATEWAY, WORKER}]
    requests = [f"{item['path']} {json.dumps(item.get('body'))}" for item in alone]
    absent = {
        name: judgement.name
        for judgement in judgements
        if judgement.verdict in {Verdict.UNSUPPORTED, Verdict.NOT_TESTABLE}
        and judgement.requirement.applies_when
        for name in _ABSENT.findall(judgement.message.partition(" (")[0])
    }
    assert absent
    families = [item for item in alone if item["scenario"] not in OF_THE_SUITE]
    for name, where in absent.items():
        for item in families if name in SHOWN else ():
            assert not re.search(SHOWN[name], item["answer"]), (where, name, item["name"])
        assert not any(SENT[name] in request for request in requests if name in SENT), (where, name)
    cut = sum(item.get("ending") != "complete" for item in alone)
    records = sum(_RECORD.search(item["answer"]) is not None for item in alone)
    for judgement in judgements:
        if judgement.verdict is Verdict.UNSUPPORTED:
            (count,) = map(int, _ANSWERS.findall(judgement.message))
            assert abs(count - records) <= A_FEW + cut, (judgement.name, records)


_TWO = re.compile(r"(\S+) and (\S+) are one request, answered")
_OFTEN = re.compile(r"the request of (\S+) was answered (?:once|alike (\d+) times)")
_CONTENT = re.compile(r'"(?:text|content|delta|output_ids|token_ids)":\s*("(?:[^"\\]|\\.)*"|\[[\d, ]*\])')


def question(item: Mapping[str, Any]) -> tuple[str, str]:
    """Path and body of a request, without the ids that clients give."""
    body = {key: value for key, value in (item.get("body") or {}).items() if key not in {"rid", "request_id"}}
    return item["path"], json.dumps(body, sort_keys=True)


def test_what_chance_is_said_to_explain_was_answered_as_often_as_is_said(
    judged: tuple[list[dict[str, Any]], list[Judgement]],
) -> None:
    asked, judgements = judged
    named = {item["name"]: item for item in asked}
    for judgement in judgements:
        message = judgement.message if judgement.doubted else ""
        for first, second in _TWO.findall(message):
            assert question(named[first]) == question(named[second]), judgement.name
            assert len({str(_CONTENT.findall(named[name]["answer"])) for name in (first, second)}) == 2
        for name, times in _OFTEN.findall(message):
            same = [item for item in asked if question(item) == question(named[name])]
            content = _CONTENT.findall(named[name]["answer"])
            alike = sum(_CONTENT.findall(item["answer"]) == content for item in same)
            assert alike <= int(times or 1), (judgement.name, name)


def test_what_is_not_testable_has_not_what_it_needs(
    judged: tuple[list[dict[str, Any]], list[Judgement]],
) -> None:
    asked, judgements = judged
    for judgement in judgements:
        if judgement.verdict is Verdict.NOT_TESTABLE and judgement.message == NO_WORKER:
            assert not any(item["scenario"] == WORKER for item in asked)


def observes_nothing(_stream: Stream, _target: Target) -> Iterator[Observation]:
    yield from ()


def reason(requirement: Any, run: Run) -> str:
    (judgement,) = judge([run], [requirement])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    return judgement.message


RUN = Run((ids_stream([1], [2]), ids_stream([1], name="b")))


def test_a_reason_ends_at_the_first_stage_that_no_answer_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, words in (
        (
            STREAMED,
            "2 asked and answered and undisturbed and streamed; none is relevant to the requirement",
        ),
        (about("stop", streamed=True), "2 asked and answered and undisturbed, 0 asked for stop"),
    ):
        monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=observes_nothing, about=wanted))
        assert reason(row(), RUN) == words
    assert reason(row(condition="the moon is full"), RUN).startswith("2 asked")


@pytest.mark.parametrize(
    ("intervals", "counted"),
    [
        ((), "1 asked and answered and undisturbed, 0 pairs of them for one request"),
        ((1, 2), "3 asked and answered and undisturbed, 3 pairs of them for one request; none is relevant"),
        (
            (1, 2, 3),
            "4 asked and answered and undisturbed, 5 pairs of them for one request; none is relevant",
        ),
    ],
)
def test_pairs_are_counted_as_pairs_and_not_among_the_answers(
    monkeypatch: pytest.MonkeyPatch, intervals: tuple[int, ...], counted: str
) -> None:
    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", on_comparison=lambda _pair, _target: iter(())))
    asked = Asked(key="k", greedy=True, input_ids=((1, 2),))
    streams = tuple(
        ids_stream(
            [1, 2], name=f"every-{interval}", asked=replace(asked, stream=True, stream_interval=interval)
        )
        for interval in intervals
    )
    run = Run((ids_stream([1, 2], name="whole", asked=asked), *streams))
    assert reason(row(), run).startswith(counted)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (None, "too few are relevant to the requirement"),
        ("the moon is full", "in them it did not happen more often that the moon is full"),
    ],
)
def test_a_reason_does_not_deny_what_was_seen(
    monkeypatch: pytest.MonkeyPatch, condition: str | None, words: str
) -> None:
    def sees_one(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
        yield expect(Place(streams[0].exchange.name), 1, 1)

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", on_run=sees_one))
    few = "1 of the 2 witnesses that a PASS needs; 2 asked and answered and undisturbed"
    assert reason(row(witnesses=2, condition=condition), RUN) == f"{few}; {words}"


def test_what_was_left_out_elsewhere_is_not_counted_among_what_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leaves_out(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
        yield from (left_out(Place(one.exchange.name), "too late") for one in streams)

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", on_run=leaves_out))
    monkeypatch.setattr(reasons, "scenarios_for", lambda: {"made-up": ("first",)})
    run = Run((ids_stream([1], name="a", scenario="first"), ids_stream([1], name="b", scenario="second")))
    words = "1 asked and answered and undisturbed; 1 skipped: too late (first in a)"
    assert reason(row(), run) == words


def test_what_was_left_out_is_counted_with_its_rule_and_its_first_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leaves_out(stream: Stream, _target: Target) -> Iterator[Observation]:
        yield left_out(stream.events[0].place, "an abort came beside it")

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=leaves_out))
    words = "2 asked and answered and undisturbed; 2 skipped: an abort came beside it (first in generate/one)"
    assert reason(row(), RUN) == words


def test_what_is_left_out_of_one_scenario_does_not_come_before_what_is_seen_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_leaves_out(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
        left, seen = streams
        yield left_out(Place(left.exchange.name), "too noisy")
        yield expect(Place(seen.exchange.name), 1, 1)
        yield expect(Place(left.exchange.name), 1, 1)

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", on_run=first_leaves_out))
    run = Run((ids_stream([1], name="a", scenario="first"), ids_stream([1], name="b", scenario="second")))
    judged = judge([run], [row()])
    assert [(judgement.scenario, judgement.verdict) for judgement in judged] == [
        ("second", Verdict.PASS),
        ("first", Verdict.PASS),
    ]


def test_what_no_scenario_of_the_run_asks_is_not_asked() -> None:
    assert reason(load_requirements()["missing-prompts-refused"], RUN) == "not asked: no-prompt"


def test_every_scenario_that_is_named_is_one() -> None:
    named = {name for names in scenarios_for().values() for name in names}
    assert named <= load_scenarios().keys()
    assert scenarios_for().keys() <= load_requirements().keys()


# What a run did not ask for, and what its target does not generate.


def test_a_row_that_the_chosen_scenarios_do_not_ask_is_inconclusive_and_names_one_that_does() -> None:
    """The server has top logprobs: nobody asked for any, and the row was UNSUPPORTED."""
    probed = Run((ids_stream([1, 2]), ids_stream([1, 2])))
    (judgement,) = judge([probed], [load_requirements()["top-logprobs-have-k"]])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.message == "no request asked for top-logprobs: add --scenario logprob-families"


def test_a_server_that_was_asked_and_shows_nothing_does_not_support_it() -> None:
    asked = ids_stream([1, 2])
    asked = replace(asked, asked=replace(asked.asked, logprobs=True, top_logprobs=2))
    (judgement,) = judge([Run((asked,))], [load_requirements()["top-logprobs-have-k"]])
    assert judgement.verdict is Verdict.UNSUPPORTED


def test_an_endpoint_without_words_for_it_does_not_support_it() -> None:
    """Messages has no logprobs to ask for: that is no matter of the scenarios that were chosen."""
    said = replace(ids_stream([1, 2]), dialect="anthropic-messages")
    (judgement,) = judge([Run((said,))], [load_requirements()["top-logprobs-have-k"]])
    assert judgement.verdict is Verdict.UNSUPPORTED


def test_scenarios_that_are_named_for_a_capability_ask_for_it() -> None:
    streams = asyncio.run(talk_everything_through(Echo(), perilous=False))
    for capability, named in asked_by().items():
        asking = [stream for stream in streams if stream.exchange.scenario == named.scenario]
        assert [stream for stream in asking if named.is_asked(stream.asked)], capability


def test_a_target_that_generates_no_text_does_not_support_what_is_said_of_text() -> None:
    """As an embedding server: 38 of 56 rows about text were INCONCLUSIVE."""
    run, *_ = replay([FIXTURES / "vllm" / "0.32.0-cpu" / "results.jsonl.gz"]).runs
    judged = {judgement.requirement.id: judgement for judgement in judge([run])}
    for name in ("one-finish-per-choice", "stop-wins-within-the-budget", "temperature-is-kept"):
        assert judged[name].verdict is Verdict.UNSUPPORTED
        assert judged[name].message.startswith("the target generates no text: its endpoints give results (")
    assert judged["long-inputs-refused"].message == "not asked: bad-inputs"
    assert judged["answer-fits-schema"].verdict is Verdict.PASS
    undecided = [name for name, judgement in judged.items() if judgement.verdict is Verdict.INCONCLUSIVE]
    assert len(undecided) < 8


def test_a_server_that_gives_results_and_text_is_held_to_both() -> None:
    run, *_ = replay([FIXTURES / "vllm" / "0.32.0-cpu" / "results.jsonl.gz"]).runs
    both = replace(run, streams=(*run.streams, ids_stream([1, 2])))
    (judgement,) = judge([both], [load_requirements()["temperature-is-kept"]])
    assert judgement.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("dialect", "can"), [("openai-completions", False), ("vllm-completions", True)])
def test_what_is_never_written_cannot_be_asked(dialect: str, can: bool) -> None:
    """Otherwise a whole run is told to send a scenario that it has sent."""
    assert asked_by()["prompt-token-ids"].can_be_asked(load_dialects()[dialect]) is can
