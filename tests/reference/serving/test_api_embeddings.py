"""/v1/embeddings and /encode."""

from __future__ import annotations

import base64
import math
import struct

import pytest

STEPS = [[5]]
VECTOR = [0.6, 0.0, 0.8]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ("Hello", [[43, 72, 363, 82]]),
        (["Hello", "Hello"], [[43, 72, 363, 82]] * 2),
    ],
)
def test_every_prompt_has_one_embedding_and_keeps_its_ids(answer, scripted_engine, given, prompts):
    body = answer(
        scripted_engine(STEPS), "/v1/embeddings", {"input": given, "return_prompt_token_ids": True}
    ).json()
    assert body["data"] == [
        {"object": "embedding", "embedding": VECTOR, "index": i, "prompt_token_ids": ids}
        for i, ids in enumerate(prompts)
    ]
    tokens = sum(map(len, prompts))
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    name = "text" if isinstance(given, str) or isinstance(given[0], str) else "input_ids"
    asked = {name: given, "return_prompt_token_ids": True}
    native = answer(scripted_engine(STEPS), "/encode", asked).json()
    results = native if isinstance(native, list) else [native]
    assert isinstance(native, list) == (given not in ([5, 6], "Hello"))
    assert [result["prompt_token_ids"] for result in results] == prompts
    for result, ids in zip(results, prompts, strict=True):
        assert result["embedding"] == VECTOR
        assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert result["meta_info"]["prompt_tokens"] == len(ids)


def test_ids_that_were_not_asked_for_are_absent(answer, scripted_engine):
    listed = answer(scripted_engine(STEPS), "/v1/embeddings", {"input": [5]}).json()
    assert "prompt_token_ids" not in listed["data"][0]
    assert "prompt_token_ids" not in answer(scripted_engine(STEPS), "/encode", {"input_ids": [5]}).json()


def test_an_embedding_can_be_short_and_packed(answer, scripted_engine):
    asked = {"input": [5], "dimensions": 2, "encoding_format": "base64"}
    body = answer(scripted_engine(STEPS), "/v1/embeddings", asked).json()
    packed = base64.b64decode(body["data"][0]["embedding"])
    assert struct.unpack("<2f", packed) == (1.0, 0.0)


def test_input_ids_beat_text(answer, scripted_engine):
    asked = {"text": "Hello", "input_ids": [9], "return_prompt_token_ids": True}
    assert answer(scripted_engine(STEPS), "/encode", asked).json()["prompt_token_ids"] == [9]


def test_the_engine_embeds_alone_as_in_a_batch(start_reference):
    import loopback

    url = start_reference()
    prompts = [[72, 101], [108], list(range(3, 40))]
    together = loopback.post(f"{url}/v1/embeddings", json={"input": prompts}).json()["data"]
    for item, prompt in zip(together, prompts, strict=True):
        alone = loopback.post(f"{url}/encode", json={"input_ids": prompt}).json()
        assert alone["embedding"] == item["embedding"]
        assert math.isclose(math.hypot(*item["embedding"]), 1.0)
    assert len({tuple(item["embedding"]) for item in together}) == 3
    # The engine still generates, and nothing was left behind.
    assert loopback.post(f"{url}/flush_cache").status_code == 200


@pytest.mark.parametrize(("keep", "ids"), [(2, [6, 7]), (3, [5, 6, 7]), (9, [5, 6, 7]), (-1, [5, 6, 7])])
def test_the_tail_of_a_truncated_input_is_run_and_counted(answer, scripted_engine, keep, ids):
    asked = {"input": [5, 6, 7], "truncate_prompt_tokens": keep, "return_prompt_token_ids": True}
    body = answer(scripted_engine(STEPS), "/v1/embeddings", asked).json()
    assert body["data"][0]["prompt_token_ids"] == ids
    assert body["usage"]["prompt_tokens"] == len(ids)


def test_the_document_that_fits_best_comes_first(start_reference):
    import loopback

    url = start_reference()
    asked = {"query": "Hello", "documents": ["a", "Hello", "b"], "top_n": 2}
    best, second = loopback.post(f"{url}/v1/rerank", json=asked).json()["results"]
    assert (best["index"], best["document"]["text"]) == (1, "Hello")
    assert math.isclose(best["relevance_score"], 1.0, abs_tol=1e-6)
    assert second["relevance_score"] < best["relevance_score"]
    texts = {"text_1": "Hello", "text_2": asked["documents"]}
    scores = [item["score"] for item in loopback.post(f"{url}/v1/score", json=texts).json()["data"]]
    assert (scores[1], max(scores[0], scores[2])) == (best["relevance_score"], second["relevance_score"])
    classes = loopback.post(f"{url}/v1/classify", json={"input": ["a"]}).json()["data"][0]
    assert math.isclose(sum(classes["probs"]), 1.0)
    assert classes["label"] == f"LABEL_{classes['probs'].index(max(classes['probs']))}"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/embeddings", {"input": [5], "truncate_prompt_tokens": 0}),
        ("/v1/embeddings", {"input": [5], "truncate_prompt_tokens": 10**6}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"documents": ["a"]}),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}),
        ("/v1/score", {"text_1": "", "text_2": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["a", ""]}),
        ("/v1/classify", {"input": ""}),
        ("/v1/classify", {"input": [5], "truncate_prompt_tokens": 0}),
    ],
)
def test_what_has_no_result_is_refused(answer, scripted_engine, path, asked):
    assert answer(scripted_engine(STEPS), path, asked).status_code == 400
