"""`/openapi.json`: every path of the server, with the schemas that validate its bodies."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from tokenwire_reference import __version__
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.keys import OPEN_PATHS
from tokenwire_reference.doors.schemas import request_schema
from tokenwire_reference.doors.served import served_by

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
_KEY = "key"


class BodyRoute(Route):
    """An endpoint whose bodies are validated against a schema."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        schema: str,
        *,
        methods: Sequence[str] = ("POST",),
        empty: bool = False,
    ) -> None:
        """Initialize. With `empty`, the body may be missing."""
        super().__init__(path, endpoint, methods=list(methods))
        self.schema = schema
        self.empty = empty


async def openapi(http_request: HttpRequest) -> Response:
    """Return the OpenAPI description of the server."""
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
        if isinstance(route, BodyRoute):
            schemas |= _component(route.schema)
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
    if isinstance(route, BodyRoute):
        schema = {"$ref": f"#/components/schemas/{route.schema}"}
        operation["requestBody"] = {
            "required": not route.empty,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _component(name: str) -> dict[str, Any]:
    """Return a request schema and its definitions as named components, because tools ignore `$id` there."""
    text = json.dumps(request_schema(name)).replace('"#/$defs/', f'"#/components/schemas/{name}.')
    schema = json.loads(text)
    definitions = schema.pop("$defs", {})
    keywords = {word: value for word, value in schema.items() if word not in {"$schema", "$id"}}
    return {name: keywords, **{f"{name}.{inner}": value for inner, value in definitions.items()}}
