"""What live servers answered, byte for byte: what is legal is no finding, a defect is found as what it is.

The exchanges are cut to what a finding rests on: long prompts and fields that no check reads are left out.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from control_calls import abort, clock
from test_checks_pairs import look

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.advertised import Advertised
from tokenwire.judging.check import Observation, Target
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

DONE = "[DONE]"


def answered(
    dialect: str,
    body: dict[str, Any],
    *said: Any,
    status: int = 200,
    label: str = "one",
    scenario: str = "one",
    at: float = 0.0,
) -> Stream:
    """An exchange, read by its dialect: a document, or the events of a stream, one read for each."""
    spoken = load_dialects()[dialect]
    written = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in said]
    streams = bool(body.get("stream")) and status == 200
    data = [f"data: {one}\n\n" if streams else one for one in written]
    exchange = Exchange(
        f"{dialect}/{scenario}/{label}",
        HttpRequest(spoken.endpoint.methods[0], spoken.endpoint.path, body),
        scenario,
        status,
        (("content-type", "text/event-stream" if streams else "application/json"),),
        tuple(Read(0.1 * number, one.encode()) for number, one in enumerate(data, 1)),
        Ending.COMPLETE,
        duration=0.1 * len(data),
        started=clock(at),
    )
    return spoken.read(exchange)


def violated(requirement: str, subject: Any, target: Target | None = None) -> list[Observation]:
    return [seen for seen in look(requirement, subject, target) if not seen.holds]


# SGLang 0.5.23.

BORDER = {"input_ids": [10] * 506, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
BEYOND = {
    "type": "abort",
    "message": "Input length (506 tokens) exceeds the maximum allowed length (506 tokens).",
    "status_code": 400,
    "err_type": "BadRequestError",
}


def test_a_finish_that_aborts_with_status_400_is_a_refusal() -> None:
    """A stream refused at admission carries a token that no model made, and the refusal beside it."""
    bogus = {"id": "36", "finish_reason": BEYOND, "prompt_tokens": 1, "completion_tokens": 1}
    event = {"text": " R", "output_ids": [775], "meta_info": bogus}
    stream = answered("sglang-generate", {**BORDER, "stream": True}, event, DONE, label="506-stream")
    whole = answered("sglang-generate", BORDER, {"error": {"message": BEYOND["message"]}}, status=400)
    context = Target(advertised=Advertised(context_length=512))
    assert violated("one-length-rule", (whole, stream), context) == []
    ran = {**event, "meta_info": {**bogus, "finish_reason": {"type": "length", "length": 1}}}
    stream = answered("sglang-generate", {**BORDER, "stream": True}, ran, DONE, label="506-stream")
    assert len(violated("one-length-rule", (whole, stream), context)) == 1


# SGLang 0.5.23, Rust front end.


def _chat_chunk(entry: dict[str, Any], *top: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1795312900,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "delta": {"content": entry["token"]},
                "logprobs": {"content": [{**entry, "top_logprobs": list(top)}]},
                "finish_reason": None,
            }
        ],
    }


def _entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}


CHAT = {"messages": [{"role": "user", "content": "-"}], "temperature": 0.0, "stream": True}
TOP_2 = {**CHAT, "logprobs": True, "top_logprobs": 2}


def test_top_logprobs_without_ids_are_matched_by_their_numbers() -> None:
    """The chosen entry has an id, those beside it have none."""
    chosen, other = _entry(" re", -3.25, token_id=587), _entry(" un", -3.5)
    stream = answered("sglang-chat", TOP_2, _chat_chunk(chosen, _entry(" re", -3.25), other), DONE)
    assert look("top-logprobs-belong-to-position", stream)
    assert violated("top-logprobs-belong-to-position", stream) == []
    stream = answered("sglang-chat", TOP_2, _chat_chunk(chosen, other, _entry(" in", -4.0)), DONE)
    assert len(violated("top-logprobs-belong-to-position", stream)) == 1


BATCH = {"input_ids": [[1, 2], [3, 4]], "sampling_params": {"max_new_tokens": 4, "n": 1}, "stream": True}


def _refused_prompt(index: int) -> dict[str, Any]:
    return {"error": {"message": "token id -1 is out of range", "code": 400}, "index": index}


def test_each_refused_prompt_of_a_batch_has_its_own_error_event() -> None:
    stream = answered("sglang-generate", BATCH, _refused_prompt(0), _refused_prompt(1), DONE)
    assert len(look("stream-errors-are-final", stream)) == 2
    assert violated("stream-errors-are-final", stream) == []
    going_on = {"index": 0, "text": "a", "output_ids": [5], "meta_info": {"id": "x", "finish_reason": None}}
    for event in (going_on, _refused_prompt(0), {"error": {"message": "all of it", "code": 500}}):
        stream = answered("sglang-generate", BATCH, _refused_prompt(0), _refused_prompt(1), event, DONE)
        assert violated("stream-errors-are-final", stream)
    whole_stream = {"error": {"message": "worker died", "code": 500}}
    stream = answered("sglang-generate", BATCH, whole_stream, _refused_prompt(1), DONE)
    assert len(violated("stream-errors-are-final", stream)) == 1


LONG = {
    "input_ids": [73, 39],
    "sampling_params": {"max_new_tokens": 440, "temperature": 0.0, "ignore_eos": True},
}
GONE = {"message": "client disconnected", "code": 499}


def test_what_an_abort_ended_is_neither_a_refusal_nor_the_good_request_after_one() -> None:
    """The aborted whole answer came back with status 499, the stream beside it ended in an error event."""
    one = {"text": "a", "output_ids": [5], "meta_info": {"id": "t-beside", "completion_tokens": 1}}
    finished = {**one, "meta_info": {**one["meta_info"], "finish_reason": {"type": "length", "length": 1}}}
    before = answered("sglang-generate", LONG, finished, label="undisturbed")
    whole = answered(
        "sglang-generate", {**LONG, "rid": "t-whole"}, {"error": GONE}, status=499, label="whole"
    )
    beside = {**LONG, "rid": "t-beside", "stream": True}
    beside_stream = answered("sglang-generate", beside, one, {"error": GONE}, DONE, label="beside")
    aborts = Target(calls=(abort(0.1, "t-whole"), abort(0.1, "t-beside")))
    assert violated("refused-request-harms-nobody", (before, whole, beside_stream), aborts) == []
    refused = answered("sglang-generate", LONG, {"error": GONE | {"code": 400}}, status=400, label="bad")
    assert len(violated("refused-request-harms-nobody", (before, refused, beside_stream))) == 1


# vLLM 0.32.0.

COMPLETION = {
    "model": "tiny",
    "return_token_ids": True,
    "prompt": [180, 238],
    "logprobs": 2,
    "max_tokens": 2,
    "temperature": 0.0,
}


def test_two_tokens_that_share_a_key_of_the_likeliest_are_called_so() -> None:
    """The sampled token has no text, as the runner-up has, whose logprob took its place in the object."""
    logprobs = {
        "text_offset": [31, 33],
        "token_logprobs": [-3.9235575199127197, -3.9225857257843018],
        "tokens": ["LI", ""],
        "top_logprobs": [{"LI": -3.9235575199127197, " ne": -4.312911510467529}, {"": -4.51516056060791}],
    }
    choice = {
        "index": 0,
        "text": "LI",
        "logprobs": logprobs,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [971, 149],
    }
    stream = answered("vllm-completions", COMPLETION, {"id": "cmpl-b", "choices": [choice]})
    (found,) = violated("top-logprobs-belong-to-position", stream)
    assert found.message == (
        "position 1 of top_logprobs gives '' another logprob than the sampled token's -3.9225857257843018: "
        "two tokens share a key"
    )


NAMED = {
    "model": "tiny",
    "token_ids": [73, 39],
    "sampling_params": {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True},
    "request_id": "tokenwire-a9619a5e-stalled",
    "stream": True,
}


def test_a_request_is_aborted_by_the_id_that_its_answer_carries() -> None:
    def event(*ids: int, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": list(ids), "finish_reason": finish, "stop_reason": None}
        return {"request_id": "generate-tokens-tokenwire-a9619a5e-stalled", "choices": [choice]}

    to_the_end = [event(token) for token in range(20, 27)]
    stream = answered("vllm-generate", NAMED, *to_the_end, event(27, finish="length"), DONE)
    client_id = Target(calls=(abort(0.11, "tokenwire-a9619a5e-stalled"),))
    server_id = Target(calls=(abort(0.11, "generate-tokens-tokenwire-a9619a5e-stalled"),))
    assert look("abort-ends-the-request", stream, client_id) == []
    assert len(violated("abort-ends-the-request", stream, server_id)) == 1
    aborted = answered("vllm-generate", NAMED, *to_the_end[:3], event(23, finish="abort"), DONE)
    assert look("abort-is-told", aborted, server_id)
    assert violated("abort-is-told", aborted, server_id) == []


# llama.cpp.


def test_a_refusal_may_begin_with_the_name_of_the_field() -> None:
    body = {"prompt": [2**63], "n_predict": 4}
    refused = {
        "error": {"code": 400, "message": "Prompt contains invalid tokens", "type": "invalid_request_error"}
    }
    stream = answered("llamacpp-completion", body, refused, status=400)
    assert look("refusal-names-the-value", stream)
    assert violated("refusal-names-the-value", stream) == []


# OpenAI-compatible servers.

WHOLE_CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.0}


def message(finish: str = "stop", **said: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795312900,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


@pytest.mark.parametrize("code", ["rate_limit_exceeded", None])
def test_the_code_of_an_error_is_a_word_or_null(code: str | None) -> None:
    error = {"message": "try again", "type": "server_error", "param": None, "code": code}
    opening = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]
    }
    stream = answered("openai-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": error})
    assert look("stream-errors-say-why", stream)
    assert violated("stream-errors-say-why", stream) == []
    without_words = answered(
        "openai-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": {"code": code}}
    )
    assert violated("stream-errors-say-why", without_words)
    elsewhere = answered("sglang-chat", {**WHOLE_CHAT, "stream": True}, opening, {"error": error})
    assert violated("stream-errors-say-why", elsewhere)


def test_a_refusal_of_the_model_stands_beside_null() -> None:
    refused = answered("openai-chat", WHOLE_CHAT, message(content=None, refusal="I can't help with that."))
    assert violated("answer-fits-schema", refused) == []
    assert violated("chat-content-never-null", refused) == []


def test_null_without_anything_beside_it_fits_the_published_schema_and_spoils_the_next_prompt() -> None:
    """A gateway before vLLM wrote null where the one token was half of a character."""
    null = answered("openai-chat", WHOLE_CHAT, message("length", content=None, refusal=None))
    assert violated("answer-fits-schema", null) == []
    assert len(violated("chat-content-never-null", null)) == 1
