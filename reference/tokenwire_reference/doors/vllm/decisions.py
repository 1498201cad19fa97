"""vLLM's `/v1/systemone`, and `/v1/decisions` in OpenAI's form: a list of questions and of answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import read_body
from tokenwire_reference.doors.decisions import Decision, Question, decide, named_questions
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.served import served_by
from tokenwire_reference.doors.usage import Consumed


async def systemone(http_request: HttpRequest) -> Response:
    """Answer POST /v1/systemone: questions and answers by name."""
    served, body = served_by(http_request), await read_body(http_request, "systemone-request")
    asked = named_questions(body)

    def write(found: Sequence[Decision], totals: Consumed) -> dict[str, Any]:
        named = dict(zip(asked, found, strict=True))
        return {
            "id": f"decision-{uuid.uuid4().hex}",
            "object": "structured_decision",
            "model": body.get("model") or served.args.model_name,
            "answers": {name: _named_answer(decision) for name, decision in named.items()},
            "usage": {"input_tokens": totals.prompt, "output_tokens": totals.completion},
            "diagnostics": {name: {"label_mass": decision.mass} for name, decision in named.items()},
        }

    return await decide(http_request, served, body.get("state") or "", list(asked.values()), write)


def _named_answer(decision: Decision) -> dict[str, Any]:
    question, shares = decision.question, decision.probabilities
    confidence = {"confidence": decision.top * decision.mass}
    if question.kind == "noul":
        return {"type": question.kind, "noul": shares["yes"], "probabilities": shares, **confidence}
    legend = (
        {"legend": dict(zip(question.names, question.options, strict=True))} if question.is_leveled else {}
    )
    return {"type": question.kind, **decision.result, **legend, "probabilities": shares, **confidence}


async def decisions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/decisions."""
    served, body = served_by(http_request), await read_body(http_request, "decisions-request")
    sources = body["questions"]
    asked = [_question(source) for source in sources]

    def write(found: Sequence[Decision], totals: Consumed) -> dict[str, Any]:
        counts = {"input_tokens": totals.prompt, "output_tokens": totals.completion}
        return {
            "model": body.get("model") or served.args.model_name,
            "answers": [_answer(*pair) for pair in zip(sources, found, strict=True)],
            "usage": {
                **counts,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": sum(counts.values()),
            },
        }

    return await decide(http_request, served, body["input"], asked, write)


def _question(source: Mapping[str, Any]) -> Question:
    kind = source["type"]
    if kind == "predicate":
        return Question(kind, source["instructions"], ("true", "false"))
    field, name = ("levels", "label") if kind == "score" else ("choices", "value")
    options = [str(option.get(name)) for option in source.get(field) or ()]
    if not options:
        raise RefusalError(f"a {kind} question needs {field}", param="questions")
    return Question(kind, source["instructions"], tuple(options))


def _answer(source: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    question = decision.question
    head = {"type": question.kind, "name": source.get("name")}
    if question.kind == "predicate":
        return {**head, "probability": decision.shares[0]}
    values: Sequence[Any] = range(len(question.options)) if question.is_leveled else question.options
    shares = [
        {"value": value, "probability": share} for value, share in zip(values, decision.shares, strict=True)
    ]
    if question.is_leveled:
        shares = [entry | {"label": label} for entry, label in zip(shares, question.options, strict=True)]
    return {**head, **decision.result, "probabilities": shares, "confidence": decision.top * decision.mass}
