"""What vLLM 0.33.0's two front ends may do, and what looks alike and is a fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from item_answers import blocks, messaged_whole, responded, responded_whole, text_block
from item_pairs import LEGAL
from live_captures import live_run, verdict
from stream_builder import refusal, whole
from test_checks_pairs import observe
from test_death import NOBODY, PROBES, exchange, run
from test_death import verdict as death_verdict
from wire_answers import DONE, answered

from tokenwire.ask import SentField
from tokenwire.checks.evidence import Observation
from tokenwire.dialects.shapes import load_shapes
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream
from tokenwire.target.death import VITALS
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending

BROKEN = "requests-do-not-break-the-server"
HAVE_K = "top-logprobs-have-k"
RED = {
    "vllm-0.33-python-standard": {
        *("asked-or-refused", "bad-constraints-refused", "budget-is-kept", "chat-logprobs-count-the-tokens"),
        *(
            "cut-text-begins-a-word",
            "deltas-add-up",
            "length-means-budget",
            "named-stop-was-asked-and-spelled",
        ),
        *("refusal-is-json", "script-counts-are-right", "script-ids-are-said", "script-text-is-right"),
        *("script-text-offsets-are-right", "script-text-so-far-is-right", "script-top-logprobs-are-right"),
        *("stream-ends-cleanly", "stream-series-equal-whole", "top-logprobs-belong-to-position"),
        "zero-budget-has-no-ids",
    },
    "vllm-0.33-rust-standard": {
        *("answer-fits-schema", "asked-or-refused", "bad-constraints-refused", "budget-is-kept"),
        *("cut-text-begins-a-word", "echo-logprobs-cover-the-prompt", "impossible-values-refused"),
        *("length-means-budget", "logprobs-incremental", "neighbours-change-nothing"),
        *("requests-do-not-break-the-server", "result-independent-of-interval", "script-logprobs-are-right"),
        *("script-text-is-right", "script-text-offsets-are-right", "script-text-so-far-is-right"),
        *("script-top-logprobs-are-right", "stream-is-legal-delivery", "stream-prompt-series-equal-whole"),
        *("stream-series-equal-whole", "text-offsets-add-up", "top-logprobs-belong-to-position"),
        *("top-logprobs-have-k", "zero-budget-has-no-ids"),
    },
}
"""Shortened runs, and the MUSTs that they violate: each was read in the bytes, and found to be a fault."""
ASKED = {"token_ids": [7, 8], "sampling_params": {"max_tokens": 1, "logprobs": 2}, "request_id": "mine"}
CLOSED = (None, Ending.UNREACHABLE, "RemoteProtocolError: Server disconnected without sending a response.")


def violated(requirement: str, subject: Any) -> list[Observation]:
    return [seen for seen in observe(requirement, subject) if not seen.holds]


def generated(*top: tuple[int, float], request_id: str = "mine", dialect: str = "vllm-generate") -> Stream:
    """One id, 5, and the candidates at its position."""
    listed = [{"token": f"token_id:{token}", "logprob": number} for token, number in top]
    entry = {"token": "token_id:5", "logprob": -3.0, "top_logprobs": listed}
    choice = {"index": 0, "token_ids": [5], "finish_reason": "length", "logprobs": {"content": [entry]}}
    return answered(dialect, ASKED, {"request_id": request_id, "choices": [choice]})


def test_a_sampled_token_outside_the_likeliest_stands_before_them() -> None:
    assert observe(HAVE_K, generated((5, -3.0), (6, -1.0), (7, -2.0)))
    assert violated(HAVE_K, generated((5, -3.0), (6, -1.0), (7, -2.0))) == []
    assert violated(HAVE_K, generated((5, -3.0), (6, -4.0))) == []


@pytest.mark.parametrize(
    "top",
    [
        [(5, -3.0), (6, -1.0), (7, -4.0)],
        [(6, -1.0), (7, -2.0), (5, -3.0)],
        [(8, -3.0), (6, -1.0), (7, -2.0)],
        [(5, -3.0), (6, -1.0), (6, -1.0)],
        [(5, -3.0), (6, -1.0), (5, -3.0)],
        [(5, -3.0), (6, -1.0), (7, -2.0), (8, -2.5)],
        [(5, -3.0)],
    ],
    ids=[
        "it is within them",
        "it is not first",
        "another is first",
        "an id twice",
        "it stands twice",
        "k + 2",
        "k - 1",
    ],
)
def test_one_more_than_was_asked_for_is_a_fault_unless_it_is_the_sampled_token(top: list[Any]) -> None:
    assert violated(HAVE_K, generated(*top))


def test_candidates_of_a_neighbour_are_found() -> None:
    """The Rust front end answered 10 candidates where 1 was asked for, beside a request for 10."""
    assert verdict(live_run("vllm-candidates-of-neighbours"), HAVE_K) is Verdict.FAIL


def test_the_clients_own_id_may_come_without_the_prefix() -> None:
    row = "request-id-is-the-clients"
    for told in ("mine", "generate-tokens-mine"):
        assert observe(row, generated(request_id=told))
        assert violated(row, generated(request_id=told)) == []
    for told in ("generate-tokens-", "mine-2", "other-mine"):
        assert violated(row, generated(request_id=told))


def chunk(ids: list[int], text: str, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "token_ids": ids, **fields}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def streamed(*events: dict[str, Any]) -> Stream:
    body = {"prompt": [7, 8], "max_tokens": 2, "temperature": 0.0, "return_token_ids": True, "stream": True}
    return answered("vllm-completions", body, *events, DONE, label="stream")


def test_an_event_need_not_say_that_it_does_not_finish() -> None:
    """The chunks of chat need not, either: clients read what is missing as null."""
    events = [chunk([5], "a"), chunk([6], "b", finish_reason="length")]
    assert violated("events-fit-schema", streamed(*events)) == []
    assert violated("events-fit-schema", streamed(chunk([5], "a", finish_reason=1), events[1]))


def test_an_empty_start_of_a_stream_is_the_matter_of_the_row_that_names_it() -> None:
    body = {"prompt": [7, 8], "max_tokens": 2, "temperature": 0.0, "return_token_ids": True}
    answer = answered("vllm-completions", body, chunk([5, 6], "ab", finish_reason="length"), label="whole")
    start, first, last = chunk([], ""), chunk([5], "a"), chunk([6], "b", finish_reason="length")
    row = "stream-is-legal-delivery"

    def legal(*events: dict[str, Any]) -> list[Observation]:
        return violated(row, Comparison(answer, streamed(*events)))

    assert legal(start, first, last) == []
    assert violated("first-emission-has-a-token", streamed(start, first, last))
    assert [seen.place.event for seen in legal(start, first, chunk([9], "b", finish_reason="length"))] == [2]
    assert legal(chunk([], "a"), first, last), "it shows text before its id"


def test_where_batches_are_refused_a_refusal_may_speak_of_these() -> None:
    sent = {"max_new_tokens": SentField("max_tokens", ("many",))}
    refused = refusal(error={"message": "one prompt at a time"}, sent=sent, batch=True, input_ids=None)
    one, batch = (whole(input_ids=None, batch=several) for several in (False, True))
    row = "refusal-names-the-value"
    assert violated(row, (one, refused)) == []
    assert violated(row, (one, batch, refused))


def test_one_connection_that_was_closed_without_a_byte_may_be_an_accident() -> None:
    """Only where the same request was answered, and nothing else was closed."""
    closed = exchange("x/closed", 1, how=CLOSED)
    again, look = exchange("x/closed-asked-again", 3), exchange(f"{VITALS}/1", 2)
    assert death_verdict(BROKEN, run(*PROBES, closed, look, again)) is not Verdict.FAIL
    other = exchange("x/other", 1, ids=(9, 9), how=CLOSED)
    assert death_verdict(BROKEN, run(*PROBES, other, look)) is Verdict.FAIL, "nothing like it was answered"
    twice = replace(again, status=None, ending=Ending.UNREACHABLE, detail=CLOSED[2], reads=())
    assert death_verdict(BROKEN, run(*PROBES, closed, look, twice, exchange("x/z", 4))) is Verdict.FAIL
    assert death_verdict(BROKEN, run(*PROBES, closed, look, again, other, exchange("x/z", 4))) is Verdict.FAIL
    dead = [exchange(f"x/{n}", 2 + n, how=NOBODY) for n in range(2)]
    assert death_verdict(BROKEN, run(*PROBES, closed, *dead)) is Verdict.FAIL


@pytest.mark.parametrize("name", RED)
def test_each_failure_of_a_whole_run_is_a_fault_of_the_server(name: str) -> None:
    failing = {
        judgement.requirement.id for judgement in judge([live_run(name)]) if judgement.verdict is Verdict.FAIL
    }
    assert failing == RED[name]


def shaped(name: str, text: str, budget: int, status: int = 200) -> Stream:
    """The answer to a request in the shape of a client of Messages."""
    body = load_shapes()[name].written("Count.", "m", budget)
    answer = (
        blocks(text_block(text))
        if body.get("stream")
        else [messaged_whole([text_block(text)]).events[0].data]
    )
    refused = [{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}]
    given = answer if status == 200 else refused
    return answered("anthropic-messages", body, *given, status=status, label=f"{name}-{budget}")


def test_requests_with_other_budgets_are_not_compared() -> None:
    """A plain request for 4 tokens was compared with a stream of 16, and with a refused budget of -1."""
    row, plain = "usual-shapes-are-answered-alike", shaped("plain-messages", "Count", 4)
    assert violated(row, (plain, shaped("anthropic-stream", "Count to", 4)))
    assert violated(row, (plain, shaped("anthropic-stream", "", 4, status=400)))
    assert observe(row, (plain, shaped("anthropic-stream", "Count to", 16))) == []
    assert observe(row, (plain, shaped("anthropic-stream", "", -1, status=400))) == []


def test_a_stream_that_ends_in_an_error_is_not_compared_with_the_plain_answer() -> None:
    """A request that a server may refuse was refused within its stream."""
    row, plain = "usual-shapes-are-answered-alike", shaped("plain-messages", "Count", 4)
    body = load_shapes()["anthropic-stream"].written("Count.", "m", 4)
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    failed = answered("anthropic-messages", body, *blocks(text_block("Cou"))[:3], error)
    assert failed.answered
    assert observe(row, (plain, failed)) == []


@pytest.mark.parametrize("row", ["usage-counts-ids", "chat-logprobs-count-the-tokens"])
def test_counts_exceed_the_tokens_of_an_answer_that_hides_its_reasoning(row: str) -> None:
    """The Rust front end leaves out the ids and logprobs of hidden reasoning, and usage counts them."""

    def hidden(ids: int, counted: int, *, shows: bool) -> Stream:
        entries = [{"token": "t", "logprob": -0.1, "bytes": [116], "top_logprobs": []}] * ids
        choice = {"index": 0, "message": {"role": "assistant", "content": "t" * ids}, "finish_reason": "stop"}
        choice |= {"token_ids": [5] * ids, "logprobs": {"content": entries}}
        usage = {"prompt_tokens": 1, "completion_tokens": counted, "total_tokens": counted + 1}
        asks = {"logprobs": True, "return_token_ids": True, "include_reasoning": shows}
        body = {"messages": [{"role": "user", "content": "?"}], "temperature": 0, **asks}
        return answered("vllm-chat", body, {"id": "a", "choices": [choice], "usage": usage})

    assert observe(row, hidden(2, 9, shows=False))
    assert violated(row, hidden(2, 9, shows=False)) == []
    assert violated(row, hidden(2, 9, shows=True))
    assert violated(row, hidden(3, 2, shows=False))


def test_fields_that_repeat_the_request_are_compared_where_the_requests_are_the_same() -> None:
    """A request with logprobs has `top_logprobs` in its answer, and the other request has not."""
    row, response = "last-event-has-the-fields-of-the-whole", {**LEGAL[-1]["response"], "top_logprobs": 0}
    included = {"include": ["message.output_text.logprobs"]}
    assert observe(row, Comparison(responded_whole(response, **included), responded(*LEGAL))) == []
    for more in ({}, included):
        assert violated(row, Comparison(responded_whole(response, **more), responded(*LEGAL, **more)))


@pytest.mark.parametrize(
    "row",
    [
        "prompt-chosen-logprobs-are-the-asked-ids",
        "prompt-chosen-logprobs-agree",
        "misfitting-rows-refused",
    ],
)
def test_the_front_end_keeps_the_logprobs_of_ids_that_are_chosen_for_each_position(row: str) -> None:
    """Two whole answers, from the first position and from the sixth; streams and too few rows are refused."""
    found = live_run("vllm-0.33-chosen-prompt-logprobs")
    assert verdict(found, row) is Verdict.PASS
    refused = {answer.exchange.name.rpartition("/")[2] for answer in found.streams if answer.refused}
    assert refused == {"from-0-stream", "from-5-stream", "too-few"}
