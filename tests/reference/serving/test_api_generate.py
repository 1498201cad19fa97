"""/generate, whole and streamed, in front of an engine that follows a script."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from tokenwire.spec_files import load_schema
from tokenwire_reference.core.request import FinishReason

IDS = [1262, 1059, 542, 88, 1806, 1238]
PIECES = ["spec", "andlers", " option", "u", "ily", "ties"]
STEPS = [[i] for i in IDS]


def fits(schema, value):
    jsonschema_rs.validator_for(load_schema(schema)).validate(value)


def mirror(position, token_id):
    return {"mirror_token_id": token_id, "mirror_position": position}


def test_a_whole_answer(answer, scripted_engine):
    response = answer(scripted_engine(STEPS, info=mirror), "/generate", {"input_ids": [5, 6], "rid": "mine"})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    body = response.json()
    fits("generate-response", body)
    info = body["meta_info"]
    assert list(body) == ["text", "output_ids", "meta_info"]
    assert (body["text"], body["output_ids"]) == ("".join(PIECES), IDS)
    assert list(info) == [
        *("id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "reasoning_tokens"),
        *("completion_tokens", "cached_tokens", "weight_versions", "cached_tokens_details"),
        *("mirror_token_id", "mirror_position", "dp_rank", "e2e_latency", "response_sent_to_client_ts"),
    ]
    assert info["id"] == "mine"
    assert info["finish_reason"] == {"type": "length", "length": 6}
    assert (info["prompt_tokens"], info["completion_tokens"]) == (2, 6)
    assert info["weight_versions"] == [{"version": "default", "start": 0, "end": 6}]
    assert (info["mirror_token_id"], info["mirror_position"]) == (IDS, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(
    "interval_and_sizes",
    [(None, [1] * 6), (1, [1] * 6), (2, [1, 2, 2, 1]), (4, [1, 4, 1]), (100, [1, 5])],
)
def test_a_stream_is_the_whole_answer_in_parts(
    answer, scripted_engine, read_events, incremental, interval_and_sizes
):
    interval, sizes = interval_and_sizes
    body = {"input_ids": [5], "stream": True, "return_logprob": True, "return_prompt_token_ids": True}
    if interval is not None:
        body["sampling_params"] = {"stream_interval": interval}
    engine = scripted_engine(STEPS, info=mirror)
    response = answer(engine, "/generate", body, incremental_streaming_output=incremental)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    ids, text, mirrored, logprobs = [], "", [], []
    stream = read_events(response)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    assert [event["meta_info"]["completion_tokens"] for event in stream] == ends
    for event in stream:
        fits("generate-event", event)
        info = event["meta_info"]
        if not incremental:
            ids, text, mirrored, logprobs = [], "", [], []
        ids += event["output_ids"]
        text += event["text"]
        mirrored += info["mirror_token_id"]
        logprobs += info["output_token_logprobs"]
        assert mirrored == ids == [entry[1] for entry in logprobs] == IDS[: len(ids)]
        assert len(info["mirror_position"]) == len(event["output_ids"])
        assert info["completion_tokens"] == len(ids) == info["output_token_logprobs_length"]
        assert text == "".join(PIECES[: len(ids)])
        assert event["prompt_token_ids"] == [5]
        assert ("response_sent_to_client_ts" in info) == (event is stream[0])
        assert ("e2e_latency" in info) == ("weight_versions" in info) == (event is stream[-1])
    assert ids == IDS
    assert [e["meta_info"]["finish_reason"] is not None for e in stream] == [False] * (len(stream) - 1) + [
        True
    ]


def test_logprob_lists_stand_where_sglang_writes_them(answer, scripted_engine):
    body = {"input_ids": [5], "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [7]}
    info = answer(scripted_engine(STEPS), "/generate", body).json()["meta_info"]
    assert list(info)[5:12] == [
        *("input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"),
        *("input_top_logprobs", "output_top_logprobs"),
        *("input_token_ids_logprobs", "output_token_ids_logprobs"),
    ]
    assert info["output_token_logprobs"][0] == [-0.5, 1262, None]
    assert info["output_top_logprobs"][5] == [[-0.5, 1238, None], [-0.5, 1238, None]]


def test_no_tokens_still_have_their_lists(answer, scripted_engine):
    engine = scripted_engine([[]], finish=FinishReason("length", length=0))
    body = {"input_ids": [5], "return_logprob": True, "sampling_params": {"max_new_tokens": 0}}
    choice = answer(engine, "/generate", body).json()
    assert (choice["text"], choice["output_ids"], choice["meta_info"]["output_token_logprobs"]) == (
        "",
        [],
        [],
    )


def test_logprobs_can_carry_their_text(answer, scripted_engine):
    body = {"input_ids": [5], "return_logprob": True, "return_text_in_logprobs": True}
    info = answer(scripted_engine(STEPS), "/generate", body).json()["meta_info"]
    assert [entry[2] for entry in info["output_token_logprobs"]] == PIECES


def test_a_batch_with_samples_goes_prompt_by_prompt(answer, scripted_engine, read_events):
    body = {
        "input_ids": [[5], [6, 7]],
        "sampling_params": {"n": 2},
        "return_prompt_token_ids": True,
        "rid": "b",
        "return_logprob": [True, False],
    }
    choices = answer(scripted_engine(STEPS), "/generate", body).json()
    fits("generate-response", choices)
    assert [c["prompt_token_ids"] for c in choices] == [[5], [5], [6, 7], [6, 7]]
    assert [c["meta_info"]["id"] for c in choices] == ["b_0", "b_1", "b_2", "b_3"]
    assert ["output_token_logprobs" in c["meta_info"] for c in choices] == [True, True, False, False]
    assert all("index" not in c for c in choices)
    stream = read_events(answer(scripted_engine(STEPS), "/generate", {**body, "stream": True}))
    assert {event["index"] for event in stream} == {0, 1, 2, 3}
    finished = [e for e in stream if e["meta_info"]["finish_reason"]]
    assert sorted(e["index"] for e in finished) == [0, 1, 2, 3]
    assert {e["index"]: e["prompt_token_ids"] for e in finished} == {0: [5], 1: [5], 2: [6, 7], 3: [6, 7]}
    assert all(e["text"] == "".join(PIECES) for e in finished)


def test_a_batch_of_one_is_a_batch(answer, scripted_engine):
    choices = answer(scripted_engine(STEPS), "/generate", {"text": ["spec"]}).json()
    assert [choice["output_ids"] for choice in choices] == [IDS]


def test_input_ids_beat_text(answer, scripted_engine):
    body = {"text": "The license", "input_ids": [9], "return_prompt_token_ids": True}
    assert answer(scripted_engine(STEPS), "/generate", body).json()["prompt_token_ids"] == [9]


def test_text_is_encoded(answer, scripted_engine):
    body = {"text": "The license applies to", "return_prompt_token_ids": True}
    choice = answer(scripted_engine(STEPS), "/generate", body).json()
    assert choice["prompt_token_ids"] == [1069, 587, 1648, 308]


def test_what_was_not_asked_for_is_absent(answer, scripted_engine):
    choice = answer(scripted_engine(STEPS), "/generate", {"input_ids": [5]}).json()
    assert list(choice) == ["text", "output_ids", "meta_info"]
    assert not any("logprobs" in key for key in choice["meta_info"])


def test_without_a_tokenizer_there_is_no_text(answer, scripted_engine):
    flags = {"tokenizer": None, "skip_tokenizer_init": True}
    choice = answer(scripted_engine(STEPS), "/generate", {"input_ids": [5]}, **flags).json()
    assert list(choice) == ["output_ids", "meta_info"]
    refused = answer(scripted_engine(STEPS), "/generate", {"text": "x"}, **flags)
    assert (refused.status_code, "input_ids" in refused.text) == (400, True)
    body = {"input_ids": [5], "sampling_params": {"stop": "x"}}
    refused = answer(scripted_engine(STEPS), "/generate", body, **flags)
    assert (refused.status_code, "stop" in refused.text) == (400, True)
    body = {"input_ids": [5], "return_logprob": True, "return_text_in_logprobs": True}
    refused = answer(scripted_engine(STEPS), "/generate", body, **flags)
    assert (refused.status_code, "return_text_in_logprobs" in refused.text) == (400, True)


def test_the_stop_id_stays_in_the_ids_and_out_of_the_text(answer, scripted_engine):
    engine = scripted_engine(STEPS, finish=FinishReason("stop", matched=1238))
    choice = answer(engine, "/generate", {"input_ids": [5]}).json()
    assert (choice["text"], choice["output_ids"]) == ("".join(PIECES[:5]), IDS)
    assert choice["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1238}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "neither text nor input_ids"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [[5], []]}, "input_ids[1]: [] has less than 1 item"),
        ({"input_ids": [5, 2000]}, "input_ids[1] is 2000, which is not in the vocabulary; ids are 0 to 1999"),
        ({"input_ids": [[5], [6, 2000]]}, "input_ids[1][1] is 2000"),
        ({"input_ids": [5, -1]}, "input_ids[1]: -1"),
        ({"input_ids": [5, 6.0]}, "input_ids[1]: 6.0 is not an integer"),
        ({"input_ids": [5, True]}, "input_ids[1]: true"),
        ({"input_ids": [5, "6"]}, 'input_ids[1]: "6"'),
        ({"input_ids": "5 6"}, 'input_ids: "5 6"'),
        ({"input_ids": [5] * 512}, "512 tokens"),
        ({"input_ids": [5] * 500, "sampling_params": {"max_new_tokens": 13}}, "make 513"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "sampling_params.temperature: -1"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": 2.0}}, "max_new_tokens: 2.0"),
        ({"input_ids": [5], "sampling_params": {"no_such": 1}}, "'no_such' was unexpected"),
        ({"input_ids": [5], "sampling_params": {"top_k": 0}}, "sampling_params.top_k"),
        ({"input_ids": [5], "sampling_params": {"stop": [""]}}, "stop holds an empty string"),
        (
            {"input_ids": [5], "sampling_params": {"stop_regex": "("}},
            "stop_regex '(' is not a regular",
        ),
        ({"input_ids": [5], "sampling_params": {"logit_bias": {"2000": 1}}}, "logit_bias[0] is 2000"),
        (
            {"input_ids": [5], "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
            "min_new_tokens 9",
        ),
        ({"input_ids": [5], "sampling_params": {"structural_tag": "{}"}}, "does not support this constraint"),
        ({"input_ids": [5], "sampling_params": {"beam_width": 2}}, "beam_width"),
        ({"input_ids": [[5], [6]], "sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"input_ids": [[5], [6]], "sampling_params": [{"n": 2}, {}]}, "n differs"),
        ({"input_ids": [5], "image_data": "x.png"}, "image_data is not supported"),
        ({"input_ids": [5], "top_logprobs_num": 2}, "top_logprobs_num requests logprobs"),
        ({"input_ids": [5], "logprob_start_len": 0}, "logprob_start_len requests logprobs"),
        ({"input_ids": [5], "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len 2 is beyond"),
        (
            {"input_ids": [5], "return_logprob": True, "token_ids_logprob": [9999]},
            "token_ids_logprob[0] is 9999",
        ),
        ({"input_ids": [[5], [6]], "rid": ["a", "a"]}, "rid 'a'"),
        ({"input_ids": [[5], [6]], "rid": ["a"]}, "rid has 1 entries for 2 prompts"),
        ({"text": ""}, "text '' has no tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_names_the_field_before_any_event(answer, scripted_engine, body, reason, stream):
    engine = scripted_engine(STEPS)
    response = answer(engine, "/generate", {**body, "stream": stream})
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    fits("error", response.json())
    refusal = response.json()
    assert reason in (refusal["error"]["message"] if "error" in refusal else refusal["message"])
    assert engine.live == {}


@pytest.mark.parametrize(
    ("content", "type_and_words"),
    [
        (b'{"input_ids": [1,', ("application/json", "not JSON")),
        (b'{"temperature": NaN}', ("application/json", "not JSON")),
        (b"[1]", ("application/json", "list")),
        (b'{"input_ids": [1]}', ("text/plain", "text/plain")),
        (b'{"input_ids": [1]}', (None, "content-type")),
        (b"", ("application/json", "not JSON")),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(answers, call, scripted_engine, content, type_and_words):
    media_type, reason = type_and_words
    headers = {"content-type": media_type} if media_type else {}
    (response,) = answers(scripted_engine(STEPS), call("/generate", content=content, headers=headers))
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


def test_a_duplicate_id_is_refused_and_the_first_goes_on(answers, call, scripted_engine):
    body = {"input_ids": [5], "rid": "dup"}
    responses = answers(scripted_engine(STEPS), *[call("/generate", body)] * 2)
    assert sorted(response.status_code for response in responses) == [200, 400]
    good, bad = sorted(responses, key=lambda response: response.status_code)
    assert good.json()["output_ids"] == IDS
    assert "'dup'" in bad.json()["error"]["message"]


def test_put_is_post(answers, call, scripted_engine):
    (response,) = answers(scripted_engine(STEPS), call("/generate", {"input_ids": [5]}, method="PUT"))
    assert response.json()["output_ids"] == IDS


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_by_the_server_has_its_status(answer, scripted_engine, stream):
    abort = FinishReason("abort", message="The request queue is full.", status_code=503)
    body = {"input_ids": [5], "stream": stream}
    response = answer(scripted_engine([[]], finish=abort), "/generate", body)
    assert response.status_code == 503
    assert response.json() == {
        **{"object": "error", "message": "The request queue is full."},
        **{"type": "503", "param": None, "code": 503},
    }


def test_a_server_abort_in_the_middle_ends_with_what_there_is(answer, scripted_engine, read_events):
    abort = FinishReason("abort", message="out of memory", status_code=500)
    engine = scripted_engine([*STEPS, []], finish=abort)
    stream = read_events(answer(engine, "/generate", {"input_ids": [5], "stream": True}))
    for event in stream:
        fits("generate-event", event)
    assert stream[-1]["output_ids"] == IDS
    reason = stream[-1]["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"], reason["message"]) == ("abort", 500, "out of memory")


def test_a_client_abort_is_an_ordinary_end(answer, scripted_engine):
    abort = FinishReason("abort", message="Aborted")
    choice = answer(scripted_engine(STEPS, finish=abort), "/generate", {"input_ids": [5]}).json()
    assert choice["output_ids"] == IDS
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert choice["meta_info"]["finish_reason"] == reason


def test_answers_are_strict_json(answer, scripted_engine):
    engine = scripted_engine(STEPS, info=lambda position, token_id: {"score": float("nan")})
    info = json.loads(answer(engine, "/generate", {"input_ids": [5]}).content)["meta_info"]
    assert info["score"] == [None] * 6


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"return_sampling_mask": True}, "return_sampling_mask needs a top_k of 1 to 256; it is -1"),
        ({"return_sampling_mask": True, "sampling_params": {"top_k": 257}}, "it is 257"),
        ({"return_sampling_mask": [True, False]}, "return_sampling_mask has 2 entries for 1 prompts"),
        (
            {
                "return_sampling_mask": [True] * 32,
                "input_ids": [[5]] * 32,
                "sampling_params": {"top_k": 256, "max_new_tokens": 256},
            },
            "more than 500000",
        ),
        (
            {"return_routed_experts": True, "routed_experts_start_len": 3},
            "routed_experts_start_len 3 is beyond the prompt of 2 tokens",
        ),
        ({"return_routed_experts": 1}, "return_routed_experts: 1 is not"),
    ],
)
def test_masks_and_experts_are_bounded(answer, scripted_engine, asked, words):
    engine = scripted_engine(STEPS)
    response = answer(engine, "/generate", {"input_ids": [5, 6], **asked})
    assert response.status_code == 400
    assert words in response.text
    assert engine.live == {}


def test_hidden_states_are_bounded(answer, scripted_engine):
    asked = {"input_ids": [5, 6], "return_hidden_states": True, "sampling_params": {"max_new_tokens": 400}}
    refused = answer(scripted_engine(STEPS), "/generate", {**asked, "stream": True})
    assert refused.status_code == 400
    assert "makes 160800 rows, more than 20000" in refused.text
    assert answer(scripted_engine(STEPS), "/generate", asked).status_code == 200


def test_hidden_states_are_for_those_prompts_that_ask(answer, scripted_engine):
    asked = {"input_ids": [[5], [6]], "return_hidden_states": [True, False]}
    first, second = answer(scripted_engine(STEPS), "/generate", asked).json()
    assert "hidden_states" in first["meta_info"]
    assert "hidden_states" not in second["meta_info"]
