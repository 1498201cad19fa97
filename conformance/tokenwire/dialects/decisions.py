"""Decisions: answers to questions as probabilities, in the forms of `spec/decisions.yaml`.

The questions are a list or an object, and so are the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import ABSENT, Pointer, find, join

_LEVELED = "score"
"""The type of questions whose options are numbered."""
Option = str | bool
"""The name of an option. A text and a boolean are different options."""


@dataclass(frozen=True)
class DecisionForm:
    """The names of the parts of a request and its answer at one endpoint; a row of `spec/decisions.yaml`."""

    path: str
    families: tuple[str, ...]
    asks: str
    options: Mapping[str, str]
    input: str
    output: str
    body: Mapping[str, Any]
    option: str = ""
    answer: str = ""
    of_yes: str = ""
    refusal: str = ""
    shares: tuple[Pointer, ...] = ()


@dataclass(frozen=True)
class Decided:
    """A question with its answer."""

    form: DecisionForm
    key: str | int
    """The name of the answer in an object, or its position in a list."""
    question: Mapping[str, Any]
    answer: Any
    """The answer; None if it is missing."""
    document: Mapping[str, Any]

    @property
    def pointer(self) -> str:
        return join("answers", self.key)

    @property
    def kind(self) -> str:
        return str(self.question.get("type"))

    @property
    def found(self) -> Mapping[str, Any]:
        """The fields of the answer; empty if it is not an object."""
        return self.answer if isinstance(self.answer, Mapping) else {}

    @property
    def is_refused(self) -> bool:
        """True if the server declined to answer this question, in a form that allows it."""
        return bool(self.form.refusal) and self.found.get("type") == self.form.refusal

    @property
    def options(self) -> list[Option]:
        """The names of the options, in the order of the question."""
        if self.kind not in self.form.options:
            return ["yes", "no"]
        given = self.question.get(self.form.options[self.kind]) or ()
        return [
            str(place) if self.kind == _LEVELED else self._name(option) for place, option in enumerate(given)
        ]

    def _name(self, option: Any) -> Option:
        name = option.get(self.form.option) if isinstance(option, Mapping) else option
        return name if isinstance(name, bool) and self.kind != _LEVELED else str(name)

    @property
    def yes(self) -> Any:
        """The probability of yes in a field of its own; None without one."""
        return None if self.kind in self.form.options else self.found.get(self.form.of_yes)

    @property
    def probabilities(self) -> dict[Option, Any]:
        """The probability of each option by name. A yes or no may have only the probability of yes."""
        given = self.found.get("probabilities")
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, list):
            entries = [entry for entry in given if isinstance(entry, Mapping)]
            name = "value" if self.kind == _LEVELED else self.form.option
            return {self._name(entry.get(name)): entry.get("probability") for entry in entries}
        return {} if self.yes is None else {"yes": self.yes}

    @property
    def shares(self) -> list[tuple[str, Any]]:
        """The confidence, and the probability of all options in the vocabulary, each with its pointer."""
        places = [tuple(str(self.key) if key == "{}" else key for key in keys) for keys in self.form.shares]
        found = [(join(*keys), find(self.document, keys)) for keys in places]
        return [(pointer, share) for pointer, share in found if share is not ABSENT]


def decided(request: HttpRequest, document: Mapping[str, Any]) -> Iterator[Decided]:
    """Yield the questions of a request with their answers."""
    answers, form = document.get("answers"), form_of(request)
    for position, (key, question) in enumerate(_keyed(request.body)):
        if not isinstance(question, Mapping):
            continue
        if isinstance(answers, list):
            answer = answers[position] if position < len(answers) else None
            yield Decided(form, position, question, answer, document)
        else:
            name = question.get(form.answer, key)
            answer = answers.get(name) if isinstance(answers, Mapping) else None
            yield Decided(form, name, question, answer, document)


def _keyed(body: Any) -> list[tuple[Any, Any]]:
    """Return the questions of a request, each with its name or position."""
    questions = body.get("questions") if isinstance(body, Mapping) else None
    if isinstance(questions, Mapping):
        return list(questions.items())
    return list(enumerate(questions)) if isinstance(questions, list) else []


@cache
def forms() -> tuple[DecisionForm, ...]:
    """Return the forms of all endpoints for decisions."""
    path = spec_root() / "decisions.yaml"
    return tuple(typed(DecisionForm, row, path.name) for row in read_yaml(path))


@cache
def decision_paths() -> frozenset[str]:
    """Return the paths of all endpoints for decisions."""
    return frozenset(form.path for form in forms())


def form_of(request: HttpRequest) -> DecisionForm:
    """Return the form of a request: that of its questions, or else the first of its path."""
    same = [form for form in forms() if form.path == request.path]
    questions = [question for _, question in _keyed(request.body) if isinstance(question, Mapping)]
    return next((form for form in same if any(form.asks in question for question in questions)), same[0])


def decision_requests(family: str, model: str) -> Iterator[list[HttpRequest]]:
    """Yield, for each endpoint of a family, the request with all questions, and one for each question."""
    for form in forms():
        if family not in form.families:
            continue
        whole = {"model": model, **form.body}
        named = isinstance(whole["questions"], Mapping)
        alone = [{key: question} if named else [question] for key, question in _keyed(form.body)]
        bodies = [whole, *({**whole, "questions": questions} for questions in alone)]
        yield [HttpRequest("POST", form.path, body) for body in bodies]
