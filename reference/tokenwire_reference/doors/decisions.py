"""Questions that are answered with probabilities of options, for the endpoints of each server family.

The prompt of a question ends where the model would name an option by a letter or a digit. The probabilities
are those of these tokens, divided by their sum.
"""

from __future__ import annotations

import math
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.doors.answering import answer_whole
from tokenwire_reference.doors.body import understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.prompts import encode
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import refuse_what_does_not_fit
from tokenwire_reference.doors.served import Served
from tokenwire_reference.doors.usage import Consumed

_ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class Question:
    """A question and the names of its options, which for a score are its levels."""

    kind: str
    text: str
    options: tuple[str, ...]

    @property
    def is_leveled(self) -> bool:
        return self.kind == "score"

    @property
    def names(self) -> list[str]:
        """The names of the probabilities: the numbers of the levels, or the options."""
        return list(map(str, range(len(self.options)))) if self.is_leveled else list(self.options)

    @property
    def labels(self) -> str:
        return (string.digits if self.is_leveled else string.ascii_uppercase)[: len(self.options)]

    def prompt(self, state: str) -> str:
        lines = (f"{label}: {option}" for label, option in zip(self.labels, self.options, strict=True))
        return "\n".join([state, self.text, *lines, "Answer:"])


@dataclass(frozen=True)
class Decision:
    """The answer to a question."""

    question: Question
    shares: Sequence[float]
    """The probability of each option."""
    mass: float
    """The probability of all options in the vocabulary."""
    prompt: Sequence[int]
    labels: Sequence[int]
    """The token ids of the prompt and of the options."""

    @property
    def top(self) -> float:
        return max(self.shares)

    @property
    def probabilities(self) -> dict[str, float]:
        return dict(zip(self.question.names, self.shares, strict=True))

    @property
    def result(self) -> dict[str, Any]:
        """The likeliest option, or the mean of the levels."""
        if self.question.is_leveled:
            return {"score": math.fsum(level * share for level, share in enumerate(self.shares))}
        return {"choice": self.question.options[list(self.shares).index(self.top)]}


Write = Callable[[Sequence[Decision], Consumed], dict[str, Any]]
"""Returns the document of an answer."""


async def decide(
    http_request: HttpRequest,
    served: Served,
    state: str,
    questions: Sequence[Question],
    write: Write,
    *,
    temperature: float = 1.0,
) -> Response:
    """Answer questions about a text. Raises RefusalError."""

    def read() -> list[Request]:
        return [_request(question, state, served) for question in questions]

    def written(results: Sequence[Emission]) -> dict[str, Any]:
        pairs = zip(questions, results, strict=True)
        found = [_decision(question, result, temperature) for question, result in pairs]
        return write(found, Consumed.by(results, 1))

    requests = await understood(http_request, read)
    return await answer_whole(http_request, served, requests, group=None, write=written)


def _request(question: Question, state: str, served: Served) -> Request:
    """Return the request for the probabilities of the labels. Raises RefusalError."""
    most = len(string.digits if question.is_leveled else string.ascii_uppercase)
    if len(question.options) > most:
        raise RefusalError(f"a {question.kind} question has at most {most} options", param="questions")
    prompt = encode(question.prompt(state), "questions", served)
    refuse_what_does_not_fit(len(prompt), _ONE_TOKEN, served.model.context_length)
    assert served.tokenizer is not None, "a text without a tokenizer is refused"
    ids = tuple(served.tokenizer.encode(label, add_special_tokens=False)[-1] for label in question.labels)
    return Request(uuid.uuid4().hex, tuple(prompt), _ONE_TOKEN, return_logprob=True, token_ids_logprob=ids)


def _decision(question: Question, result: Emission, temperature: float) -> Decision:
    """Return the answer to a question. Raises RefusalError if its request was aborted."""
    rows = result.series.get("output_token_ids_logprobs") or ()
    if not rows:
        raise RefusalError(f"request {result.record.rid!r} was aborted before it had probabilities")
    logprobs = [entry[0] for entry in rows[0]]
    scaled = [math.exp((logprob - max(logprobs)) / temperature) for logprob in logprobs]
    return Decision(
        question=question,
        shares=[share / math.fsum(scaled) for share in scaled],
        mass=math.fsum(map(math.exp, logprobs)),
        prompt=result.record.prompt_token_ids,
        labels=result.record.token_ids_logprob or (),
    )


def named_questions(body: Mapping[str, Any]) -> dict[str, Question]:
    """Return the questions of `/v1/systemone`. Raises RefusalError."""
    if not body.get("questions"):
        raise RefusalError("questions is empty; send at least one question", param="questions")
    return {name: _named_question(name, source) for name, source in body["questions"].items()}


def _named_question(name: str, source: Mapping[str, Any]) -> Question:
    kind, criteria = source["type"], source.get("criteria")
    options: Sequence[str] = ("yes", "no")
    if kind != "noul":
        if not criteria or isinstance(criteria, list) != (kind == "score"):
            due = "a list of levels" if kind == "score" else "an object of options"
            raise RefusalError(f"the criteria of question {name!r} must be {due}", param="questions")
        options = list(criteria)
    return Question(kind, source.get("instructions") or name, tuple(options))
