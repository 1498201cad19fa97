"""A server that has an endpoint only in part: what it lacks is UNSUPPORTED with the reason, and no fault."""

from __future__ import annotations

from typing import Any

import pytest
from responses_server import RESPONSES, Lacks, ResponsesServer

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.wire.exchange import HttpRequest

BAD = (Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR)


def verdicts(server: ResponsesServer) -> dict[str, set[tuple[Verdict, str]]]:
    """What is said of each requirement, with the reason of what is not judged."""
    found: dict[str, set[tuple[Verdict, str]]] = {}
    for judgement in judge([server.run()]):
        reason = judgement.message if judgement.verdict is not Verdict.PASS else ""
        found.setdefault(judgement.requirement.id, set()).add((judgement.verdict, reason))
    return found


@pytest.mark.parametrize(("lacks", "status"), [("endpoint", "status 404"), ("implementation", "status 501")])
def test_an_endpoint_that_is_not_there_is_left_out_with_its_status(lacks: Lacks, status: str) -> None:
    found = ResponsesServer(lacks=lacks).first_words()
    assert [dialect.name for dialect in found.speaks] == ["openai-chat", "openai-completions"]
    assert status in found.left_out["openai-responses"]


@pytest.mark.parametrize("lacks", ["", "tools", "streams"])
def test_an_endpoint_in_part_violates_nothing_and_what_it_lacks_has_a_reason(lacks: Lacks) -> None:
    found = verdicts(ResponsesServer(lacks=lacks))
    assert {name: seen for name, seen in found.items() if {verdict for verdict, _ in seen} & {*BAD}} == {}
    assert {verdict for verdict, _ in found["cut-item-is-incomplete"]} == {Verdict.PASS}
    for name in ("deltas-add-up", "stream-ends-once", "events-are-numbered", "item-ids-stay"):
        due = Verdict.UNSUPPORTED if lacks == "streams" else Verdict.PASS
        assert {verdict for verdict, _ in found[name]} == {due}
        assert all(
            "no request for a stream of typed items was answered" in why
            for verdict, why in found[name]
            if why
        )


@pytest.mark.parametrize("mark", ["", "data: [DONE]\n\n"])
def test_a_stream_of_responses_may_end_with_the_mark_of_open_responses(mark: str) -> None:
    class Marking(ResponsesServer):
        def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
            status, kind, data = super()._answer(request)
            ends = request.path == RESPONSES and kind == "text/event-stream"
            return status, kind, data + mark.encode() if ends else data

    run = Marking().run("chat-messages", "item-turns")
    judged = judge([run])
    assert {judgement.requirement.id for judgement in judged if judgement.verdict in BAD} == set()
    seen: dict[str, Any] = {judgement.requirement.id: judgement.verdict for judgement in judged}
    assert seen["events-are-numbered"] is seen["stream-ends-once"] is Verdict.PASS
    streams = [
        stream for stream in run.streams if stream.dialect == "openai-responses" and stream.asked.stream
    ]
    assert {mark.encode() in stream.exchange.body for stream in streams} == {True}
    assert {any(event.done for event in stream.load().events) for stream in streams} == {bool(mark)}
