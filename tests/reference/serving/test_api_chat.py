"""/v1/chat/completions, with token ids in and out."""

from __future__ import annotations

import jsonschema_rs
import pytest

from tokenwire.spec_files import load_schema
from tokenwire_reference.core.request import FinishReason

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
HELLO_IDS = [1, 88, 458, 202, 43, 72, 363, 82, 1028, 2, 202, 1, 425, 387, 478, 202]
# 語 in three byte tokens, "spec", and the end of the message.
IDS = [168, 107, 256, 1262, 2]
STEPS = [[i] for i in IDS]
STOP = FinishReason("stop", matched=2)


def fits(schema, value):
    jsonschema_rs.validator_for(load_schema(schema)).validate(value)


def ask(**fields):
    return {"messages": HELLO, **fields}


def test_a_whole_answer(answer, scripted_engine):
    engine = scripted_engine(STEPS, finish=STOP)
    body = answer(engine, PATH, ask(model="m", rid="mine")).json()
    fits("chat-response", body)
    created = body.pop("created")
    assert isinstance(created, int)
    usage = {
        **{"prompt_tokens": 16, "total_tokens": 21, "completion_tokens": 5},
        **{"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None},
    }
    assert body == {
        "id": "mine",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "\u8a9espec",
                    "reasoning_content": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": 2,
            }
        ],
        "usage": usage,
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": 5}],
        },
    }


def test_messages_go_through_the_template_and_input_ids_go_around_it(answer, scripted_engine):
    asked = ask(return_prompt_token_ids=True)
    (choice,) = answer(scripted_engine(STEPS), PATH, asked).json()["choices"]
    assert choice["prompt_token_ids"] == HELLO_IDS
    (choice,) = answer(scripted_engine(STEPS), PATH, {**asked, "input_ids": [7, 7, 3]}).json()["choices"]
    assert choice["prompt_token_ids"] == [7, 7, 3]
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    asked["messages"] = [{"role": "user", "content": parts}]
    (choice,) = answer(scripted_engine(STEPS), PATH, asked).json()["choices"]
    assert choice["prompt_token_ids"] == HELLO_IDS


def test_token_ids_and_meta_info_stand_in_every_choice(answer, scripted_engine):
    asked = ask(n=2, rid="two", return_token_ids=True, return_meta_info=True, logprobs=True)
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, asked).json()
    fits("chat-response", body)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    for choice in body["choices"]:
        assert choice["prompt_token_ids"] == HELLO_IDS
        assert choice["response_token_ids"] == IDS
        info = choice["meta_info"]
        assert (info["id"], info["completion_tokens"]) == (f"two_{choice['index']}", 5)
        assert [entry[1:] for entry in info["output_token_logprobs"]][3] == [1262, "spec"]
    assert body["usage"]["completion_tokens"] == 10
    assert body["usage"]["prompt_tokens"] == 16
    assert body["id"] == "two"


def test_what_was_not_asked_for_is_absent(answer, scripted_engine):
    body = answer(scripted_engine(STEPS), PATH, ask()).json()
    keys = {"index", "message", "logprobs", "finish_reason", "matched_stop"}
    assert set(body["choices"][0]) == keys
    assert "sglext" not in body


def test_content_without_text_is_an_empty_string(answer, scripted_engine):
    engine = scripted_engine([[2]], finish=STOP)
    (choice,) = answer(engine, PATH, ask()).json()["choices"]
    assert choice["message"]["content"] == ""


def test_logprobs_name_their_bytes(answer, scripted_engine):
    asked = ask(logprobs=True, top_logprobs=2)
    (choice,) = answer(scripted_engine(STEPS, finish=STOP), PATH, asked).json()["choices"]
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content[:4]] == [[0xE8], [0xAA], [0x9E], list(b"spec")]
    assert content[3]["token"] == "spec"
    assert len(content[3]["top_logprobs"]) == 2


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_is_the_whole_answer_in_parts(answer, scripted_engine, read_events, logprobs, incremental):
    asked = ask(
        stream=True,
        n=2,
        logprobs=logprobs,
        stream_options={"include_usage": True},
        return_input_ids_in_sglext=True,
        return_output_ids_in_sglext=True,
    )
    response = answer(
        scripted_engine(STEPS, finish=STOP), PATH, asked, incremental_streaming_output=incremental
    )
    chunks = read_events(response)
    for chunk in chunks:
        fits("chat-chunk", chunk)
    assert len({chunk["id"] for chunk in chunks}) == 1
    *body, first_end, second_end, sglext, usage = chunks
    for index in (0, 1):
        mine = [c["choices"][0] for c in body if c["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in mine[1:])
        assert "".join(choice["delta"]["content"] for choice in mine) == "\u8a9espec"
        assert all(choice["finish_reason"] is None for choice in mine)
        entries = [e for choice in mine if choice["logprobs"] for e in choice["logprobs"]["content"]]
        # The entries of half characters and of the stop id are there, though they show no text.
        assert len(entries) == (5 if logprobs else 0)
        assert len(mine) == 1 + (5 if logprobs else 2)
    assert [end["choices"][0]["index"] for end in (first_end, second_end)] == [0, 1]
    assert first_end["choices"][0] == {
        **{"index": 0, "delta": {"reasoning_content": None}, "logprobs": None},
        **{"finish_reason": "stop", "matched_stop": 2},
    }
    assert (sglext["choices"], sglext["sglext"]) == ([], {"input_ids": HELLO_IDS, "output_ids": [IDS, IDS]})
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 10)
    assert sglext["usage"] is None
    assert all("usage" not in chunk for chunk in [*body, first_end, second_end])


def test_usage_can_come_with_every_content_chunk(answer, scripted_engine, read_events):
    asked = ask(stream=True, stream_options={"continuous_usage_stats": True})
    chunks = read_events(answer(scripted_engine(STEPS, finish=STOP), PATH, asked))
    contents = [c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content")]
    assert [c["usage"]["completion_tokens"] for c in contents] == [3, 4]
    assert [c["usage"]["total_tokens"] for c in contents] == [19, 20]
    assert sum("usage" in chunk for chunk in chunks) == 2


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (
            "return_prompt_token_ids",
            "return_prompt_token_ids is not supported with streaming. "
            "Please set stream=false when using return_prompt_token_ids=true.",
        ),
        (
            "return_token_ids",
            "return_token_ids is not supported with streaming on /v1/chat/completions. "
            "Please set stream=false when using return_token_ids=true.",
        ),
        (
            "return_meta_info",
            "return_meta_info is not supported with streaming. "
            "Please set stream=false when using return_meta_info=true.",
        ),
    ],
)
def test_token_ids_in_a_stream_are_refused_in_the_words_of_sglang(answer, scripted_engine, field, words):
    response = answer(scripted_engine(STEPS), PATH, ask(stream=True, **{field: True}))
    assert response.status_code == 400
    assert response.json() == {
        **{"object": "error", "message": words, "type": "BadRequest", "param": None, "code": 400}
    }


@pytest.mark.parametrize(
    ("body", "refused_as"),
    [
        ({"input_ids": [5]}, ("Bad Request", '"messages" is a required property')),
        ({"messages": [], "input_ids": [5]}, ("BadRequestError", "Messages cannot be empty.")),
        (ask(input_ids=[]), ("BadRequestError", "input_ids cannot be empty.")),
        (ask(input_ids=[[5]]), ("Bad Request", "input_ids[0]: [5]")),
        (ask(input_ids=[5, 2000]), ("BadRequestError", "input_ids[1] is 2000")),
        (ask(input_ids=[5.0]), ("Bad Request", "input_ids[0]: 5.0 is not an integer")),
        (ask(input_ids=[5] * 512), ("BadRequestError", "512 tokens")),
        (ask(max_tokens=500), ("BadRequestError", "make 516")),
        (ask(temperature=-1), ("BadRequestError", "temperature: -1")),
        (ask(top_logprobs=2), ("BadRequestError", "top_logprobs is 2")),
        (ask(functions=[{"name": "f"}]), ("BadRequestError", "functions is not supported")),
        ({"messages": [{"role": "alien", "content": "x"}]}, ("Bad Request", "messages[0].role")),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            ("BadRequestError", "messages[0] has a part of type 'image_url'"),
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_names_the_field_before_any_event(answer, scripted_engine, body, refused_as, stream):
    kind, reason = refused_as
    engine = scripted_engine(STEPS)
    response = answer(engine, PATH, {**body, "stream": stream})
    refusal = response.json()
    fits("error", refusal)
    assert (response.status_code, refusal["code"], refusal["type"]) == (400, 400, kind)
    assert reason in refusal["message"]
    assert engine.live == {}


def test_max_completion_tokens_beats_max_tokens(answer, scripted_engine):
    asked = ask(max_completion_tokens=500, max_tokens=1)
    assert "500 new tokens" in answer(scripted_engine(STEPS), PATH, asked).json()["message"]


def test_a_server_abort_in_the_middle_ends_the_stream_with_an_error(answer, scripted_engine, read_events):
    abort = FinishReason("abort", message="out of memory", status_code=500)
    response = answer(scripted_engine([*STEPS, []], finish=abort), PATH, ask(stream=True))
    *chunks, last = read_events(response)
    fits("chat-chunk", last)
    assert (last["error"]["message"], last["error"]["code"]) == ("out of memory", 500)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "\u8a9espec"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_cached_tokens_are_reported_where_the_server_was_told_to(answer, scripted_engine):
    body = answer(scripted_engine(STEPS), PATH, ask(), enable_cache_report=True).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


SKIP = {"tokenizer": None, "skip_tokenizer_init": True}


def test_without_a_tokenizer_ids_are_answered_with_ids(answer, scripted_engine, read_events):
    asked = {"return_token_ids": True, "return_meta_info": True, "logprobs": True}
    body = answer(scripted_engine(STEPS, finish=STOP), PATH, ask(input_ids=[5, 6], **asked), **SKIP).json()
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert (choice["prompt_token_ids"], choice["response_token_ids"]) == ([5, 6], IDS)
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in IDS]
    assert [entry[1] for entry in choice["meta_info"]["output_token_logprobs"]] == IDS
    streamed = ask(input_ids=[5, 6], stream=True, return_output_ids_in_sglext=True)
    chunks = read_events(answer(scripted_engine(STEPS, finish=STOP), PATH, streamed, **SKIP))
    assert chunks[-1]["sglext"] == {"output_ids": [IDS]}


@pytest.mark.parametrize(("fields", "word"), [({}, "messages"), ({"input_ids": [5], "stop": "x"}, "stop")])
def test_without_a_tokenizer_text_is_refused(answer, scripted_engine, fields, word):
    response = answer(scripted_engine(STEPS), PATH, ask(**fields), **SKIP)
    assert response.status_code == 400
    assert word in response.json()["message"]
    assert "tokenizer" in response.json()["message"]
