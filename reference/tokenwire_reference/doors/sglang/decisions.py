"""SGLang's `/v1/systemone` and `/v1/decisions`: a list of questions with ids, and answers by these ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import read_body
from tokenwire_reference.doors.decisions import Decision, Question, decide, named_questions
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.served import served_by
from tokenwire_reference.doors.usage import Consumed

_PROMPT_FORMAT = 1
"""The version of the wording of the prompts."""
_OPTIONS = {"choice": "options", "score": "levels"}


async def systemone(http_request: HttpRequest) -> Response:
    """Answer POST /v1/systemone: questions and answers by name."""
    served, body = served_by(http_request), await read_body(http_request, "systemone-request")
    asked = named_questions(body)

    def write(found: Sequence[Decision], totals: Consumed) -> dict[str, Any]:
        return {
            "model": served.args.model_name,
            "answers": {name: _named_answer(given) for name, given in zip(asked, found, strict=True)},
            "usage": {"input_tokens": totals.prompt, "output_tokens": 0},
        }

    return await decide(http_request, served, body.get("state") or "", list(asked.values()), write)


def _named_answer(decision: Decision) -> dict[str, Any]:
    question, shares = decision.question, decision.probabilities
    mass = {"x_label_mass": decision.mass}
    if question.kind == "noul":
        return {"type": question.kind, "noul": shares["yes"], **mass}
    head = {"type": question.kind, **decision.result, "confidence": _confidence(decision)}
    legend = (
        {"legend": dict(zip(question.names, question.options, strict=True))} if question.is_leveled else {}
    )
    return {**head, **legend, "probabilities": shares, **mass}


def _confidence(decision: Decision) -> float:
    """Return how far the answer is from a guess: 0 if all options are equally likely, 1 if one is certain."""
    shares, count = decision.shares, len(decision.shares)
    if count == 1:
        return 1.0
    if not decision.question.is_leveled:
        return min(1.0, max(0.0, (count * decision.top - 1) / (count - 1)))
    top = list(shares).index(decision.top)
    spread = math.fsum(share * abs(level - top) for level, share in enumerate(shares))
    of_a_guess = math.fsum(abs(level - (count - 1) / 2) for level in range(count)) / count
    return max(0.0, 1 - spread / of_a_guess)


async def decisions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/decisions."""
    served, body = served_by(http_request), await read_body(http_request, "sglang-decisions-request")
    asked = {source["id"]: _question(source) for source in body["questions"]}
    if len(asked) < len(body["questions"]):
        raise RefusalError("two questions have the same id; send different ids", param="questions")
    version = body.get("prompt_format_version")
    if version not in {None, _PROMPT_FORMAT}:
        raise RefusalError(
            f"prompt_format_version is {version}, but this server has version {_PROMPT_FORMAT}",
            param="prompt_format_version",
        )

    def write(found: Sequence[Decision], totals: Consumed) -> dict[str, Any]:
        ids = bool(body.get("return_prompt_token_ids"))
        return {
            "object": "decisions",
            "model": body.get("model") or served.args.model_name,
            "prompt_format_version": _PROMPT_FORMAT,
            "answers": {name: _answer(given, ids=ids) for name, given in zip(asked, found, strict=True)},
            "usage": {"prompt_tokens": totals.prompt, "total_tokens": totals.prompt, "reasoning_tokens": 0},
        }

    heat = body.get("temperature")
    return await decide(
        http_request,
        served,
        body["input"],
        list(asked.values()),
        write,
        temperature=1.0 if heat is None else heat,
    )


def _question(source: Mapping[str, Any]) -> Question:
    kind = source["type"]
    if kind == "yes_no":
        return Question(kind, source["question"], ("yes", "no"))
    given = source.get(_OPTIONS[kind]) or ()
    options = tuple(str(entry.get("name")) if isinstance(entry, Mapping) else entry for entry in given)
    if len(options) < 2 or len(set(options)) < len(options):
        raise RefusalError(
            f"question {source['id']!r} needs at least two different {_OPTIONS[kind]}", param="questions"
        )
    return Question(kind, source["question"], options)


def _answer(decision: Decision, *, ids: bool) -> dict[str, Any]:
    result = {} if decision.question.kind == "yes_no" else decision.result
    of_ids = (
        {"prompt_token_ids": list(decision.prompt), "label_token_ids": list(decision.labels)} if ids else {}
    )
    return {
        "type": decision.question.kind,
        "probabilities": decision.probabilities,
        "label_mass": decision.mass,
        **result,
        **of_ids,
    }
