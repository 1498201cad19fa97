"""Pairs for decisions: questions that are answered with probabilities."""

from __future__ import annotations

import json
from typing import Any

from control_calls import clock
from pair import Pair
from stream_builder import whole

from tokenwire.checks.check import Target
from tokenwire.dialects.control import ControlCall, read_call
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

ANSWERED = (whole(),)
"""Another answer of the run: decisions are calls beside it."""
NAMED = {
    "team": {"type": "choice", "criteria": {"a": None, "b": None}},
    "angry": {"type": "noul"},
    "damage": {"type": "score", "criteria": ["none", "small", "large"]},
}
BY_NAME = {
    "team": {"type": "choice", "choice": "b", "probabilities": {"a": 0.25, "b": 0.75}},
    "angry": {"type": "noul", "noul": 0.5},
    "damage": {"type": "score", "score": 1.1, "probabilities": {"0": 0.2, "1": 0.5, "2": 0.3}},
}
LISTED = [
    {"type": "choice", "name": "team", "choices": [{"value": "a"}, {"value": "b"}]},
    {"type": "predicate", "name": "angry"},
]
BY_PLACE = [
    {
        "type": "choice",
        "name": "team",
        "choice": "b",
        "probabilities": [{"value": "a", "probability": 0.25}, {"value": "b", "probability": 0.75}],
    },
    {"type": "predicate", "name": "angry", "probability": 0.5},
]
COUNTS = {"input_tokens": 9, "output_tokens": 3}


def decision(questions: Any, answers: Any, path: str = "/v1/systemone", **usage: int) -> ControlCall:
    """A call that was answered with these answers."""
    document = {"answers": answers, "usage": usage or COUNTS}
    exchange = Exchange(
        f"vllm-chat/one/{'-'.join(map(str, questions))[:40]}",
        HttpRequest("POST", path, {"model": "m", "questions": questions}),
        "one",
        200,
        (),
        (Read(0.01, json.dumps(document).encode()),),
        Ending.COMPLETE,
        duration=0.01,
        started=clock(1),
    )
    call = read_call(exchange)
    assert call is not None
    return call


def by_name(**changed: dict[str, Any]) -> Target:
    """All questions by name, with changed fields in some answers."""
    answers = {name: {**answer, **changed.get(name, {})} for name, answer in BY_NAME.items()}
    return Target(calls=(decision(NAMED, answers),))


def by_place(*answers: Any) -> Target:
    return Target(calls=(decision(LISTED, answers, "/v1/decisions", total_tokens=12, **COUNTS),))


def alone(noul: float) -> Target:
    """All questions, and one of them alone."""
    single = decision({"angry": NAMED["angry"]}, {"angry": {"type": "noul", "noul": noul}})
    return Target(calls=(decision(NAMED, BY_NAME), single))


def counted(**usage: int) -> Target:
    return Target(calls=(decision(NAMED, BY_NAME, **usage),))


def pair(row: str, good: Target, bad: Target, pointer: str, why: str = "") -> Pair:
    return Pair(row, ANSWERED, ANSWERED, pointer=pointer, target=good, bad_target=bad, why=why)


DECISION_PAIRS = [
    pair(
        "decisions-answer-their-questions",
        by_name(),
        by_name(team={"type": "score"}),
        "/answers/team",
        "another type",
    ),
    pair(
        "decisions-answer-their-questions",
        by_place(*BY_PLACE),
        by_place(*BY_PLACE[:1]),
        "/answers/1",
        "no answer",
    ),
    pair(
        "decisions-answer-their-questions",
        by_place(*BY_PLACE),
        by_place(BY_PLACE[0], {**BY_PLACE[1], "name": "team"}),
        "/answers/1",
        "another name",
    ),
    *(
        pair(
            "decision-probabilities-add-up",
            by_name(),
            by_name(**{name: wrong}),
            f"/answers/{name}/probabilities",
            why,
        )
        for name, wrong, why in (
            ("team", {"probabilities": {"a": 0.25, "b": 0.5}}, "the sum"),
            ("team", {"probabilities": {"b": 1.0}}, "an option is missing"),
            ("team", {"probabilities": {"a": -0.25, "b": 1.25}}, "below 0"),
            ("team", {"probabilities": {"a": None, "b": 1.0}}, "null"),
            ("angry", {"noul": 1.5}, "above 1"),
        )
    ),
    pair(
        "decision-probabilities-add-up",
        by_place(*BY_PLACE),
        by_place({**BY_PLACE[0], "probabilities": BY_PLACE[0]["probabilities"][:1]}, BY_PLACE[1]),
        "/answers/0/probabilities",
        "in a list",
    ),
    pair("decision-is-the-likeliest", by_name(), by_name(team={"choice": "a"}), "/answers/team/choice"),
    pair("decision-score-is-the-mean", by_name(), by_name(damage={"score": 2.1}), "/answers/damage/score"),
    pair("decision-usage-adds-up", counted(), counted(input_tokens=0, output_tokens=3), "/usage"),
    pair(
        "decision-usage-adds-up",
        counted(**COUNTS, total_tokens=12),
        counted(**COUNTS, total_tokens=9),
        "/usage",
        "the total",
    ),
    pair("decisions-depend-on-their-question-alone", alone(0.51), alone(0.6), "/answers/angry/probabilities"),
]
