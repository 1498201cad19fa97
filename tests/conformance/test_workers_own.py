"""Failures of a gateway that are its worker's own: they are marked, and come last."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from stream_builder import IDS, Reply, build

from tokenwire.asking.beside import for_the_worker
from tokenwire.judging.beside import WORKER, exhibit_name, in_place, is_exhibit
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.workers_own import to_ask, workers_own
from tokenwire.record import Stream
from tokenwire.report.document import document
from tokenwire.report.overview import overview
from tokenwire.report.subject import Subject
from tokenwire.report.terminal import print_report
from tokenwire.requirement import load_requirements
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

COUNTED, FINISHED = "ids-are-counted", "one-finish-per-choice"
ROWS = [load_requirements()[name] for name in (COUNTED, FINISHED)]
RIGHT = Reply()
MISCOUNTED = Reply(counted=False, counters={"completion_tokens": len(IDS) + 3, "prompt_tokens": 3})
UNFINISHED = Reply(finish=None)


def answer(reply: Reply, name: str = "sglang-generate/one/a") -> Stream:
    return build(choices=(reply,), name=name)


def report_of(streams: Sequence[Stream], exhibits: Sequence[Stream]) -> dict[str, Any]:
    run = Run(tuple(streams), exhibits=tuple(exhibits))
    return document(Subject(url="http://gateway", runs=(run,)), judge([run], ROWS), 1)


def marked(report: dict[str, Any]) -> set[str]:
    return {row["requirement"] for row in report["verdicts"] if row.get("of_worker")}


@pytest.mark.parametrize(
    ("of_worker", "own"), [((MISCOUNTED,), {COUNTED}), ((RIGHT,), set()), ((UNFINISHED,), set()), ((), set())]
)
def test_a_failure_is_the_workers_own_where_its_answer_has_it_too(of_worker, own) -> None:
    report = report_of([answer(MISCOUNTED)], [answer(reply) for reply in of_worker])
    assert {row["requirement"]: row["verdict"] for row in report["verdicts"]}[COUNTED] == "FAIL"
    assert marked(report) == own


def test_a_failure_in_a_request_that_the_worker_was_not_asked_is_the_gateways() -> None:
    streams = [answer(MISCOUNTED), answer(MISCOUNTED, "sglang-generate/two/b")]
    exhibits = [answer(RIGHT), answer(MISCOUNTED, "sglang-generate/three/c")]
    assert not marked(report_of(streams, exhibits))


def test_the_same_failure_in_another_scenario_is_the_workers_own_too() -> None:
    """Each kind of failure is asked once."""
    streams = [answer(MISCOUNTED), answer(MISCOUNTED, "sglang-generate/two/b")]
    run = Run(tuple(streams))
    asked = to_ask(judge([run], ROWS), run, 10)
    assert [each.exchange.name for each in asked] == ["sglang-generate/one/a"]
    judgements = judge([Run(tuple(streams), exhibits=(answer(MISCOUNTED),))], ROWS)
    own = {judgements[position].name for position in workers_own(judgements)}
    assert {name.partition("[")[0] for name in own} == {COUNTED}


def test_the_gateways_own_failures_come_first() -> None:
    """However grave the others are: here both are, and by the specification's order the other comes first."""
    streams = [answer(MISCOUNTED), answer(UNFINISHED, "sglang-generate/two/b")]
    alone = report_of(streams, [])
    first, second = (cause["requirement"] for cause in alone["causes"])
    replies = {COUNTED: streams[0], FINISHED: streams[1]}
    report = report_of(streams, [replies[first]])
    assert [cause["requirement"] for cause in report["causes"]] == [second, first]
    assert [cause.get("of_worker", False) for cause in report["causes"]] == [False, True]
    assert "1 is the worker's own" in overview(report).numbers
    written = io.StringIO()
    print_report(Console(file=written, width=80), report)
    lines = written.getvalue().splitlines()
    own = next(place for place, line in enumerate(lines) if "the worker's own: it answers" in line)
    assert any(second in line for line in lines[:own])


def test_few_requests_are_asked_and_none_that_did_not_end() -> None:
    streams = [answer(MISCOUNTED), answer(UNFINISHED, "sglang-generate/two/b")]
    run = Run(tuple(streams))
    judgements = judge([run], ROWS)
    assert len(to_ask(judgements, run, 10)) == 2
    assert len(to_ask(judgements, run, 1)) == 1


def test_the_name_of_a_request_to_the_worker_is_that_of_the_gateways_in_it() -> None:
    request = HttpRequest("POST", "/generate", {})
    name = "sglang-generate/uneven-ends/samples--7"
    asked = Exchange(name, request, "uneven-ends", 200, (), (), Ending.COMPLETE)
    sent = Exchange(exhibit_name(asked), request, WORKER, 200, (), (), Ending.COMPLETE)
    assert is_exhibit(sent)
    assert not is_exhibit(asked)
    assert (in_place(sent).name, in_place(sent).scenario) == (name, "uneven-ends")


def test_the_worker_gets_the_request_without_what_is_for_the_gateway_alone() -> None:
    body = {"model": "of-the-gateway", "rid": "r-1", "text": "r-1 is a text"}
    sent = build(choices=(RIGHT,), body=body, request_id="r-1")
    headers = (("Authorization", "***"), ("X-Request-Id", "r-1"))
    sent = replace(
        sent, exchange=replace(sent.exchange, request=replace(sent.exchange.request, headers=headers))
    )
    request = for_the_worker(sent, "of-the-worker", {"authorization"})
    assert request.headers == (("X-Request-Id", "r-1-worker"),)
    assert request.body == {**body, "model": "of-the-worker", "rid": "r-1-worker"}
