"""What the server publishes of its doors is what it holds them to."""

from __future__ import annotations

import jsonschema
import pytest

from tokenwire_reference.doors import body
from tokenwire_reference.doors.keys import OPEN_PATHS

SMALLEST = {
    "/generate": {"input_ids": [5]},
    "/encode": {"input_ids": [5]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": [5]},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/embeddings": {"input": [5]},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {}},
    "/inference/v1/abort_requests": {"request_ids": []},
    "/tokenize": {"prompt": "x"},
    "/v1/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/v1/detokenize": {"tokens": [5]},
    "/v1/score": {"text_1": "a", "text_2": ["b"]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/systemone": {"questions": {"a": {"type": "noul"}}},
    "/abort_request": {},
    "/pause_generation": {},
    "/continue_generation": {},
    "/update_weights_from_disk": {"model_path": "a"},
    "/update_weight_version": {"new_version": "a"},
    "/open_session": {},
    "/close_session": {},
}
VLLM_ONLY = {
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/chat/completions/derender": {
        "chat_request": {"messages": [{"role": "user", "content": "x"}]},
        "generate_response": {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "stop"}]},
    },
    "/v1/completions/render": {"prompt": [5]},
    "/v1/completions/derender": {
        "completion_request": {"prompt": [5]},
        "generate_responses": [{"choices": [{"index": 0, "token_ids": [5], "finish_reason": "stop"}]}],
    },
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "x"}]]},
    "/v1/decisions": {"input": "a", "questions": [{"type": "predicate", "instructions": "True."}]},
}
SGLANG_ONLY = {
    "/v1/decisions": {"input": "a", "questions": [{"id": "a", "type": "yes_no", "question": "?"}]},
}
WITHOUT_BODY = {"/flush_cache", "/load", "/pause", "/resume", "/v1/responses/{name}/cancel"}


@pytest.fixture
def document(answers, call, scripted_engine):
    def read(**flags):
        headers = {"authorization": f"Bearer {flags.get('api_key')}"}
        asked = call("/openapi.json", method="GET", headers=headers)
        (response,) = answers(scripted_engine([[5]]), asked, **flags)
        return response.json()

    return read


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_each_body_is_held_against_the_schema_that_is_published(
    answer, scripted_engine, document, dialect, monkeypatch
):
    held = []
    validator = body._validator
    monkeypatch.setattr(body, "_validator", lambda name: held.append(name) or validator(name))
    published = document(api_dialect=dialect)
    posted = {path: methods["post"] for path, methods in published["paths"].items() if "post" in methods}
    classify, root = {"sglang": ("/v1/classify", ""), "vllm": ("/classify", "/v1")}[dialect]
    inner = VLLM_ONLY if dialect == "vllm" else SGLANG_ONLY
    bodies = (
        SMALLEST
        | inner
        | {
            classify: {"input": [5]},
            f"{root}/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
            f"{root}/unload_lora_adapter": {"lora_name": "a"},
        }
    )
    assert set(posted) - WITHOUT_BODY == set(bodies)
    for path, smallest in bodies.items():
        [content] = posted[path]["requestBody"]["content"].values()
        held.clear()
        status = answer(scripted_engine([[5]]), path, smallest, api_dialect=dialect).status_code
        assert status == (400 if "lora" in path or "weights_from" in path else 200)  # a script has none
        whole, *parts = [f"#/components/schemas/{name}" for name in held]
        assert whole == content["schema"]["$ref"]
        assert not parts or path in inner  # the chat requests within such a body
        jsonschema.Draft202012Validator({**content["schema"], **published}).validate(smallest)


def unbounded(schema, path):
    """Where a schema takes a text, a list or an object of any fields, and says not how long."""
    if "enum" in schema or "const" in schema:
        return
    types = schema.get("type", [])
    for type_, word in (("string", "maxLength"), ("array", "maxItems"), ("object", "maxProperties")):
        if type_ in types and word not in schema and not (type_ == "object" and "properties" in schema):
            yield path, word
    inner = {**schema.get("properties", {}), **dict(enumerate(schema.get("anyOf", ())))}
    inner |= {word: schema[word] for word in ("items", "additionalProperties") if word in schema}
    for name, part in inner.items():
        if isinstance(part, dict):
            yield from unbounded(part, f"{path}/{name}")


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_every_text_list_and_object_has_a_bound(document, dialect):
    """What has none takes all memory, or freezes the others while it is hashed."""
    schemas = document(api_dialect=dialect)["components"]["schemas"]
    assert len(schemas) > 20
    assert [where for name, schema in schemas.items() for where in unbounded(schema, name)] == []
    assert list(unbounded({"type": ["array", "null"], "items": {"type": "string"}}, "x")) == [
        ("x", "maxItems"),
        ("x/items", "maxLength"),
    ]


def test_the_limits_are_published(document):
    schemas = document()["components"]["schemas"]
    assert schemas["generate-request.samplingParams"]["properties"]["n"]["maximum"] == 128
    assert schemas["chat-request"]["properties"]["rid"]["maxLength"] == 256
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_key_is_published_where_one_is_needed(document):
    assert not any(
        "security" in operation for methods in document()["paths"].values() for operation in methods.values()
    )
    keyed = document(api_key="the-key")
    open_paths = {
        path
        for path, methods in keyed["paths"].items()
        if any("security" not in operation for operation in methods.values())
    }
    assert open_paths == OPEN_PATHS
    assert keyed["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
