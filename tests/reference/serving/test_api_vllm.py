"""vLLM's doors: chat and completions in its dialect, and /inference/v1/generate in any."""

from __future__ import annotations

import base64
import io
import json
import math

import loopback
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire_reference.core.request import FinishReason, SamplingParams
from tokenwire_reference.doors.vllm.logprob_shapes import TextOffsets, token_text

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
HELLO = [{"role": "user", "content": "Hello there"}]
HELLO_IDS = [1, 88, 458, 202, 43, 72, 363, 82, 1028, 2, 202, 1, 425, 387, 478, 202]
# 語 in three byte tokens, "spec", and the end of the message.
IDS = [168, 107, 256, 1262, 2]
STEPS = [[i] for i in IDS]
END = FinishReason("stop", matched=2)
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
PROMPT = [5, 6]
ASKS = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": PROMPT},
    GENERATE: {"token_ids": PROMPT, "sampling_params": {}, "output_mode": "text"},
}


@pytest.mark.parametrize("path", ASKS)
def test_a_rank_that_there_is_not_is_refused(answers, call, scripted_engine, path):
    for rank, status in (("0", 200), ("1", 400), ("-1", 400), ("a", 200)):
        asked = call(path, ASKS[path], headers={"X-data-parallel-rank": rank})
        (response,) = answers(scripted_engine(STEPS, finish=END), asked, api_dialect="vllm")
        assert response.status_code == status


@pytest.fixture
def ask(answer, scripted_engine):
    def post(path, body, *, finish=END, **flags):
        return answer(scripted_engine(STEPS, finish=finish), path, body, api_dialect="vllm", **flags)

    return post


def with_sampling(path, **fields):
    """A body with sampling parameters where the door wants them."""
    body = dict(ASKS[path])
    return body | ({"sampling_params": fields} if path == GENERATE else fields)


def test_the_texts_of_a_content_are_joined_by_a_line_break(ask):
    def prompt(content):
        asked = {"messages": [{"role": "user", "content": content}], "return_token_ids": True}
        return ask(CHAT, asked).json()["prompt_token_ids"]

    parts = [{"type": "text", "text": letter} for letter in "ab"]
    assert prompt(parts) == prompt("a\nb") != prompt("ab")


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_is_the_whole_answer_in_parts(ask, read_events, path, n):
    body = with_sampling(path, n=n) | {"return_token_ids": True}
    whole = ask(path, body).json()
    *chunks, last = read_events(ask(path, body | STREAM))
    assert last["choices"] == []
    assert last["usage"] == {k: v for k, v in whole["usage"].items() if v is not None}
    prompt = HELLO_IDS if path == CHAT else PROMPT
    for expected in whole["choices"]:
        mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == expected["index"]]
        parts = [chunk["choices"][0] for chunk in mine]
        assert [i for part in parts for i in part.get("token_ids") or ()] == expected["token_ids"] == IDS
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
        given = [
            chunk.get("prompt_token_ids") or chunk["choices"][0].get("prompt_token_ids") for chunk in mine
        ]
        assert given == [prompt] + [None] * (len(mine) - 1)
        texts = [part["delta"].get("content", "") if path == CHAT else part["text"] for part in parts]
        assert "".join(texts) == (expected["message"]["content"] if path == CHAT else expected["text"])
        assert "".join(texts) == "語spec"
    where = whole["choices"][0] if path == COMPLETIONS else whole
    assert where["prompt_token_ids"] == prompt


@pytest.mark.parametrize("start", [None, 0, 2])
def test_chosen_ids_have_the_logprobs_of_the_prompt(start_reference, start):
    """Each row of the file has the numbers of its own ids, also beside rows with other ids."""
    prompt = [5, 6, 7, 8]
    rows = [[6, 40], [11], [40, 8]][start or 0 :]
    params = {"max_tokens": 1, "prompt_logprobs": -1, "prompt_logprob_token_ids": rows}
    if start is not None:
        params["prompt_logprob_start"] = start
    body = {"token_ids": prompt, "sampling_params": params}
    answer = loopback.post(start_reference() + GENERATE, json=body).json()
    found = numpy.load(io.BytesIO(base64.b64decode(answer["prompt_token_id_logprobs"])))
    positions = answer["prompt_logprobs"][1 + (start or 0) :]
    due = [[position[str(i)]["logprob"] for i in row] for position, row in zip(positions, rows, strict=True)]
    width = max(map(len, rows))
    assert found.dtype == numpy.float32
    assert found.tolist() == [
        pytest.approx([*row, *[-math.inf] * (width - len(row))], abs=1e-6) for row in due
    ]


def test_chosen_ids_stand_behind_the_sampled_one_without_ranks(start_reference):
    params = {"temperature": 0, "max_tokens": 2, "logprobs": 2, "logprob_token_ids": [50, 51]}
    params |= {"prompt_logprob_token_ids": [[60]]}
    body = {"token_ids": [5, 6], "sampling_params": params}
    answer = loopback.post(start_reference() + GENERATE, json=body).json()["choices"][0]
    for token, entry in zip(answer["token_ids"], answer["logprobs"]["content"], strict=True):
        listed = [(other["token_id"], other["rank"]) for other in entry["top_logprobs"]]
        assert listed == [(token, entry["rank"]), (50, None), (51, None)]


@pytest.mark.parametrize("path", ASKS)
def test_drafts_are_counted_once_beside_the_usage(start_reference, path):
    flags = ("--model", "builtin:parrot", "--speculative-algorithm", "NGRAM", "--api-dialect", "vllm")
    url = start_reference(*flags) + path

    def body(**fields):
        asked = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | fields
        again = [40, 41, 42] * 4
        prompt = {"messages": HELLO} if path == CHAT else {"prompt": again}
        return {"token_ids": again, "sampling_params": asked} if path == GENERATE else prompt | asked

    whole = loopback.post(url, json=body()).json()["metrics"]["speculative_decoding"]
    assert whole["num_spec_steps"] == sum(whole["acceptance_histogram"]) > 0
    assert whole["num_draft_tokens"] >= whole["num_accepted_draft_tokens"]
    assert whole["mean_acceptance_length"] == 1 + whole["num_accepted_draft_tokens"] / whole["num_spec_steps"]
    written = loopback.post(url, json=body() | STREAM).text
    *events, last = [json.loads(line[6:]) for line in written.splitlines() if line.startswith("data: {")]
    assert last["choices"] == []
    assert last["metrics"] == {"speculative_decoding": whole}
    assert not any(event.get("metrics") for event in events)
    assert loopback.post(url, json=body(n=2)).json()["metrics"] is None


@pytest.mark.parametrize(
    ("params", "stream", "words"),
    [
        ({"prompt_logprob_token_ids": [[6], [7]]}, True, "not available in a stream"),
        ({"prompt_logprob_token_ids": [[6]]}, False, "1 rows for a prompt with 2 scored positions"),
        ({"prompt_logprob_token_ids": [[6], [7]], "prompt_logprob_start": 1}, False, "1 scored positions"),
        ({"prompt_logprob_token_ids": [[], []]}, False, "2 rows"),
        ({"prompt_logprob_token_ids": [[6], [10**9]]}, False, "not in the vocabulary"),
        ({"prompt_logprob_token_ids": [[6], [-2]]}, False, "-2"),
        ({"logprob_token_ids": [6, 7], "logprobs": 3}, False, "has 2 ids and logprobs is 3"),
        ({"prompt_logprob_start": 1}, False, "without prompt_logprob_token_ids"),
    ],
)
def test_rows_of_ids_that_do_not_fit_are_refused(ask, params, stream, words):
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 1, **params}, "stream": stream}
    answer = ask(GENERATE, body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ASKS)
def test_ids_that_were_not_asked_for_are_null(ask, read_events, path):
    whole = ask(path, ASKS[path]).json()
    where = whole["choices"][0] if path == COMPLETIONS else whole
    assert where["prompt_token_ids"] is None
    assert (whole["choices"][0]["token_ids"] is None) == (path != GENERATE)
    last = read_events(ask(path, ASKS[path] | {"stream": True}))[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert ("system_fingerprint" in last) == (path != GENERATE)


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("finish", "fields", "reason"),
    [
        (END, {}, ("stop", None)),
        (END, {"stop_token_ids": [2]}, ("stop", 2)),
        (FinishReason("stop", matched="x"), {"stop": "x"}, ("stop", "x")),
        (FinishReason("length", length=5), {}, ("length", None)),
        (FinishReason("abort"), {}, ("abort", None)),
    ],
)
def test_stop_reason_says_what_stopped_it(ask, path, finish, fields, reason):
    (choice,) = ask(path, with_sampling(path, **fields), finish=finish).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == reason


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("intervals", "sizes"),
    [((None, 1), [1, 1, 1, 1, 1]), ((2, 1), [1, 2, 2]), ((1, 3), [1, 3, 1]), ((4, 3), [1, 4])],
)
def test_a_request_can_only_raise_the_interval(ask, read_events, path, intervals, sizes):
    asked, server = intervals
    body = with_sampling(path, stream_interval=asked) | {"return_token_ids": True, "stream": True}
    chunks = read_events(ask(path, body, stream_interval=server))
    ids = [chunk["choices"][0].get("token_ids") for chunk in chunks]
    assert [len(part) for part in ids if part is not None] == sizes


def test_a_role_chunk_comes_before_all_content(ask, read_events):
    first, second, *_ = read_events(ask(CHAT, ASKS[CHAT] | {"stream": True}))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert (first["prompt_token_ids"], first["prompt_text"]) == (None, None)
    assert second["choices"][0] == {
        "index": 0,
        "delta": {"content": ""},
        "logprobs": None,
        "finish_reason": None,
        "token_ids": None,
    }


def test_input_ids_are_not_known_to_chat(ask):
    body = ask(CHAT, ASKS[CHAT] | {"input_ids": [5], "return_token_ids": True}).json()
    assert body["prompt_token_ids"] == HELLO_IDS


def test_ranks_stand_beside_the_logprobs_of_ids(ask):
    fields = {"logprobs": 1, "prompt_logprobs": 1}
    body = ask(GENERATE, {"token_ids": PROMPT, "sampling_params": fields}).json()
    assert body["choices"][0]["logprobs"]["content"][3] == {
        "token_id": 1262,
        "logprob": -0.5,
        "rank": 1,
        "top_logprobs": [{"token_id": 1262, "logprob": -0.5, "rank": 1}],
    }
    first, second = body["prompt_logprobs"]
    assert first is None
    assert second == {"6": {"logprob": -0.25, "rank": 3, "decoded_token": "#"}}
    assert "text" not in body["choices"][0]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_logprobs_can_name_ids(ask, path):
    logprobs = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    body = ask(path, ASKS[path] | logprobs | {"return_tokens_as_token_ids": True}).json()
    found = body["choices"][0]["logprobs"]
    names = [entry["token"] for entry in found["content"]] if path == CHAT else found["tokens"]
    assert names == [f"token_id:{i}" for i in IDS]
    if path == COMPLETIONS:
        assert found["text_offset"] == [0, 12, 24, 36, 49]


def test_offsets_go_on_from_chunk_to_chunk(ask, read_events):
    body = ASKS[COMPLETIONS] | {"logprobs": 0, "echo": True}
    whole = ask(COMPLETIONS, body).json()["choices"][0]
    assert whole["text"] == '"#語spec'
    chunks = read_events(ask(COMPLETIONS, body | {"stream": True}))
    for name, values in whole["logprobs"].items():
        assert [v for chunk in chunks for v in chunk["choices"][0]["logprobs"][name]] == values


@pytest.mark.parametrize(
    ("ids", "skip", "offsets"),
    [
        ([72, 0, 73, 2], True, [0, 1, 1, 2]),
        ([72, 0, 73, 2], False, [0, 1, 14, 15]),
        ([168, 107, 256, 72], True, [0, 0, 0, 1]),  # a character in three parts
        ([168, 107, 72, 73], True, [0, 0, 1, 2]),  # one that is never whole
        ([72, 168, 0, 107], True, [0, 1, 1, 1]),  # a hidden token ends no character
    ],
)
def test_offsets_count_what_the_text_shows(answer, scripted_engine, ids, skip, offsets):
    engine = scripted_engine([[i] for i in ids])
    body = {"prompt": PROMPT, "logprobs": 0, "skip_special_tokens": skip, "max_tokens": 4}
    choice = answer(engine, COMPLETIONS, body, api_dialect="vllm").json()["choices"][0]
    assert choice["logprobs"]["text_offset"] == offsets


@given(st.lists(st.sampled_from([0, 2, 72, 73, 107, 168, 256, 1262]), max_size=12), st.booleans())
def test_offsets_never_fall_and_stand_where_the_text_shows_a_token(tiny_tokenizer, ids, skip):
    offsets = list(TextOffsets(tiny_tokenizer, SamplingParams(skip_special_tokens=skip), PROMPT).of(ids))
    text = tiny_tokenizer.decode(ids, skip_special_tokens=skip)
    assert offsets == sorted(offsets)
    for token_id, begin in zip(ids, offsets, strict=True):
        if not (skip and token_id in tiny_tokenizer.all_special_ids):
            assert text.startswith(token_text(tiny_tokenizer, token_id), begin)


def test_usage_comes_with_every_chunk_only_where_it_comes_at_all(ask, read_events):
    for options, count in (({"continuous_usage_stats": True}, 0), (STREAM["stream_options"], 1)):
        chunks = read_events(
            ask(COMPLETIONS, ASKS[COMPLETIONS] | {"stream": True, "stream_options": options})
        )
        assert sum("usage" in chunk for chunk in chunks) == count
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = read_events(ask(CHAT, ASKS[CHAT] | {"stream": True, "stream_options": options}))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        (CHAT, {"model": "other"}, 404, "model"),
        (COMPLETIONS, {"model": "other"}, 404, "model"),
        (GENERATE, {"token_ids": []}, 400, "token_ids"),
        (GENERATE, {"token_ids": [5, -1]}, 400, "token_ids[1]"),
        (GENERATE, {"sampling_params": {"max_tokens": "x"}}, 400, "sampling_params.max_tokens"),
        (GENERATE, {"sampling_params": {"max_tokens": 600}}, 400, "max_tokens"),
        (GENERATE, {"sampling_params": {"prompt_logprobs": 1}, "stream": True}, 400, "prompt_logprobs"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
        (CHAT, {"stream_interval": 0}, 400, "stream_interval"),
        (CHAT, {"stream_options": {"include_usage": True}}, 400, "stream_options"),
        (CHAT, {"logprobs": True, "top_logprobs": 50}, 400, "top_logprobs"),
        (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 512}, 400, "input_tokens"),
    ],
)
def test_a_refusal_nests_its_error_and_names_the_field(ask, path, fields, status, param):
    refused = ask(path, ASKS[path] | fields)
    assert refused.status_code == status
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (param, status)
    assert list(error) == ["message", "type", "param", "code"]


@pytest.mark.parametrize("path", ASKS)
def test_a_server_abort_in_the_middle_ends_the_stream_with_an_error(ask, read_events, path):
    broken = FinishReason("abort", message="out of memory", status_code=500)
    last = read_events(ask(path, ASKS[path] | STREAM, finish=broken))[-1]
    assert last == {"error": {"message": "out of memory", "type": "500", "param": None, "code": 500}}


def test_the_id_is_the_header_s_then_the_body_s(answers, scripted_engine, call):
    body = {**ASKS[GENERATE], "request_id": "mine"}
    first, second = (
        answers(scripted_engine(STEPS, finish=END), call(GENERATE, body, headers=headers))[0].json()
        for headers in ({"X-Request-Id": "yours"}, {})
    )
    assert first["request_id"] == "generate-tokens-yours"
    assert second["request_id"] == "generate-tokens-mine"


@pytest.mark.parametrize("name", ["rid-7", "generate-tokens-rid-7"])
def test_a_request_is_aborted_by_the_id_that_the_client_chose_or_was_given(start_reference, name):
    import loopback

    url = start_reference()
    body = {
        "token_ids": [72],
        "request_id": "rid-7",
        "stream": True,
        "sampling_params": {"max_tokens": 4000, "ignore_eos": True, "n": 2},
    }
    with loopback.stream("POST", f"{url}{GENERATE}", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        loopback.post(f"{url}/inference/v1/abort_requests", json={"request_ids": ["nobody", name]})
        ends = [line for line in lines if '"finish_reason":"abort"' in line]
    assert len(ends) == 2


def test_a_server_of_the_other_dialect_has_the_door_too(answer, scripted_engine):
    body = answer(scripted_engine(STEPS, finish=END), GENERATE, ASKS[GENERATE]).json()
    assert body["choices"][0]["token_ids"] == IDS
    refused = answer(scripted_engine(STEPS), GENERATE, {"token_ids": [5]}).json()
    assert "sampling_params" in refused["error"]["message"]


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [5000]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": "a"}, "bad_words"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [5000], "logprobs": 1}, "logprob_token_ids"),
    ],
)
def test_a_set_of_ids_or_words_that_cannot_be_kept_is_refused(ask, path, fields, named):
    if path == GENERATE and named == "logprob_token_ids":
        pytest.skip("this endpoint does not have the field")
    if path == CHAT and "logprobs" in fields:
        fields = {**fields, "logprobs": True}
    response = ask(path, with_sampling(path, **fields))
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
