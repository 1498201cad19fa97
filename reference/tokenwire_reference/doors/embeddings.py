"""`/v1/embeddings` and `/encode`: one vector for each prompt."""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.doors.adapters import adapter_of
from tokenwire_reference.doors.answering import answer_whole
from tokenwire_reference.doors.body import read_body, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.prompts import read_prompts
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import refuse_what_does_not_fit
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed

_NOTHING_SAMPLED = SamplingParams(max_new_tokens=0)


async def embeddings(http_request: HttpRequest) -> Response:
    """Answer POST /v1/embeddings in OpenAI's shape."""
    served = served_by(http_request)
    body, requests = await read_inputs(http_request, served)
    return await answer_whole(
        http_request, served, requests, group=None, write=lambda results: _listed(results, body, served)
    )


def _listed(results: Sequence[Emission], body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    as_base64 = body.get("encoding_format") == "base64"
    data = []
    for result in results:
        vector = _shortened(embedding_of(result), body.get("dimensions"))
        item: dict[str, Any] = {
            "object": "embedding",
            "embedding": _packed(vector) if as_base64 else vector,
            "index": result.index,
        }
        if body.get("return_prompt_token_ids"):
            item["prompt_token_ids"] = result.record.prompt_token_ids
        data.append(item)
    return {"object": "list", "data": data} | model_and_usage(results, body, served)


def model_and_usage(results: Sequence[Emission], body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Return the fields `model` and `usage` of an answer."""
    totals = Consumed.by(results, 1).totals
    usage = {name: totals[name] for name in ("prompt_tokens", "total_tokens")}
    return {"model": body.get("model") or served.args.model_name, "usage": usage}


async def encode(http_request: HttpRequest) -> Response:
    """Answer POST and PUT /encode, SGLang's native endpoint: one object, or a list of them for a batch."""
    served = served_by(http_request)
    body = await read_body(http_request, "encode-request", "text", "input_ids")
    name = "text" if body.get("input_ids") is None else "input_ids"
    if body.get(name) is None:
        raise RefusalError("neither text nor input_ids is given; send one of them as the prompt")
    rid = body.get("rid")

    def read() -> tuple[list[Request], bool]:
        prompts, is_batch = read_prompts(body[name], name, served)
        rids = _rids(rid, len(prompts), is_batch=is_batch)
        return embedding_requests(prompts, body, served, rids), is_batch

    requests, is_batch = await understood(http_request, read)

    def write(results: Sequence[Emission]) -> Json:
        with_ids = bool(body.get("return_prompt_token_ids"))
        answers = [_encoded(result, with_ids=with_ids) for result in results]
        return answers if is_batch else answers[0]

    group = rid if isinstance(rid, str) else None
    return await answer_whole(http_request, served, requests, group=group, write=write)


async def read_inputs(http_request: HttpRequest, served: Served) -> tuple[dict[str, Any], list[Request]]:
    """Return the body of a request for embeddings or classes, and the request of each input. Raises
    RefusalError.
    """
    body = await read_body(http_request, "embedding-request", "input")

    def read() -> list[Request]:
        prompts, _ = read_prompts(body["input"], "input", served)
        prompts = _truncated(prompts, body.get("truncate_prompt_tokens"), served)
        return embedding_requests(prompts, body, served)

    return body, await understood(http_request, read)


def _truncated(prompts: list[list[int]], keep: int | None, served: Served) -> list[list[int]]:
    """Return the last ids of each prompt, as in vLLM; -1 keeps as many ids as fit into the context."""
    room = served.model.context_length - 1
    if keep is not None and (keep > room or keep == 0):
        words = f"truncate_prompt_tokens is {keep}; keep 1 to {room} tokens, or -1 for as many as fit"
        raise RefusalError(words, param="truncate_prompt_tokens")
    return prompts if keep is None else [ids[-(room if keep < 0 else keep) :] for ids in prompts]


def _rids(rid: str | Sequence[str] | None, count: int, *, is_batch: bool) -> list[str] | None:
    if rid is None:
        return None
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_batch else [rid]
    if len(rid) != count:
        raise RefusalError(f"rid has {len(rid)} entries for {count} prompts; send one for each", param="rid")
    return list(rid)


def embedding_requests(
    prompts: Sequence[Sequence[int]],
    body: Mapping[str, Any],
    served: Served,
    rids: Sequence[str] | None = None,
) -> list[Request]:
    """Return a request for each prompt.

    Requests without a given id get a new id. Raises RefusalError if a prompt is too long.
    """
    for prompt in prompts:
        refuse_what_does_not_fit(len(prompt), _NOTHING_SAMPLED, served.model.context_length)
    adapter = adapter_of(body, served)
    return [
        Request(rid, tuple(prompt), _NOTHING_SAMPLED, extras={WANTS_EMBEDDING: True}, adapter=adapter)
        for rid, prompt in zip(rids or [uuid.uuid4().hex for _ in prompts], prompts, strict=True)
    ]


def embedding_of(result: Emission) -> Sequence[float]:
    embedding = EMBEDDING.of(result.record)
    if embedding is None:
        raise RefusalError(f"request {result.record.rid!r} was aborted before it had an embedding")
    return embedding


def _encoded(result: Emission, *, with_ids: bool) -> dict[str, Any]:
    answer = {
        "embedding": embedding_of(result),
        "meta_info": {
            "id": result.record.rid,
            "finish_reason": result.finish.to_wire() if result.finish else None,
            "prompt_tokens": len(result.record.prompt_token_ids),
            "weight_version": result.record.weight_version,
            "num_retractions": result.record.num_retractions,
            "cached_tokens": result.record.cached_tokens,
            "e2e_latency": result.seconds,
        },
    }
    return answer | ({"prompt_token_ids": result.record.prompt_token_ids} if with_ids else {})


def _shortened(vector: Sequence[float], dimensions: int | None) -> list[float]:
    """Return the first dimensions of a vector, rescaled to length 1."""
    if dimensions is None:
        return list(vector)
    if dimensions > len(vector):
        raise RefusalError(
            f"dimensions is {dimensions}, but the embedding has {len(vector)}; request at most {len(vector)}",
            param="dimensions",
        )
    head = vector[:dimensions]
    length = math.hypot(*head) or 1.0
    return [value / length for value in head]


def _packed(vector: Sequence[float]) -> str:
    """Return little-endian float32 in base64, as OpenAI's client expects."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
