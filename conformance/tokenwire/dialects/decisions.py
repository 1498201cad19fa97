"""Decisions: answers to questions as probabilities, in the three shapes of released servers.

`spec/decisions.yaml` has the requests. The questions are a list or an object, and so are the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.wire.exchange import HttpRequest

_OPTIONS = ("choices", "options", "criteria")
_LEVELS = ("levels", "criteria")
_YES_NO = frozenset({"noul", "predicate", "yes_no"})
_NAMES = ("value", "name")
_PROBABILITY = ("noul", "probability")


@dataclass(frozen=True)
class Decided:
    """A question with its answer."""

    key: str | int
    """The name of the answer in an object, or its position in a list."""
    question: Mapping[str, Any]
    answer: Any
    """The answer; None if it is missing."""

    @property
    def pointer(self) -> str:
        return f"/answers/{self.key}"

    @property
    def kind(self) -> str:
        return str(self.question.get("type"))

    @property
    def found(self) -> Mapping[str, Any]:
        """The fields of the answer; empty if it is not an object."""
        return self.answer if isinstance(self.answer, Mapping) else {}

    @property
    def options(self) -> list[str]:
        """The names of the options, in the order of the question."""
        if self.kind in _YES_NO:
            return ["yes", "no"]
        given = next((self.question[name] for name in _fields_of(self.kind) if name in self.question), ())
        if self.kind == "score":
            return [str(level) for level in range(len(given))]
        return [_option_name(option) for option in given]

    @property
    def probabilities(self) -> dict[str, Any]:
        """The probability of each option by name. A yes or no may have only the probability of yes."""
        given = self.found.get("probabilities")
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, list):
            return {
                _option_name(entry): entry.get("probability") for entry in given if isinstance(entry, Mapping)
            }
        name = next((name for name in _PROBABILITY if name in self.found), None)
        return {} if name is None else {"yes": self.found[name]}


def _fields_of(kind: str) -> tuple[str, ...]:
    return _LEVELS if kind == "score" else _OPTIONS


def _option_name(option: Any) -> str:
    if isinstance(option, Mapping):
        option = next((option[name] for name in _NAMES if name in option), None)
    return str(option)


def decided(body: Any, document: Mapping[str, Any]) -> Iterator[Decided]:
    """Yield the questions of a request with their answers."""
    answers = document.get("answers")
    for position, (key, question) in enumerate(_keyed(body)):
        if not isinstance(question, Mapping):
            continue
        if isinstance(answers, list):
            yield Decided(position, question, answers[position] if position < len(answers) else None)
        else:
            name = question.get("id", key)
            yield Decided(name, question, answers.get(name) if isinstance(answers, Mapping) else None)


def _keyed(body: Any) -> list[tuple[Any, Any]]:
    """Return the questions of a request, each with its name or position."""
    questions = body.get("questions") if isinstance(body, Mapping) else None
    if isinstance(questions, Mapping):
        return list(questions.items())
    return list(enumerate(questions)) if isinstance(questions, list) else []


@cache
def decision_paths() -> frozenset[str]:
    """Return the paths of all endpoints for decisions."""
    return frozenset(row["path"] for row in read_yaml(spec_root() / "decisions.yaml"))


def decision_requests(family: str, model: str) -> Iterator[list[HttpRequest]]:
    """Yield, for each endpoint of a family, the request with all questions, and one for each question."""
    for row in read_yaml(spec_root() / "decisions.yaml"):
        if family not in row["families"]:
            continue
        whole = {"model": model, **row["body"]}
        given = whole["questions"]
        alone = (
            [{key: value} for key, value in given.items()]
            if isinstance(given, dict)
            else [[q] for q in given]
        )
        bodies = [whole, *({**whole, "questions": questions} for questions in alone)]
        yield [HttpRequest("POST", row["path"], body) for body in bodies]
