"""`/v1/embeddings` and `/encode`: prompts in, one vector each out."""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.api.body import hold_against_schema, read_object
from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.event_stream import unless_client_leaves
from tokenwire_reference.api.json_answer import json_answer
from tokenwire_reference.api.prompts import read_prompts
from tokenwire_reference.api.sampling_fields import refuse_what_does_not_fit
from tokenwire_reference.api.submission import raise_for_server_abort, submit
from tokenwire_reference.api.usage import Consumed
from tokenwire_reference.request import Request, SamplingParams
from tokenwire_reference.request_manager import Emission
from tokenwire_reference.served import Served, served_by

_NOTHING_SAMPLED = SamplingParams(max_new_tokens=0)


async def embeddings(http_request: HttpRequest) -> Response:
    """Answer POST /v1/embeddings, in the shape of OpenAI."""
    served = served_by(http_request)
    body = await read_object(http_request)
    if body.get("input") in ("", []):
        raise RefusalError("input is empty; send a text or token ids", param="input")
    hold_against_schema(body, "embedding-request")
    prompts, _ = read_prompts(body["input"], "input", served)
    rids = [uuid.uuid4().hex for _ in prompts]
    results = await _embed(http_request, served, rids, prompts, group=None)
    as_base64 = body.get("encoding_format") == "base64"
    data = []
    for result in results:
        vector = _shortened(result.embedding or (), body.get("dimensions"))
        item: dict[str, Any] = {
            "object": "embedding",
            "embedding": _packed(vector) if as_base64 else vector,
            "index": result.index,
        }
        if body.get("return_prompt_token_ids"):
            item["prompt_token_ids"] = result.prompt_token_ids
        data.append(item)
    totals = Consumed.by(results, 1).totals
    return json_answer(
        {
            "object": "list",
            "data": data,
            "model": body.get("model") or served.args.model_name,
            "usage": {name: totals[name] for name in ("prompt_tokens", "total_tokens")},
        }
    )


async def encode(http_request: HttpRequest) -> Response:
    """Answer POST and PUT /encode, SGLang's native door: one object, or a list of them for a batch."""
    served = served_by(http_request)
    body = await read_object(http_request)
    for name in ("text", "input_ids"):
        if body.get(name) in ("", []):
            raise RefusalError(f"{name} is empty; send a prompt that has tokens", param=name)
    hold_against_schema(body, "encode-request")
    name = "text" if body.get("input_ids") is None else "input_ids"
    if body.get(name) is None:
        raise RefusalError("neither text nor input_ids is given; send one of them as the prompt")
    prompts, is_batch = read_prompts(body[name], name, served)
    rid = body.get("rid")
    rids = _rids(rid, len(prompts), is_batch=is_batch)
    results = await _embed(http_request, served, rids, prompts, group=rid if isinstance(rid, str) else None)
    answers = [_encoded(result, served) for result in results]
    if body.get("return_prompt_token_ids"):
        for answer, result in zip(answers, results, strict=True):
            answer["prompt_token_ids"] = result.prompt_token_ids
    return json_answer(answers if is_batch else answers[0])


def _rids(rid: str | Sequence[str] | None, count: int, *, is_batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_batch else [rid]
    if len(rid) != count:
        raise RefusalError(f"rid has {len(rid)} entries for {count} prompts; send one for each", param="rid")
    return list(rid)


async def _embed(
    http_request: HttpRequest,
    served: Served,
    rids: Sequence[str],
    prompts: Sequence[Sequence[int]],
    *,
    group: str | None,
) -> list[Emission]:
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), _NOTHING_SAMPLED, served.model.context_length)
    requests = [
        Request(rid=rid, prompt_token_ids=tuple(prompt), sampling=_NOTHING_SAMPLED, wants_embedding=True)
        for rid, prompt in zip(rids, prompts, strict=True)
    ]
    generation = submit(served, requests, group=group)
    try:
        results = await unless_client_leaves(http_request, generation.whole())
        raise_for_server_abort(results)
    except BaseException:
        generation.close()
        raise
    for result in results:
        if result.embedding is None:
            raise RefusalError(f"request {result.rid!r} was aborted before it had an embedding")
    return results


def _encoded(result: Emission, served: Served) -> dict[str, Any]:
    return {
        "embedding": result.embedding,
        "meta_info": {
            "id": result.rid,
            "finish_reason": result.finish.to_wire() if result.finish else None,
            "prompt_tokens": len(result.prompt_token_ids),
            "weight_version": served.args.weight_version,
            "num_retractions": result.num_retractions,
            "cached_tokens": result.cached_tokens,
            "e2e_latency": result.seconds,
        },
    }


def _shortened(vector: Sequence[float], dimensions: int | None) -> list[float]:
    """The first dimensions of a vector, again of length 1."""
    if dimensions is None:
        return list(vector)
    if dimensions > len(vector):
        raise RefusalError(
            f"dimensions is {dimensions}, and the embedding has {len(vector)}; ask for fewer",
            param="dimensions",
        )
    head = vector[:dimensions]
    length = math.hypot(*head) or 1.0
    return [value / length for value in head]


def _packed(vector: Sequence[float]) -> str:
    """Little-endian float32 in base64, as OpenAI's client asks for."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
