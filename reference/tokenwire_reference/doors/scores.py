"""`/v1/score`, `/v1/rerank` and `/classify`: computed from embeddings, for models without a scoring or
classification head.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.answering import answer_whole
from tokenwire_reference.doors.body import read_body, understood
from tokenwire_reference.doors.embeddings import (
    embedding_of,
    embedding_requests,
    model_and_usage,
    read_inputs,
)
from tokenwire_reference.doors.prompts import encode
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import served_by


async def score(http_request: HttpRequest) -> Response:
    """Answer POST /v1/score in vLLM's shape: the cosines of one text with others."""

    def write(scores: Sequence[float], _: Mapping[str, Any]) -> dict[str, Any]:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return {"id": f"score-{uuid.uuid4().hex}", "object": "list", "data": data}

    return await _compared(http_request, "score-request", ("text_1", "text_2"), write)


async def rerank(http_request: HttpRequest) -> Response:
    """Answer POST /v1/rerank in vLLM's shape: the documents, sorted by their similarity to the query."""

    def write(scores: Sequence[float], body: Mapping[str, Any]) -> dict[str, Any]:
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.get("top_n")]
        results = [
            {"index": index, "document": {"text": body["documents"][index]}, "relevance_score": scores[index]}
            for index in ranked
        ]
        return {"id": f"rerank-{uuid.uuid4().hex}", "results": results}

    return await _compared(http_request, "rerank-request", ("query", "documents"), write)


async def _compared(http_request: HttpRequest, schema: str, names: tuple[str, str], write: Any) -> Response:
    """Answer with the cosines of one text with others."""
    served, body = served_by(http_request), await read_body(http_request, schema, *names)
    query_name, list_name = names

    def read() -> list[Request]:
        texts = [encode(body.get(query_name) or "", query_name, served)]
        texts += [encode(text, f"{list_name}[{index}]", served) for index, text in enumerate(body[list_name])]
        return embedding_requests(texts, body, served)

    def written(results: Sequence[Emission]) -> dict[str, Any]:
        query, *vectors = map(embedding_of, results)
        scores = [sum(map(mul, query, vector)) for vector in vectors]
        answer: dict[str, Any] = write(scores, body)
        return answer | model_and_usage(results, body, served)

    requests = await understood(http_request, read)
    return await answer_whole(http_request, served, requests, group=None, write=written)


async def classify(http_request: HttpRequest) -> Response:
    """Answer POST /classify, or /v1/classify: each number of an embedding represents a class."""
    served = served_by(http_request)
    body, requests = await read_inputs(http_request, served)

    def write(results: Sequence[Emission]) -> dict[str, Any]:
        data = [_classified(result) for result in results]
        answer = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "data": data}
        return answer | model_and_usage(results, body, served)

    return await answer_whole(http_request, served, requests, group=None, write=write)


def _classified(result: Emission) -> dict[str, Any]:
    weights = [math.exp(number) for number in embedding_of(result)]
    total = sum(weights)
    probs = [weight / total for weight in weights]
    label = f"LABEL_{probs.index(max(probs))}"
    return {"index": result.index, "label": label, "probs": probs, "num_classes": len(probs)}
