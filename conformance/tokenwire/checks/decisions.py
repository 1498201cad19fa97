"""Checks of decisions: the probabilities of options, and the answers that follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.decisions import Decided, Option, decided, form_of
from tokenwire.record import Answer, Place, integer
from tokenwire.requirement import tolerance

_ROUNDING, _APART = tolerance("rounding"), tolerance("apart")


class _Decision(NamedTuple):
    call: ControlCall
    decided: Decided

    def at(self, field: str = "") -> Place:
        return Place(self.call.exchange.name, pointer=f"{self.decided.pointer}/{field}".rstrip("/"))

    @property
    def numbers(self) -> dict[Option, float] | None:
        """The probabilities; None if there are none, or if a value is not a number."""
        found = self.decided.probabilities
        values = found.values()
        if not found or not all(map(_is_number, values)):
            return None
        return {name: float(value) for name, value in found.items()}


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1 + _ROUNDING


def _decisions(target: Target) -> Iterator[_Decision]:
    for call in target.calls:
        if call.action is Action.DECIDE and call.done:
            for one in decided(call.exchange.load().request, call.document):
                yield _Decision(call, one)


@check_run("decisions-answer-their-questions")
def _decisions_answer_their_questions(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that each question has an answer of its type and, if it has a name, of its name.

    A form may allow to decline a question.
    """
    for decision in _decisions(target):
        question, found = decision.decided.question, decision.decided.found
        kind = decision.decided.form.refusal if decision.decided.is_refused else decision.decided.kind
        expected: dict[str, Any] = {"type": kind}
        if "name" in found:
            expected["name"] = question.get("name")
        actual = {name: found.get(name) for name in expected}
        message = f"the answer to question {decision.decided.key!r} is {actual}"
        yield expect(decision.at(), expected, actual, message)


@check_run("decision-probabilities-add-up")
def _decision_probabilities_add_up(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that an answer has a probability for each option, from 0 to 1, with the sum 1."""
    for decision in _decisions(target):
        if decision.decided.found.get("type") != decision.decided.kind:
            continue  # `decisions-answer-their-questions` reports it
        options, given = decision.decided.options, decision.numbers
        values = list((given or {}).values())
        is_short = decision.decided.yes is not None and "probabilities" not in decision.decided.found
        legal = bool(values) and all(map(_is_share, values))
        whole = is_short or (
            set(given or {}) == set(options) and math.isclose(math.fsum(values), 1, abs_tol=_ROUNDING)
        )
        expected = f"probabilities of {', '.join(map(str, options))} whose sum is 1"
        message = f"the probabilities are {decision.decided.probabilities!r:.200}"
        yield expect(decision.at("probabilities"), expected, given, message, holds=legal and whole)


@check_run("decision-yes-is-one-number")
def _decision_yes_is_one_number(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare the probability of yes in a field of its own with that among the probabilities."""
    for decision in _decisions(target):
        listed, yes = decision.decided.found.get("probabilities"), decision.decided.yes
        if yes is None or not isinstance(listed, Mapping) or "yes" not in listed:
            continue
        expected, field = listed["yes"], decision.decided.form.of_yes
        holds = _is_number(yes) and _is_number(expected) and math.isclose(yes, expected, abs_tol=_ROUNDING)
        message = f"{field} is {yes!r}, but the probability of yes is {expected!r}"
        yield expect(decision.at(field), expected, yes, message, holds=holds)


@check_run("decision-confidence-is-a-share")
def _decision_confidence_is_a_share(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a confidence, and the probability of all options in the vocabulary, are from 0 to 1."""
    for decision in _decisions(target):
        for pointer, value in decision.decided.shares:
            message = f"{pointer.rpartition('/')[2]} is {value!r}"
            place = Place(decision.call.exchange.name, pointer=pointer)
            yield expect(place, "a number from 0 to 1", value, message, holds=_is_share(value))


@check_run("decision-is-the-likeliest")
def _decision_is_the_likeliest(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that no option has a higher probability than the choice."""
    for decision in _decisions(target):
        given, choice = decision.numbers, decision.decided.found.get("choice")
        if given and choice is not None:
            most = max(given, key=given.__getitem__)
            message = f"the choice is {choice!r}, but {most!r} has the highest probability"
            holds = isinstance(choice, Option) and choice in given and given[choice] >= given[most]
            yield expect(decision.at("choice"), most, choice, message, holds=holds)


@check_run("decision-score-is-the-mean")
def _decision_score_is_the_mean(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a score is the mean of the levels, each weighted by its probability."""
    for decision in _decisions(target):
        given, score = decision.numbers, decision.decided.found.get("score")
        if given and score is not None and all(str(level).isdigit() for level in given):
            mean = math.fsum(int(level) * value for level, value in given.items())
            holds = _is_number(score) and math.isclose(score, mean, abs_tol=_ROUNDING * len(given))
            message = f"the score is {score!r}, but the mean of the levels is {mean:.6g}"
            yield expect(decision.at("score"), round(mean, 6), score, message, holds=holds)


@check_run("decision-usage-adds-up")
def _decision_usage_adds_up(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the usage counts a prompt, and that the total is the sum of input and output."""
    for call in target.calls:
        if call.action is not Action.DECIDE or not call.done:
            continue
        usage = call.document.get("usage")
        counts: dict[str, Any] = usage if isinstance(usage, dict) else {}
        form = form_of(call.exchange.load().request)
        prompt, output = integer(counts.get(form.input)), integer(counts.get(form.output) or 0)
        holds = (
            prompt is not None
            and output is not None
            and prompt > 0 <= output
            and counts.get("total_tokens", prompt + output) == prompt + output
        )
        yield expect(
            Place(call.exchange.name, pointer="/usage"),
            "tokens of the input above 0, and their sum with those of the output",
            usage,
            f"the usage of a decision is {usage!r:.200}",
            holds=holds,
        )


@check_run("decisions-depend-on-their-question-alone")
def _decisions_depend_on_their_question_alone(_: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a question has the same probabilities alone and beside other questions."""
    first: dict[str, _Decision] = {}
    for decision in _decisions(target):
        request = decision.call.exchange.load().request
        rest = {name: value for name, value in request.body.items() if name != "questions"}
        key = json.dumps([request.path, rest, decision.decided.question])
        before = first.setdefault(key, decision)
        ours, theirs = before.numbers, decision.numbers
        if before is decision or ours is None or theirs is None or ours.keys() != theirs.keys():
            continue
        apart = max(abs(ours[name] - theirs[name]) for name in ours)
        message = f"the probabilities of one question lie {apart:.3g} apart in two requests"
        place, related = decision.at("probabilities"), (before.at("probabilities"),)
        yield expect(place, ours, theirs, message, holds=apart <= _APART, related=related)
