"""Adapters on the wire: asked for as SGLang's and vLLM's clients do, listed, loaded and unloaded."""

from __future__ import annotations

import loopback
import pytest

PROMPT = list(range(40, 110))
PLAIN = {"temperature": 0, "max_tokens": 8}
TWO = ("--lora-paths", "first=builtin:1", "--lora-paths", "second=builtin:2", "--enable-cache-report")


@pytest.fixture(scope="module")
def sglang(start_reference):
    return start_reference(*TWO)


@pytest.fixture(scope="module")
def vllm(start_reference):
    return start_reference(*TWO, "--api-dialect", "vllm")


def generate(url, **body):
    return loopback.post(
        f"{url}/generate", json={"sampling_params": {"temperature": 0, "max_new_tokens": 8}, **body}
    )


def completed(url, **body):
    return loopback.post(f"{url}/v1/completions", json={"prompt": PROMPT, **PLAIN, **body})


def test_each_prompt_of_a_batch_has_its_adapter(sglang):
    names = ["first", None, "second"]
    alone = [generate(sglang, input_ids=PROMPT, lora_path=name).json()["output_ids"] for name in names]
    together = generate(sglang, input_ids=[PROMPT] * 3, lora_path=names).json()
    assert [answer["output_ids"] for answer in together] == alone
    assert len(set(map(tuple, alone))) == 3
    assert [answer["meta_info"]["cached_tokens"] for answer in together] == [64, 64, 64]


def test_an_openai_body_names_its_adapter_in_three_ways(sglang, vllm):
    by_path = completed(sglang, lora_path="first").json()
    behind = completed(sglang, model="builtin:tiny:first").json()
    as_model = completed(vllm, model="first").json()
    plain = completed(sglang).json()
    texts = [answer["choices"][0]["text"] for answer in (by_path, behind, as_model)]
    assert texts == [texts[0]] * 3
    assert plain["choices"][0]["text"] != texts[0]
    assert [answer["model"] for answer in (behind, as_model)] == ["builtin:tiny:first", "first"]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "model": "first", **PLAIN}
    answers = [
        loopback.post(f"{vllm}/v1/chat/completions", json=chat | {"model": name}).json()
        for name in ("first", "second")
    ]
    assert [answer["model"] for answer in answers] == ["first", "second"]
    assert answers[0]["choices"][0]["message"] != answers[1]["choices"][0]["message"]


def test_vectors_are_those_of_the_adapter(vllm):
    vectors = [
        loopback.post(f"{vllm}/v1/embeddings", json={"input": PROMPT, "model": name}).json()
        for name in ("builtin:tiny", "first")
    ]
    assert vectors[0]["data"] != vectors[1]["data"]
    assert vectors[1]["model"] == "first"


def test_an_adapter_that_is_not_there_is_refused_by_its_name(sglang, vllm):
    refused = [
        generate(sglang, input_ids=PROMPT, lora_path="nobody"),
        generate(sglang, input_ids=[PROMPT] * 2, lora_path=["first", "nobody"]),
        completed(sglang, lora_path="nobody"),
        completed(sglang, model="builtin:tiny:nobody"),
        completed(vllm, model="nobody"),
    ]
    assert [answer.status_code for answer in refused] == [400, 400, 400, 400, 404]
    assert all("nobody" in answer.text for answer in refused)


def test_adapters_are_listed_behind_their_model(vllm):
    listed = loopback.get(f"{vllm}/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in listed] == [
        ("builtin:tiny", None),
        ("first", "builtin:tiny"),
        ("second", "builtin:tiny"),
    ]
    assert loopback.get(f"{vllm}/v1/models/first").json()["parent"] == "builtin:tiny"


@pytest.mark.parametrize(("dialect", "root"), [("sglang", ""), ("vllm", "/v1")])
def test_adapters_come_and_go(start_reference, dialect, root):
    url = start_reference("--enable-lora", "--api-dialect", dialect)
    load, unload = f"{url}{root}/load_lora_adapter", f"{url}{root}/unload_lora_adapter"
    body = {"lora_name": "late", "lora_path": "builtin:5"}
    assert generate(url, input_ids=PROMPT, lora_path="late").status_code == 400
    assert loopback.post(load, json=body).status_code == 200
    first = generate(url, input_ids=PROMPT, lora_path="late").json()
    assert loopback.post(load, json=body).status_code == 400
    assert "nothing" in loopback.post(load, json={"lora_name": "b", "lora_path": "/nothing"}).text
    assert (
        loopback.post(load, json={"lora_name": "builtin:tiny", "lora_path": "builtin:5"}).status_code == 400
    )
    assert loopback.post(unload, json={"lora_name": "late"}).status_code == 200
    assert loopback.post(unload, json={"lora_name": "late"}).status_code == 400
    assert generate(url, input_ids=PROMPT, lora_path="late").status_code == 400
    assert loopback.post(load, json={"lora_name": "late", "lora_path": "builtin:6"}).status_code == 200
    second = generate(url, input_ids=PROMPT, lora_path="late").json()
    assert second["output_ids"] != first["output_ids"]
    assert second["meta_info"]["cached_tokens"] == 0
