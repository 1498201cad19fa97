"""The request schemas of the specification, with the limits of this server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tokenwire.spec_files import load_schema
from tokenwire_reference.doors.limits import LIMITS, OTHERS, Number

Schema = dict[str, Any]

_KEYWORDS = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("maxItems",),
    "object": ("maxProperties",),
}
"""The JSON Schema keywords that limit a value, by the type of the value."""
_FLAG = {"type": ["boolean", "null"]}
_SCRIPT = {"custom_params": {"type": ["object", "null"]}}
_IMAGE = {"type": ["string", "null"]}
_IMAGES = {
    "anyOf": [_IMAGE, {"type": "array", "items": {"anyOf": [_IMAGE, {"type": "array", "items": _IMAGE}]}}]
}


def _one_or_several(kind: str) -> Schema:
    """Return the schema of a field with one value, or with a list of values, one for each
    prompt of a batch.
    """
    of_prompt = {"type": [kind, "null"]}
    return {"anyOf": [of_prompt, {"type": "array", "minItems": 1, "items": of_prompt}]}


_MORE: Mapping[str, Mapping[str, Any]] = {
    "generate-request": {"image_data": _IMAGES},
    "chat-request": {
        **dict.fromkeys(("return_input_ids_in_sglext", "return_output_ids_in_sglext"), _FLAG),
        "return_cached_tokens_details": _FLAG,
        **_SCRIPT,
    },
    "chatPart": {"image_url": {"type": "object", "properties": {"url": {"type": "string"}}}},
    "completion-request": {"best_of": {"type": ["integer", "null"]}, **_SCRIPT},
    **dict.fromkeys(("vllm-chat-request", "responses-request", "messages-request"), _SCRIPT),
}
"""Fields of this server that are not in the specification."""

DISAGGREGATED: Mapping[str, Any] = {
    "bootstrap_host": _one_or_several("string"),
    "bootstrap_port": _one_or_several("integer"),
    "bootstrap_room": _one_or_several("integer"),
}
"""The fields that a router adds to a request for a prefill and a decode server."""
_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
_NAME = {"type": "string", "minLength": 1}
_OPTIONS = {
    "type": ["array", "null"],
    "maxItems": 26,
    "items": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("value", "label", "name")},
    },
}


def _questions(required: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list of questions, each an object with these properties."""
    question = {"type": "object", "required": required, "properties": properties}
    return {"type": "array", "minItems": 1, "maxItems": 200, "items": question}


_CONTROL: Mapping[str, Any] = {
    "score-request": {"text_1": {"type": "string"}, "text_2": _TEXTS, "model": {"type": "string"}},
    "rerank-request": {
        "query": {"type": "string"},
        "documents": _TEXTS,
        "top_n": {"type": ["integer", "null"], "minimum": 1},
        "model": {"type": "string"},
    },
    "vllm-derender-completions-request": {
        "completion_request": {"type": "object"},
        "generate_responses": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "prompt_token_ids": {"type": ["array", "null"]},
        "prompt_tokens": {"type": ["array", "null"]},
        "model": {"type": ["string", "null"]},
    },
    "vllm-batch-request": {"messages": {"type": "array", "items": {"type": "array"}}},
    "systemone-request": {
        "state": {"type": ["string", "null"]},
        "questions": {
            "type": "object",
            "maxProperties": 200,
            "additionalProperties": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"enum": ["choice", "noul", "score"]},
                    "instructions": {"type": ["string", "null"]},
                    "criteria": {"type": ["array", "object", "null"], "items": {"type": "string"}},
                },
            },
        },
        "model": {"type": "string"},
    },
    "decisions-request": {
        "input": _NAME,
        "questions": _questions(
            ["type", "instructions"],
            {
                "type": {"enum": ["choice", "predicate", "score"]},
                "instructions": {"type": "string"},
                "name": {"type": ["string", "null"]},
                "choices": _OPTIONS,
                "levels": _OPTIONS,
            },
        ),
        "model": {"type": "string"},
    },
    "sglang-decisions-request": {
        "input": _NAME,
        "questions": _questions(
            ["id", "type", "question"],
            {
                "id": _NAME,
                "type": {"enum": ["choice", "score", "yes_no"]},
                "question": _NAME,
                "options": _OPTIONS,
                "levels": {"type": ["array", "null"], "maxItems": 10, "items": _NAME},
            },
        ),
        "temperature": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "prompt_format_version": {"type": ["integer", "null"]},
        "return_prompt_token_ids": _FLAG,
        "model": {"type": "string"},
    },
    "abort-request": {"rid": {"type": ["string", "null"]}, "abort_all": {"type": ["boolean", "null"]}},
    "abort-requests-request": {"request_ids": {"type": "array", "items": {"type": "string"}}},
    "pause-request": {"mode": {"enum": ["abort", "retract", "in_place"]}},
    "open-session-request": {
        "capacity_of_str_len": {"type": ["integer", "null"]},
        "session_id": {"type": ["string", "null"]},
        "streaming": _FLAG,
    },
    "close-session-request": {"session_id": {"type": ["string", "null"]}},
    "continue-request": {},
    "update-weights-request": {
        "model_path": _NAME,
        "weight_version": {"type": ["string", "null"]},
        **dict.fromkeys(("flush_cache", "abort_all_requests"), _FLAG),
    },
    "rename-request": {"new_version": _NAME, "abort_all_requests": _FLAG},
    "load-adapter-request": {"lora_name": _NAME, "lora_path": _NAME},
    "unload-adapter-request": {"lora_name": _NAME},
    "disaggregated-request": DISAGGREGATED,
}
"""The fields of bodies that have no schema in the specification.

Fields that are lists or names are required.
"""


@cache
def request_schema(name: str) -> Schema:
    """Return `spec/schemas/<name>.json`, or the schema of a control call, with this server's limits.

    Raises FileNotFoundError if it does not exist.
    """
    if (fields := _CONTROL.get(name)) is not None:
        required = [
            field for field, value in fields.items() if value.get("type") == "array" or value is _NAME
        ]
        schema = {"type": "object", "properties": fields, "required": required}
    else:
        schema = _with_more(name, load_schema(name))
    definitions = schema.get("$defs", {})
    kept = {name: _with_more(name, value) for name, value in definitions.items() if _is_referred_to(value)}
    limited = {name: _limited(value, {}, definitions) for name, value in kept.items()}
    return {**_limited(schema, {}, definitions), **({"$defs": limited} if limited else {})}


def _with_more(name: str, owner: Schema) -> Schema:
    more = _MORE.get(name)
    return {**owner, "properties": {**owner["properties"], **more}} if more else owner


def known_fields(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return those fields of a body that its schema defines. Other fields were not validated."""
    schema = request_schema(name)
    return _known(body, schema, schema.get("$defs", {}))


def _known(value: Mapping[str, Any], schema: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    known = {}
    for name, inner in value.items():
        if (field := schema["properties"].get(name)) is not None:
            field = _target(field, definitions)
            is_owner = isinstance(inner, dict) and "properties" in field
            known[name] = _known(inner, field, definitions) if is_owner else inner
    return known


def _target(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    return definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _is_referred_to(definition: Schema) -> bool:
    """True if a definition stays shared.

    Other definitions are copied to the fields that use them, because each field has its own limits.
    """
    return "properties" in definition or definition.get("type") == "integer"


def _limited(schema: Schema, limits: Mapping[str, Number], definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of a value with limits for each type that it may have."""
    if "$ref" in schema:
        target = _target(schema, definitions)
        return schema if _is_referred_to(target) else _limited(target, limits, definitions)
    if "enum" in schema or "const" in schema:
        return schema
    items = schema.get("items", {})
    if "$ref" in items and _target(items, definitions).get("type") == "integer":
        limits = {**limits, "maxItems": limits.get("maxIds", OTHERS["maxIds"])}
    types = schema.get("type", [])
    types = {types} if isinstance(types, str) else set(types)
    if "properties" in schema:
        types -= {"object"}
    words = [word for type_, words in _KEYWORDS.items() if type_ in types for word in words]
    others = {word: OTHERS[word] for word in words if word in OTHERS}
    limited = {**others, **schema, **{word: limits[word] for word in words if word in limits}}
    if "properties" in schema:
        limited["properties"] = {
            field: _limited(value, LIMITS.get(field, {}), definitions)
            for field, value in schema["properties"].items()
        }
    if "anyOf" in schema:
        limited["anyOf"] = [_limited(part, limits, definitions) for part in schema["anyOf"]]
    # The limit of a batch does not apply to a list within a list.
    inner = {word: most for word, most in limits.items() if word != "maxItems"}
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            limited[part] = _limited(schema[part], inner, definitions)
    return limited


@cache
def integer_fields(name: str) -> frozenset[str]:
    """Return the fields of a body, and of its sampling parameters, whose numbers must be integers."""
    return _fields(name, lambda value, definitions: _numbers(value, definitions) == {"integer"})


@cache
def object_fields(name: str) -> frozenset[str]:
    """Return the fields of a body, and of the objects in it, whose values are objects with known fields."""
    return _fields(name, _has_fields)


def _fields(name: str, holds: Callable[[Any, Any], bool]) -> frozenset[str]:
    """Return the fields of a body, and of the objects in it, whose schema has a property.

    `holds` is called with the schema of a field and the definitions of the document.
    """
    schema = request_schema(name)
    definitions = schema.get("$defs", {})
    return frozenset(
        field
        for owner in (schema, *definitions.values())
        for field, value in owner.get("properties", {}).items()
        if holds(value, definitions)
    )


def _has_fields(schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    schema = _target(schema, definitions)
    parts = (*schema.get("anyOf", ()), schema.get("items"))
    return "properties" in schema or any(_has_fields(part, definitions) for part in parts if part)


def _numbers(schema: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    """Return the number types of a value, or of its entries."""
    schema = _target(schema, definitions)
    types = schema.get("type", [])
    found = {"integer", "number"}.intersection([types] if isinstance(types, str) else types)
    parts = (*schema.get("anyOf", ()), schema.get("items"))
    return found.union(*(_numbers(part, definitions) for part in parts if isinstance(part, dict)))
