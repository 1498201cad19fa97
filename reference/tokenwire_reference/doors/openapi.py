"""`/openapi.json`: every path of the server, with the schemas that its bodies are held against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from tokenwire_reference import __version__
from tokenwire_reference.doors import adapters, embeddings, items, scores, sglang, tokenization, vllm
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.keys import OPEN_PATHS
from tokenwire_reference.doors.schemas import request_schema
from tokenwire_reference.doors.served import served_by

BODIES: Mapping[Callable[..., Any], str] = {
    sglang.generate.generate: "generate-request",
    sglang.chat.chat_completions: "chat-request",
    sglang.completions.completions: "completion-request",
    items.responses.responses: "responses-request",
    items.messages.messages: "messages-request",
    items.messages.count_tokens: "messages-request",
    embeddings.embeddings: "embedding-request",
    embeddings.encode: "encode-request",
    scores.score: "score-request",
    scores.rerank: "rerank-request",
    scores.classify: "embedding-request",
    tokenization.tokenize: "tokenize-request",
    tokenization.detokenize: "detokenize-request",
    vllm.chat.chat_completions: "vllm-chat-request",
    vllm.completions.completions: "vllm-completion-request",
    vllm.generate.generate: "vllm-generate-request",
    vllm.server.abort_requests: "abort-requests-request",
    sglang.control.abort_request: "abort-request",
    sglang.control.pause_generation: "pause-request",
    sglang.control.update_weights: "update-weights-request",
    sglang.control.open_session: "open-session-request",
    sglang.control.close_session: "close-session-request",
    adapters.load_adapter: "load-adapter-request",
    adapters.unload_adapter: "unload-adapter-request",
    sglang.control.continue_generation: "continue-request",
}
"""The schema that the bodies of each endpoint are held against."""
MAY_BE_EMPTY = frozenset({sglang.control.continue_generation})
_KEY = "key"


async def openapi(http_request: HttpRequest) -> Response:
    """Describe the server."""
    keyed = served_by(http_request).args.api_key is not None
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for route in http_request.app.routes:
        path = route.path.replace(":path}", "}")
        for method in sorted(route.methods - {"HEAD"}):
            operation = _operation(route)
            if keyed and path not in OPEN_PATHS:
                operation["security"] = [{_KEY: []}]
            paths.setdefault(path, {})[method.lower()] = operation
        if (name := BODIES.get(route.endpoint)) is not None:
            schemas |= _component(name)
    return json_answer(
        {
            "openapi": "3.1.0",
            "info": {"title": "The Tokenwire reference engine", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}} if keyed else {},
            },
        }
    )


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ],
        "responses": {"200": {"description": "The answer."}, "4XX": {"description": "What to send instead."}},
    }
    if (name := BODIES.get(route.endpoint)) is not None:
        schema = {"$ref": f"#/components/schemas/{name}"}
        operation["requestBody"] = {
            "required": route.endpoint not in MAY_BE_EMPTY,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _component(name: str) -> dict[str, Any]:
    """A request schema and its definitions under names of their own: in components, tools heed no `$id`."""
    text = json.dumps(request_schema(name)).replace('"#/$defs/', f'"#/components/schemas/{name}.')
    schema = json.loads(text)
    definitions = schema.pop("$defs", {})
    keywords = {word: value for word, value in schema.items() if word not in {"$schema", "$id"}}
    return {name: keywords, **{f"{name}.{inner}": value for inner, value in definitions.items()}}
