"""The largest legal value of each published field, and the waiting time of other requests meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from proofs.soaking.figures import Figures
from proofs.soaking.serving import Served

MOST_WAIT_S = 10.0
"""The limit for a request of four tokens while other requests have the largest values."""
_MOST_BYTES = 2_000_000
"""The maximum number of bytes of one value, so that a body has space for several values."""
_MANY: dict[str, Any] = {"input_ids": [[5] * 40] * 1024, "sampling_params": {"n": 4, "max_new_tokens": 1}}
PRODUCTS: Mapping[str, Mapping[str, Any]] = {
    "stop ids for each of 4,096 samples": {"stop_token_ids": list(range(500)) * 2},
    "biases for each of 4,096 samples": {"logit_bias": {str(i): 1 for i in range(700)}},
    "patterns for each of 4,096 samples": {"stop_regex": [f"[a-z]{{20}}{i}" for i in range(32)]},
    "strings for each of 4,096 samples": {"stop": ["x" * 1000 + str(i) for i in range(32)]},
}
"""Sampling parameters of the largest batch. The server processes them for each sample of the batch."""

Request = tuple[str, str, Any]
"""A request's description, path and body."""


def requests(document: Mapping[str, Any]) -> Iterator[Request]:
    """Yield a request for each field of each endpoint in `/openapi.json`, and for each entry of
    `PRODUCTS`.
    """
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        for media in content.values():
            schema = _target(media["schema"], schemas)
            smallest: dict[str, Any] = dict((schema.get("examples") or [{}])[0])
            if "model" in schema["properties"]:
                smallest["model"] = "builtin:tiny"
            for place, body in _with_largest(schema, smallest, schemas):
                yield f"{path} {place}", path, body
    for name, more in PRODUCTS.items():
        yield name, "/generate", {**_MANY, "sampling_params": {**_MANY["sampling_params"], **more}}


def _with_largest(
    schema: Mapping[str, Any], smallest: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for name, field in schema["properties"].items():
        target = _target(field, schemas)
        for part in (_target(part, schemas) for part in target.get("anyOf", [target])):
            if "properties" in part:
                given = smallest.get(name)
                inner = given if isinstance(given, dict) else {}
                for place, value in _with_largest(part, inner, schemas):
                    yield f"{name}.{place}", {**smallest, name: value}
            elif part.get("type", "null") not in ("boolean", "null", ["boolean", "null"]):
                yield name, {**smallest, name: largest(part, schemas)}


def _target(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    target: Mapping[str, Any] = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return target


def largest(schema: Mapping[str, Any], schemas: Mapping[str, Any], room: int = _MOST_BYTES) -> Any:
    """Return the largest value that a schema allows, limited to about `room` bytes of JSON."""
    schema = _target(schema, schemas)
    if "anyOf" in schema:
        return max(
            (largest(part, schemas, room) for part in schema["anyOf"]), key=lambda v: len(json.dumps(v))
        )
    types = schema.get("type", "null")
    if "array" in types:
        item = largest(schema.get("items", {}), schemas, room // 8)
        return [item] * min(schema["maxItems"], room // (len(json.dumps(item)) + 1) or 1)
    if "string" in types:
        return "x" * min(schema["maxLength"], room)
    if "object" in types:
        if "properties" in schema:
            fields = schema["properties"].items()
            return {name: largest(field, schemas, room // len(fields)) for name, field in fields}
        value = largest(schema.get("additionalProperties", {}), schemas, 100)
        return {str(number): value for number in range(schema["maxProperties"])}
    if "integer" in types or "number" in types:
        return schema.get("maximum", 699)
    return (
        schema.get("const", True)
        if "boolean" in types or "const" in schema
        else schema.get("enum", [None])[-1]
    )


async def largest_values(figures: Figures, server: Served) -> None:
    """Send all these requests, while another client sends short requests."""
    document = json.loads((await server.ask("/openapi.json")).partition(b"\r\n\r\n")[2])
    waits: list[tuple[float, str]] = []
    asked, wrong, what = 0, [], ""

    async def neighbour() -> None:
        body = {"input_ids": [5] * 8, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        while True:
            began, beside = time.monotonic(), what
            await server.counted("/generate", body)
            waits.append((time.monotonic() - began, beside))
            await asyncio.sleep(0.05)

    waiting = asyncio.create_task(neighbour())
    try:
        for what, path, body in requests(document):
            asked += 1
            answer = await server.ask(path, body)
            if answer[9:10] not in {b"2", b"4"}:
                wrong.append(f"{what}: {answer[:200]!r}")
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
    longest, beside = max(waits)
    figures.demand(
        f"{asked} largest values", "none failed", "; ".join(wrong)[:500] or "none", holds=not wrong
    )
    figures.demand(
        "four tokens beside them",
        f"in less than {MOST_WAIT_S:.0f} s",
        f"{longest:.1f} s beside {beside}",
        holds=longest < MOST_WAIT_S,
    )
