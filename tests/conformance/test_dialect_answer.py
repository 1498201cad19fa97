"""Dialects, the answer side: what stood on the wire becomes the record, each field with its place."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.dialects import dialect as dialect_module
from tokenwire.dialects.dialect import Dialect, load_dialects, policy_of
from tokenwire.dialects.policy import Policy
from tokenwire.record import Delivery, Stream
from tokenwire.report.excerpt import written
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.json_pointer import find, parse

GENERATE = load_dialects()["sglang-generate"]
CHAT = load_dialects()["sglang-chat"]


def exchange(
    body: bytes | Any,
    *,
    path: str = "/generate",
    stream: bool = False,
    status: int | None = 200,
    ending: Ending = Ending.COMPLETE,
    content_type: str | None = None,
    flags: tuple[str, ...] = (),
) -> Exchange:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    media_type = content_type or ("text/event-stream" if stream else "application/json")
    return Exchange(
        name="x",
        request=HttpRequest("POST", path, {"input_ids": [1, 2], "stream": stream}),
        scenario="s",
        status=status,
        headers=(("Content-Type", media_type),),
        reads=(Read(0.5, body),) if body else (),
        ending=ending,
    )


def sse(*events: Any) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


def generated(ids: Sequence[int], text: str = "", *, count: int | None = None, **more: Any) -> dict[str, Any]:
    """An event or answer of /generate that fits its schema; `meta` is merged into meta_info."""
    meta = {
        "id": "r-1",
        "finish_reason": None,
        "prompt_tokens": 2,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(ids) if count is None else count,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
        **more.pop("meta", {}),
    }
    return {"text": text, "output_ids": list(ids), "meta_info": meta, **more}


LENGTH = {"type": "length", "length": 3}


def read(dialect: Dialect, exchange: Exchange, hint: Delivery | None = None) -> Stream:
    """Read an exchange, and see that every pointer leads to the value of its field."""
    stream = dialect.read(exchange, delivery_hint=hint)
    for emission in stream.emissions():
        record = {
            "text": emission.text,
            "output_ids": emission.output_ids,
            "prompt_token_ids": emission.prompt_token_ids,
            **emission.series,
            **emission.prompt_series,
            **emission.counters,
            **emission.details,
        }
        for name, value in record.items():
            if value is not None:
                assert find(emission.event.data, parse(emission.pointers[name])) == value, name
    return stream


def test_a_whole_native_answer() -> None:
    meta = {
        "finish_reason": {"type": "stop", "matched": "END"},
        "output_token_logprobs": [[-1.0, 7, None], [-2.0, 8, None]],
        "output_token_logprobs_length": 2,
        "input_token_logprobs": [[None, 1, None], [-3.0, 2, None]],
        "mirror_token_id": [7, 8],
        "weight_versions": [{"version": "default", "start": 0, "end": 2}],
        "hidden_states": [[0.5], [0.25]],
        "cached_tokens_details": {"device": 1, "host": 0},
    }
    stream = read(GENERATE, exchange(generated([7, 8], "ab", meta=meta, prompt_token_ids=[1, 2])))
    assert (stream.delivery, stream.schema, stream.answered, stream.refused) == (
        Delivery.WHOLE,
        "generate-response",
        True,
        False,
    )
    (choice,) = stream.choices
    (emission,) = choice.emissions
    assert (choice.output_ids, choice.text, emission.prompt_token_ids) == ([7, 8], "ab", [1, 2])
    assert emission.customized == {"mirror_token_id"}
    assert set(emission.series) == {"output_token_logprobs", "mirror_token_id"}
    assert emission.prompt_series == {"input_token_logprobs": [[None, 1, None], [-3.0, 2, None]]}
    assert emission.counters["completion_tokens"] == 2
    assert emission.counters["output_token_logprobs_length"] == 2
    assert emission.details["request_id"] == "r-1"
    assert emission.details["cached_tokens_details"] == {"device": 1, "host": 0}
    assert choice.finish is not None
    assert (choice.finish.type, choice.finish.matched, choice.finish.length) == ("stop", "END", None)
    assert emission.at("mirror_token_id").pointer == "/meta_info/mirror_token_id"
    assert emission.at("absent").pointer == ""
    assert stream.events[0].place.event is None
    assert stream.events[0].schema_errors == ()


def test_a_batch_is_a_list_of_choices() -> None:
    stream = read(GENERATE, exchange([generated([7], meta={"finish_reason": LENGTH}), generated([8, 9])]))
    assert [choice.index for choice in stream.choices] == [0, 1]
    assert [choice.output_ids for choice in stream.choices] == [[7], [8, 9]]
    assert stream.choices[1].emissions[0].at("output_ids").pointer == "/1/output_ids"
    assert len(stream.events) == 1


INCREMENTAL = [
    generated([7], "a", count=1, meta={"m": [7]}),
    generated([8, 9], "", count=3, meta={"m": [8, 9]}),
    generated([6], "d", count=4, meta={"m": [6], "finish_reason": LENGTH}),
]
CUMULATIVE = [
    generated([7], "a", meta={"m": [7]}),
    generated([7, 8, 9], "ab", meta={"m": [7, 8, 9]}),
    generated([7, 8, 9, 6], "abd", meta={"m": [7, 8, 9, 6], "finish_reason": LENGTH}),
]


@pytest.mark.parametrize(
    ("events", "mode"), [(INCREMENTAL, Delivery.INCREMENTAL), (CUMULATIVE, Delivery.CUMULATIVE)]
)
def test_a_native_stream(events: list[Any], mode: Delivery) -> None:
    stream = read(GENERATE, exchange(sse(*events), stream=True))
    assert (stream.delivery, stream.schema) == (mode, "generate-event")
    (choice,) = stream.choices
    assert choice.output_ids == [7, 8, 9, 6]
    assert choice.series("m") == [7, 8, 9, 6]
    assert choice.customized == {"m"}
    assert choice.counter("completion_tokens") == 4
    assert choice.finish is not None
    assert choice.finish.length == 3
    assert [event.done for event in stream.events] == [False, False, False, True]
    assert [event.schema_errors for event in stream.events] == [()] * 4


def test_streamed_choices_are_told_by_their_index() -> None:
    events = [generated([7], index=1), generated([5], index=0), generated([8], count=2, index=1)]
    stream = read(GENERATE, exchange(sse(*events), stream=True))
    assert [(choice.index, choice.output_ids) for choice in stream.choices] == [(0, [5]), (1, [7, 8])]
    assert [emission.event.index for emission in stream.emissions()] == [0, 1, 2]


@pytest.mark.parametrize("index", [-1, 1.0, True, "1", None])
def test_a_choice_whose_index_is_none_is_told_by_its_place(index: object) -> None:
    stream = read(GENERATE, exchange(sse(generated([7], index=index)), stream=True))
    assert [choice.index for choice in stream.choices] == [0]


def test_places_hold_bytes_and_times() -> None:
    body = sse(generated([7], "好" * 300), generated([8], count=2))
    border = body.index(b"\n\n") + 2
    reads = (Read(0.1, body[:20]), Read(0.2, body[20:border]), Read(0.9, body[border:]))
    stream = GENERATE.read(replace(exchange(body, stream=True), reads=reads))
    first, second, done = (event.place for event in stream.events)
    assert (first.start, first.end, first.time) == (0, border, 0.2)
    assert (second.start, second.time) == (border, 0.9)
    assert written(body, done) == "data: [DONE]"
    shown = written(body, first)
    assert shown.startswith('data: {"text": "')
    assert shown.endswith("…")
    assert len(shown) <= 161
    assert (second.exchange, second.event) == ("x", 1)


def test_an_excerpt_shows_nothing_of_the_events_behind_its_own() -> None:
    body = sse({}, {"text": "b"})
    places = [event.place for event in GENERATE.read(exchange(body, stream=True)).events]
    assert [written(body, place) for place in places] == ["data: {}", 'data: {"text": "b"}', "data: [DONE]"]


def test_the_order_of_knowing_the_mode() -> None:
    short, clear = exchange(sse(*CUMULATIVE[:1]), stream=True), exchange(sse(*CUMULATIVE), stream=True)
    assert GENERATE.read(short, delivery_hint=Delivery.INCREMENTAL).delivery is Delivery.INCREMENTAL
    assert GENERATE.read(short, delivery_hint=Delivery.CUMULATIVE).delivery is Delivery.CUMULATIVE
    assert GENERATE.read(clear, delivery_hint=Delivery.INCREMENTAL).delivery is Delivery.CUMULATIVE
    assert GENERATE.read(clear).delivery is Delivery.CUMULATIVE
    whole = exchange(generated([7]))
    assert GENERATE.read(whole, delivery_hint=Delivery.INCREMENTAL).delivery is Delivery.WHOLE


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"not json", "not strict JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b"[1]", "not an object"),
        (b'{"a": 1} {"b": 2}', "not strict JSON"),
        (b"", "not strict JSON"),
    ],
)
def test_an_event_that_is_no_object(data: bytes, problem: str) -> None:
    body = b"data: " + data + b"\n\n" + sse(generated([7]))
    stream = GENERATE.read(exchange(body, stream=True))
    bad, good, _ = stream.events
    assert problem in bad.problem
    assert (good.problem, len(stream.choices)) == ("", 1)


def test_what_the_schema_refuses_is_told_with_its_pointer() -> None:
    stream = GENERATE.read(exchange(sse({**generated([7]), "output_ids": [7, -1]}), stream=True))
    assert stream.events[0].schema_errors
    assert stream.choices[0].output_ids == [7, -1], "what is wrong is still read"


def test_a_broken_stream() -> None:
    body = sse(*INCREMENTAL).removesuffix(b"data: [DONE]\n\n") + b'data: {"text": "\xe5\xa5'
    stream = GENERATE.read(exchange(body, stream=True, ending=Ending.TRUNCATED))
    assert stream.unterminated == b'data: {"text": "\xe5\xa5'
    assert stream.undecodable_at is None
    assert len(stream.choices[0].emissions) == 3
    complete = GENERATE.read(exchange(body, stream=True))
    assert complete.undecodable_at == len(body) - 2


def test_an_error_in_a_stream() -> None:
    error = {"message": "too long", "type": "invalid_request_error", "code": 400, "retryable": False}
    stream = GENERATE.read(exchange(sse({"error": error}), stream=True))
    assert (stream.error, stream.answered, stream.refused) == (error, False, False)
    assert stream.events[0].error == error


@pytest.mark.parametrize(
    ("status", "body", "refused", "error"),
    [
        (399, b"", False, ""),
        (400, {"error": {"message": "no"}}, True, {"error": {"message": "no"}}),
        (404, b"<html>", True, "<html>"),
        (499, b"", True, ""),
        (500, b"Internal Server Error", False, "Internal Server Error"),
        (503, {"object": "error"}, False, {"object": "error"}),
    ],
)
def test_an_answer_that_is_no_record(status: int, body: Any, refused: bool, error: object) -> None:
    for stream in (False, True):
        result = GENERATE.read(exchange(body, status=status, stream=stream))
        assert (result.refused, result.error, result.choices) == (refused, error, ())
        assert result.schema == "error"


def test_no_answer_at_all() -> None:
    stream = GENERATE.read(exchange(b"", status=None, ending=Ending.UNREACHABLE))
    assert (stream.events, stream.choices, stream.refused, stream.error) == ((), (), False, None)


@pytest.mark.parametrize(
    ("body", "stream", "content_type", "whole"),
    [
        (sse(*INCREMENTAL), True, "application/json", False),
        (sse(*INCREMENTAL), False, "text/event-stream; charset=utf-8", False),
        (sse(*INCREMENTAL), False, "application/json", True),
        (generated([7]), True, "application/json", True),
        (generated([7]), False, "text/event-stream", True),
        (b"", True, "text/event-stream", False),
        (b"", False, "application/json", True),
    ],
)
def test_stream_or_document(body: Any, stream: bool, content_type: str, whole: bool) -> None:
    result = GENERATE.read(exchange(body, stream=stream, content_type=content_type))
    assert (result.schema == "generate-response") == whole


@pytest.mark.parametrize(
    "body", [{}, [], [[]], {"meta_info": []}, {"text": None, "other": 1}, b"null", b"7", b'"x"']
)
def test_a_document_without_a_record(body: Any) -> None:
    stream = GENERATE.read(exchange(body))
    assert stream.choices == () or stream.choices[0].output_ids is None
    assert stream.events[0].schema_errors or stream.events[0].problem


def test_null_targets_answer_nothing() -> None:
    for body in ({}, [{}], {"choices": [{}]}, {"choices": {}}):
        assert not GENERATE.read(exchange(body)).answered
        assert not CHAT.read(exchange(body, path="/v1/chat/completions")).answered
    assert not GENERATE.read(exchange(b"data: [DONE]\n\n", stream=True)).answered


def test_wrong_types_are_kept_or_absent_and_never_raise() -> None:
    wrong = generated([7], meta={"output_token_logprobs": None, "completion_tokens": "3", "m": {"a": 1}})
    (choice,) = read(
        GENERATE, exchange({**wrong, "text": 5, "output_ids": "7", "prompt_token_ids": None})
    ).choices
    (emission,) = choice.emissions
    assert (emission.text, emission.output_ids, emission.prompt_token_ids) == (None, None, None)
    assert {"text", "output_ids", "prompt_token_ids"} <= set(emission.pointers), "the keys are there"
    assert emission.series == {"output_token_logprobs": None}
    assert emission.counters["completion_tokens"] == "3"
    assert choice.finish is None


def test_a_null_counter_is_none() -> None:
    (choice,) = read(GENERATE, exchange(generated([7], meta={"cached_tokens": None}))).choices
    assert "cached_tokens" not in choice.emissions[0].counters


def chat_choice(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": "ab", "reasoning_content": None},
        "logprobs": None,
        "finish_reason": "stop",
        "matched_stop": 2,
        **more,
    }


def chat_answer(*choices: dict[str, Any], usage: Any = None) -> dict[str, Any]:
    usage = usage or {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": list(choices),
        "usage": usage,
    }


def read_chat(body: Any, *, stream: bool = False) -> Stream:
    return read(CHAT, exchange(body, path="/v1/chat/completions", stream=stream))


def test_a_whole_chat_answer() -> None:
    meta = generated([7, 2], meta={"m": [7, 2], "finish_reason": {"type": "stop", "matched": 2}})["meta_info"]
    stream = read_chat(
        chat_answer(
            chat_choice(1),
            chat_choice(0, prompt_token_ids=[1, 2], response_token_ids=[7, 2], meta_info=meta),
        )
    )
    first, second = stream.choices
    (emission,) = first.emissions
    assert (first.index, first.output_ids, first.text, emission.prompt_token_ids) == (0, [7, 2], "ab", [1, 2])
    assert emission.series == {"m": [7, 2]}
    assert emission.customized == {"m"}
    assert emission.counters["completion_tokens"] == 2
    assert first.finish is not None
    assert (first.finish.type, first.finish.matched, first.finish.raw) == ("stop", 2, "stop")
    assert emission.details["meta_info"] == meta
    assert emission.details["role"] == "assistant"
    assert emission.details["request_id"] == "c-1"
    assert emission.at("request_id").pointer == "/id"
    assert emission.at("output_ids").pointer == "/choices/1/response_token_ids"
    assert "meta_info" not in second.emissions[0].details
    assert second.output_ids is None
    assert stream.usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert stream.usage_place is not None
    assert stream.usage_place.pointer == "/usage"
    assert stream.schema == "chat-response"


def test_null_content_is_told_from_none() -> None:
    null = read_chat(chat_answer(chat_choice(message={"role": "assistant", "content": None})))
    absent = read_chat(chat_answer(chat_choice(message={"role": "assistant"})))
    empty = read_chat(chat_answer(chat_choice(message={"role": "assistant", "content": ""})))
    assert [stream.choices[0].text for stream in (null, absent, empty)] == [None, None, ""]
    assert null.choices[0].emissions[0].details["content"] is None
    assert "content" not in absent.choices[0].emissions[0].details


def chat_chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": list(choices),
        **more,
    }


def delta(index: int = 0, finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {
        "index": index,
        "delta": {"reasoning_content": None, **parts},
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": None,
    }


def test_a_chat_stream() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    chunks = [
        chat_chunk(delta(role="assistant", content="")),
        chat_chunk(delta(content="a")),
        chat_chunk(delta(1, role="assistant", content="")),
        chat_chunk(delta(content="ab")),
        chat_chunk(
            delta(1, content="z"), usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        ),
        chat_chunk(delta(finish="length"), delta(1, finish="stop")),
        chat_chunk(usage=usage),
    ]
    stream = read_chat(sse(*chunks), stream=True)
    assert stream.delivery is Delivery.INCREMENTAL, "though the deltas look like prefixes of each other"
    first, second = stream.choices
    assert (first.text, second.text) == ("aab", "z")
    assert (first.output_ids, first.series_names) == (None, frozenset())
    assert [emission.details.get("role") for emission in first.emissions] == ["assistant", None, None, None]
    assert [choice.finish.type for choice in stream.choices if choice.finish] == ["length", "stop"]
    assert stream.choices[1].emissions[-1].at("finish").pointer == "/choices/1/finish_reason"
    assert stream.usage == usage
    assert stream.usage_place is not None
    assert stream.usage_place.event == 6
    assert [event.schema_errors for event in stream.events] == [()] * 8


def _table(**changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": "other",
        "family": "other",
        "endpoint": {"methods": ["POST"], "path": "/o"},
        "policy": {"end_mark": "END"},
        "request": {"prompt": {"input_ids": "/p"}, "batches": False, "fields": {"n": "/n", "stream": "/s"}},
        "schemas": {"whole": "tiny", "stream": "tiny", "error": "tiny"},
        "answer": {
            "whole": {"choices": "/c", "output_ids": "/t"},
            "stream": {"choices": "/c", "output_ids": "/t"},
        },
    }
    return {**table, **changes}


def test_an_empty_body_is_told_as_such() -> None:
    (document,) = GENERATE.read(exchange(b"")).events
    assert document.problem == "the body is empty"


def test_another_family_is_another_table() -> None:
    dialect = Dialect(_table(), schemas=lambda name: {"title": name, "required": ["c"]})
    body = b'data: {"c": [{"t": [1]}]}\n\ndata: {}\n\ndata: END\n\n'
    stream = dialect.read(
        replace(exchange(body, stream=True), request=HttpRequest("POST", "/o", {"p": [1], "s": True}))
    )
    assert stream.choices[0].output_ids == [1]
    assert stream.events[1].schema_errors
    assert stream.events[2].done


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": {"whole": {"choices": "", "tokens": "/t"}, "stream": {"choices": ""}}},
        {"request": {"prompt": {"input_ids": "/p"}, "batches": False, "fields": {"best_of": "/b"}}},
        {"request": {"prompt": {"ids": "/p"}, "batches": False, "fields": {}}},
        {"request": {"prompt": {"input_ids": "/p"}, "batches": False, "fields": {}, "neutrals": {}}},
        {"request": {"prompt": {"input_ids": "p"}, "batches": False, "fields": {}}},
    ],
)
def test_a_table_with_an_unknown_name_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="dialect other"):
        Dialect(_table(**changes))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"zero_budgets": "refused"}, r"policy: there is no 'zero_budgets'; did you mean 'zero_budget'\?"),
        ({"zero_budget": "no"}, r"policy: zero_budget: 'no' is not 'answered' or 'refused' or 'unspecified'"),
        ({"mixed_prompts": "yes"}, r"policy: mixed_prompts: 'yes' is not true or false"),
        ({"least": {"temprature": 0}}, r"policy: least: 'temprature' is not a field"),
        ({"vocabulary_told": "size"}, r"policy: vocabulary_told: 'size' must have exactly one group"),
    ],
)
def test_a_policy_that_says_nothing_known_is_refused(
    policy: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect_module, "spec_folders", lambda: (tmp_path,))
    file = tmp_path / "dialects" / "other.yaml"
    file.parent.mkdir()
    file.write_text(json.dumps(_table(policy=policy)))
    with pytest.raises(ValueError, match=f"{re.escape(str(file))}: {words}"):
        dialect_module.load_dialects.__wrapped__()


def test_a_stream_of_no_known_dialect_is_judged_by_what_is_usual() -> None:
    assert policy_of(replace(GENERATE.read(exchange({})), dialect="unheard-of")) == Policy()


def test_a_missing_schema_is_an_error() -> None:
    dialect = Dialect(_table(schemas={"whole": "nope", "stream": "nope", "error": "nope"}))
    with pytest.raises(FileNotFoundError):
        dialect.read(exchange({"c": []}))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_ODD = st.dictionaries(
    st.sampled_from(
        ["text", "output_ids", "meta_info", "prompt_token_ids", "index", "error", "choices", "usage", "id"]
    ),
    _JSON
    | st.dictionaries(
        st.sampled_from(["finish_reason", "completion_tokens", "output_token_logprobs", "m"]), _JSON
    )
    | st.lists(
        st.dictionaries(st.sampled_from(["index", "delta", "message", "finish_reason", "meta_info"]), _JSON)
    ),
)


@given(st.lists(_ODD | _JSON, max_size=4), st.sampled_from([GENERATE, CHAT]), st.booleans())
@settings(deadline=None)
def test_no_json_is_too_odd_to_be_read(values: list[Any], dialect: Dialect, stream: bool) -> None:
    body = sse(*values) if stream else json.dumps(values[0] if values else None).encode()
    result = dialect.read(exchange(body, path=dialect.endpoint.path, stream=stream))
    for choice in result.choices:
        assert choice.index >= 0
        assert choice.output_ids is None or isinstance(choice.output_ids, list)


@given(st.binary(max_size=60), st.booleans(), st.sampled_from([None, 200, 400, 500]))
@settings(deadline=None)
def test_no_bytes_are_too_odd_to_be_read(body: bytes, stream: bool, status: int | None) -> None:
    result = GENERATE.read(exchange(body, stream=stream, status=status))
    assert result.exchange.body == body


def test_a_key_that_is_no_utf8_is_told() -> None:
    stream = GENERATE.read(exchange(b'data: {"\\ud800": 1}\n\ndata: [DONE]\n\n', stream=True))
    assert "surrogate" in stream.events[0].schema_errors[0]


def test_a_sampling_mask_is_a_set_of_ids() -> None:
    """Two answers may write it in other orders: near ties change places (a MUST failed)."""
    masks = [[7, 9, 8], [5, 5.5, 1], None, "x"]
    answer = generated([1, 2, 3, 4], "abcd", meta={"output_token_sampling_mask": masks})
    (choice,) = GENERATE.read(exchange(answer)).choices
    assert choice.series("output_token_sampling_mask") == [[7, 8, 9], *masks[1:]]
