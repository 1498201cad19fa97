"""`/v1/systemone`, and `/v1/decisions` in OpenAI's shape: answers to questions as probabilities of options.

The prompt of a question ends where the model would name an option by a letter or a digit. The probabilities
are those of these tokens, divided by their sum.
"""

from __future__ import annotations

import math
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.doors.answering import answer_whole
from tokenwire_reference.doors.body import read_body, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.prompts import encode
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import refuse_what_does_not_fit
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed

_ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class _Question:
    kind: str
    text: str
    options: tuple[str, ...]
    """The names of the options; for a score the levels."""

    @property
    def labels(self) -> str:
        return (string.digits if self.kind == "score" else string.ascii_uppercase)[: len(self.options)]

    def prompt(self, state: str) -> str:
        lines = (f"{label}: {option}" for label, option in zip(self.labels, self.options, strict=True))
        return "\n".join([state, self.text, *lines, "Answer:"])


async def systemone(http_request: HttpRequest) -> Response:
    """Answer POST /v1/systemone: questions and answers by name."""
    served, body = served_by(http_request), await read_body(http_request, "systemone-request")
    if not body.get("questions"):
        raise RefusalError("questions is empty; send at least one question", param="questions")
    asked = {name: _named_question(name, question) for name, question in body["questions"].items()}

    def write(results: Sequence[Emission]) -> dict[str, Any]:
        answers = zip(asked.items(), map(_probabilities, results), strict=True)
        totals = Consumed.by(results, 1)
        return {
            "id": f"decision-{uuid.uuid4().hex}",
            "object": "structured_decision",
            "model": body.get("model") or served.args.model_name,
            "answers": {name: _named_answer(question, given) for (name, question), given in answers},
            "usage": {"input_tokens": totals.prompt, "output_tokens": totals.completion},
        }

    return await _decide(http_request, served, body.get("state") or "", list(asked.values()), write)


def _named_question(name: str, question: Mapping[str, Any]) -> _Question:
    kind, criteria = question["type"], question.get("criteria")
    options: Sequence[str] = ("yes", "no")
    if kind != "noul":
        if not criteria or isinstance(criteria, list) != (kind == "score"):
            due = "a list of levels" if kind == "score" else "an object of options"
            raise RefusalError(f"the criteria of question {name!r} must be {due}", param="questions")
        options = list(criteria)
    return _Question(kind, question.get("instructions") or name, tuple(options))


def _named_answer(question: _Question, given: Sequence[float]) -> dict[str, Any]:
    names = list(map(str, range(len(given)))) if question.kind == "score" else list(question.options)
    if question.kind == "noul":
        return {"type": "noul", "noul": given[0]}
    found = _decision(question, given)
    if question.kind == "score":
        found["legend"] = dict(zip(names, question.options, strict=True))
    return {**found, "probabilities": dict(zip(names, given, strict=True))}


async def decisions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/decisions in OpenAI's shape: a list of questions and a list of answers."""
    served, body = served_by(http_request), await read_body(http_request, "decisions-request")
    given = body["questions"]
    asked = [_listed_question(question) for question in given]

    def write(results: Sequence[Emission]) -> dict[str, Any]:
        totals = Consumed.by(results, 1)
        counts = {"input_tokens": totals.prompt, "output_tokens": totals.completion}
        rows = zip(given, asked, map(_probabilities, results), strict=True)
        return {
            "model": body.get("model") or served.args.model_name,
            "answers": [_listed_answer(source, question, shares) for source, question, shares in rows],
            "usage": {
                **counts,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": sum(counts.values()),
            },
        }

    return await _decide(http_request, served, body["input"], asked, write)


def _listed_question(question: Mapping[str, Any]) -> _Question:
    kind = question["type"]
    if kind == "predicate":
        return _Question(kind, question["instructions"], ("true", "false"))
    field, name = ("levels", "label") if kind == "score" else ("choices", "value")
    options = [str(option.get(name)) for option in question.get(field) or ()]
    if not options:
        raise RefusalError(f"a {kind} question needs {field}", param="questions")
    return _Question(kind, question["instructions"], tuple(options))


def _listed_answer(source: Mapping[str, Any], question: _Question, given: Sequence[float]) -> dict[str, Any]:
    head = {"type": question.kind, "name": source.get("name")}
    if question.kind == "predicate":
        return {**head, "probability": given[0]}
    values: Sequence[Any] = range(len(given)) if question.kind == "score" else question.options
    shares = [{"value": value, "probability": share} for value, share in zip(values, given, strict=True)]
    if question.kind == "score":
        shares = [entry | {"label": label} for entry, label in zip(shares, question.options, strict=True)]
    return {**head, **_decision(question, given), "probabilities": shares}


def _decision(question: _Question, given: Sequence[float]) -> dict[str, Any]:
    """Return what follows from the probabilities: the likeliest option, or the mean of the levels."""
    top = max(given)
    found: dict[str, Any] = {"type": question.kind, "confidence": top}
    if question.kind == "score":
        return {**found, "score": math.fsum(level * share for level, share in enumerate(given))}
    return {**found, "choice": question.options[list(given).index(top)]}


async def _decide(
    http_request: HttpRequest, served: Served, state: str, questions: Sequence[_Question], write: Any
) -> Response:
    def read() -> list[Request]:
        return [_request(question, state, served) for question in questions]

    requests = await understood(http_request, read)
    return await answer_whole(http_request, served, requests, group=None, write=write)


def _request(question: _Question, state: str, served: Served) -> Request:
    """Return the request for the probabilities of the labels. Raises RefusalError."""
    most = len(string.digits if question.kind == "score" else string.ascii_uppercase)
    if len(question.options) > most:
        raise RefusalError(f"a {question.kind} question has at most {most} options", param="questions")
    prompt = encode(question.prompt(state), "questions", served)
    refuse_what_does_not_fit(len(prompt), _ONE_TOKEN, served.model.context_length)
    assert served.tokenizer is not None, "a text without a tokenizer is refused"
    ids = tuple(served.tokenizer.encode(label, add_special_tokens=False)[-1] for label in question.labels)
    return Request(uuid.uuid4().hex, tuple(prompt), _ONE_TOKEN, return_logprob=True, token_ids_logprob=ids)


def _probabilities(result: Emission) -> list[float]:
    """Return the probabilities of the labels, divided by their sum."""
    rows = result.series.get("output_token_ids_logprobs") or ()
    if not rows:
        raise RefusalError(f"request {result.record.rid!r} was aborted before it had probabilities")
    shares = [math.exp(entry[0]) for entry in rows[0]]
    return [share / math.fsum(shares) for share in shares]
